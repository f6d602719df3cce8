// Package api has a load.Target for each of sluice's APIs, which calls it as its usual clients do.
package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/load"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// API is a Target. Close it when its callers have ended.
type API interface {
	load.Target
	// Close ends all connections.
	Close() error
}

// Limit is a limit that checks bring along: Count units in each fixed window of Period.
type Limit struct {
	Count  int64
	Period time.Duration
}

// Config has the nodes' addresses and the content of the checks.
type Config struct {
	// Addrs of the nodes' gRPC ports, or HTTP ports with APIs that speak HTTP: host:port.
	Addrs []string
	// Domain of the checks; gubernator's name.
	Domain string
	// Key of the descriptor's only entry. gubernator has none.
	Key string
	// Header that has the key, with the API authorize.
	Header string
	// Limits of the checks. Without any, the nodes' rules apply.
	Limits []Limit
	// Timeout of one call. 0: none, or the Go client's own.
	Timeout time.Duration
	// Token, if not nil, authenticates calls. TokenInClear: without TLS to others than loopback addresses too.
	Token        sluice.TokenSource
	TokenInClear bool
	// Connections to each node, shared by gRPC's callers. 0 means one.
	Connections int
	// TLS of connections. Nil is plain.
	TLS *tls.Config
	// ClientOptions are further options of the Go client.
	ClientOptions []sluice.Option
}

// Validate names the first invalid field.
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

// Kind describes an API.
type Kind struct {
	Name                 string // as in flags, for example "grpc"
	What                 string // a short description
	HTTP                 bool   // it is on the nodes' HTTP ports
	MaxBatch             int    // checks in a call
	MinLimits, MaxLimits int    // limits of a check

	open func(Config) (API, error)
}

// maxLimits is the most limits of a check of sluice's own API.
const maxLimits = 16

// Kinds are all APIs.
var Kinds = []Kind{
	{"grpc", "sluice's own API, RateLimitService.Check", false, load.MaxBatch, 0, maxLimits, openGRPC},
	{"stream", "the same by CheckStream, a stream for each caller and node", false, load.MaxBatch, 0, maxLimits, openStream},
	{"sdk", "the Go client, one for all callers; more than one check a call is all or nothing", false, load.MaxBatch, 0, maxLimits, openSDK},
	{"http", "POST /v1/check", true, load.MaxBatch, 0, maxLimits, openHTTP},
	{"gubernator", "gubernator's V1.GetRateLimits", false, 1000, 1, 1, openGubernator},
	{"envoy", "Envoy's RateLimitService, a descriptor for each check", false, load.MaxBatch, 0, 1, openEnvoy},
	{"authorize", "GET /v1/authorize/DOMAIN/, as proxies ask; needs rules with authorize", true, 1, 0, 0, openAuthorize},
}

// Find returns the API of that name.
func Find(name string) (*Kind, error) {
	var names []string
	for i := range Kinds {
		if Kinds[i].Name == name {
			return &Kinds[i], nil
		}
		names = append(names, Kinds[i].Name)
	}
	return nil, fmt.Errorf("api: %q is none of %s", name, strings.Join(names, ", "))
}

// Open makes an API for calls of batch checks, without connecting yet. The error is about c or batch and begins with the name
// of the invalid field.
func (k *Kind) Open(c Config, batch int) (API, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if batch < 1 || batch > k.MaxBatch {
		return nil, fmt.Errorf("batch: %d; with API %s want 1 to %d", batch, k.Name, k.MaxBatch)
	}
	switch n := len(c.Limits); {
	case n > k.MaxLimits && k.MaxLimits == 0:
		return nil, fmt.Errorf("limits: API %s brings none, the nodes' rules hold them", k.Name)
	case n > k.MaxLimits:
		return nil, fmt.Errorf("limits: %d; checks of API %s bring at most %d", n, k.Name, k.MaxLimits)
	case n < k.MinLimits:
		return nil, fmt.Errorf("limits: checks of API %s must bring their limit", k.Name)
	}
	return k.open(c)
}

// connections are those of gRPC APIs.
type connections struct {
	byNode [][]*grpc.ClientConn // Config.Connections for each node
	taken  atomic.Uint32
}

// credentials are those of a gRPC connection.
func (c *Config) credentials() credentials.TransportCredentials {
	if c.TLS == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(c.TLS)
}

// url is the URL of a path on a node's HTTP port.
func (c *Config) url(node int, path string) string {
	if c.TLS == nil {
		return "http://" + c.Addrs[node] + path
	}
	return "https://" + c.Addrs[node] + path
}

// Dial returns a connection to addr that connects when it is first used.
func (c *Config) Dial(addr string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(c.credentials()),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
		// A node that comes back is found soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	}
	if c.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(c.Token, c.TokenInClear)))
	}
	conn, err := grpc.NewClient(addr, options...)
	if err != nil {
		return nil, fmt.Errorf("addr: %s: %w", addr, err)
	}
	return conn, nil
}

// connect returns the connections to all nodes.
func connect(c Config) (*connections, error) {
	all := &connections{}
	for _, addr := range c.Addrs {
		var list []*grpc.ClientConn
		for range max(1, c.Connections) {
			conn, err := c.Dial(addr)
			if err != nil {
				return nil, errors.Join(err, all.Close())
			}
			list = append(list, conn)
		}
		all.byNode = append(all.byNode, list)
	}
	return all, nil
}

// Nodes implements load.Target.
func (c *connections) Nodes() int { return len(c.byNode) }

// Close implements API.
func (c *connections) Close() error {
	var errs []error
	for _, list := range c.byNode {
		for _, conn := range list {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// take returns one connection to each node for a new caller, round robin.
func (c *connections) take() []*grpc.ClientConn {
	n := c.taken.Add(1)
	mine := make([]*grpc.ClientConn, len(c.byNode))
	for node, list := range c.byNode {
		mine[node] = list[int(n)%len(list)]
	}
	return mine
}
