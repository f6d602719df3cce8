// Package door asks sluice through each of its doors, as the clients of that door would,
// and tells a load what came of it. It decides nothing about which keys are asked, or when.
package door

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/load"
)

// Door is a way to ask nodes. Close it when its callers have ended.
type Door interface {
	load.Target
	// Close ends all connections.
	Close() error
}

// Limit is a limit that checks bring along: Count units in each fixed window of Period.
type Limit struct {
	Count  int64
	Period time.Duration
}

// Config says who is asked, and what about.
type Config struct {
	// Addrs of the nodes' gRPC ports, or HTTP ports with doors that speak HTTP: host:port.
	Addrs []string
	// Domain of the checks; gubernator's name.
	Domain string
	// Key of the descriptor's only entry. gubernator has none.
	Key string
	// Header that has the key, with the door authorize.
	Header string
	// Limits that the checks bring along. Without any, the nodes' rules apply.
	Limits []Limit
	// Timeout of one call. 0: none, or the Go client's own.
	Timeout time.Duration
	// Token is shown to the nodes, if it is not nil. TokenInClear: without TLS to others than loopback addresses too.
	Token        client.TokenSource
	TokenInClear bool
	// Connections to each node, over which gRPC's callers are spread. 0 means one.
	Connections int
	// TLS is what connections are made with. Nil is plain.
	TLS *tls.Config
	// ClientOptions are further options of the Go client.
	ClientOptions []client.Option
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case len(c.Addrs) == 0 || slices.Contains(c.Addrs, ""):
		return errors.New("addr: give at least one address, and no empty one")
	case c.Domain == "":
		return errors.New("domain: is empty")
	case c.Key == "":
		return errors.New("key: is empty")
	case c.Timeout < 0:
		return fmt.Errorf("timeout: %v; want 0 or more", c.Timeout)
	case c.Connections < 0 || c.Connections > 1000:
		return fmt.Errorf("connections: %d; want 1 to 1000", c.Connections)
	}
	for _, l := range c.Limits {
		if l.Count < 0 || l.Period <= 0 {
			return fmt.Errorf("limits: %d in %v; want a count of 0 or more and a period above 0", l.Count, l.Period)
		}
	}
	return nil
}

// Kind describes a door.
type Kind struct {
	// Name as in flags, for example "grpc".
	Name string
	// What says in a few words what is called.
	What string
	// HTTP: it is on the nodes' HTTP ports.
	HTTP bool
	// MaxBatch is the most checks that a call may have.
	MaxBatch int
	// MinLimits and MaxLimits are how many limits checks may bring.
	MinLimits, MaxLimits int

	open func(Config) (Door, error)
}

// maxLimits is how many limits a check of sluice's own API may bring.
const maxLimits = 16

// Kinds are all doors.
var Kinds = []Kind{
	{"grpc", "sluice's own API, SluiceService.Check", false, load.MaxBatch, 0, maxLimits, openGRPC},
	{"stream", "the same by CheckStream, a stream for each caller and node", false, load.MaxBatch, 0, maxLimits, openStream},
	{"sdk", "the Go client, one for all callers; more than one check a call is all or nothing", false, load.MaxBatch, 0, maxLimits, openSDK},
	{"http", "POST /v1/check", true, load.MaxBatch, 0, maxLimits, openHTTP},
	{"gubernator", "gubernator's V1.GetRateLimits", false, 1000, 1, 1, openGubernator},
	{"envoy", "Envoy's RateLimitService, a descriptor for each check", false, load.MaxBatch, 0, 1, openEnvoy},
	{"authorize", "GET /v1/authorize/DOMAIN/, as proxies ask; needs rules with authorize", true, 1, 0, 0, openAuthorize},
}

// Find returns the door of that name.
func Find(name string) (*Kind, error) {
	var names []string
	for i := range Kinds {
		if Kinds[i].Name == name {
			return &Kinds[i], nil
		}
		names = append(names, Kinds[i].Name)
	}
	return nil, fmt.Errorf("door: %q is none of %s", name, strings.Join(names, ", "))
}

// Open makes a door for calls of batch checks. It connects to nobody yet; the error is about c or batch and begins
// with the name of what is wrong.
func (k *Kind) Open(c Config, batch int) (Door, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if batch < 1 || batch > k.MaxBatch {
		return nil, fmt.Errorf("batch: %d; with door %s want 1 to %d", batch, k.Name, k.MaxBatch)
	}
	switch n := len(c.Limits); {
	case n > k.MaxLimits && k.MaxLimits == 0:
		return nil, fmt.Errorf("limits: door %s brings none, the nodes' rules hold them", k.Name)
	case n > k.MaxLimits:
		return nil, fmt.Errorf("limits: %d; checks of door %s bring at most %d", n, k.Name, k.MaxLimits)
	case n < k.MinLimits:
		return nil, fmt.Errorf("limits: checks of door %s must bring their limit", k.Name)
	}
	return k.open(c)
}
