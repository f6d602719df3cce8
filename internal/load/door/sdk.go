package door

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/load"
)

// sdk asks by the Go client, which all callers share, as the parts of a program would. The client
// chooses the node, and gathers what its callers ask at the same time.
type sdk struct {
	client *client.Client
	config Config
}

func openSDK(c Config) (Door, error) {
	options := []client.Option{client.WithTimeout(c.Timeout), client.WithFailurePolicy(client.FailClosed)}
	if c.TLS != nil {
		options = append(options, client.WithDialOptions(grpc.WithTransportCredentials(c.credentials())))
	}
	if c.Token != nil {
		options = append(options, client.WithToken(c.Token))
	}
	if c.TokenInClear {
		options = append(options, client.WithTokenInClear())
	}
	one, err := client.Dial(context.Background(), strings.Join(c.Addrs, ","), options...)
	if err != nil {
		return nil, err
	}
	return &sdk{one, c}, nil
}

// Nodes implements load.Target: there is nothing to choose from.
func (*sdk) Nodes() int { return 1 }

// Close implements Door.
func (s *sdk) Close() error { return s.client.Close() }

// NewCaller implements load.Target.
func (s *sdk) NewCaller(checks int) load.Caller {
	c := &sdkCaller{client: s.client, checks: make([]client.Check, checks)}
	var limits []client.Limit
	for _, l := range s.config.Limits {
		limits = append(limits, client.Limit{Count: l.Count, Period: l.Period})
	}
	for i := range c.checks {
		c.checks[i] = client.Check{Domain: s.config.Domain, Descriptor: []client.Entry{{Key: s.config.Key}}, Limits: limits}
	}
	return c
}

type sdkCaller struct {
	client *client.Client
	checks []client.Check
}

// Call implements load.Caller.
func (c *sdkCaller) Call(ctx context.Context, _ int, keys []string, seen *load.Tally) error {
	for i, k := range keys {
		c.checks[i].Descriptor[0].Value = k
	}
	if len(keys) == 1 {
		d, err := c.client.Check(ctx, c.checks[0])
		if err != nil {
			return err
		}
		return sdkCount(&d, seen)
	}
	all, err := c.client.CheckAll(ctx, c.checks)
	if err != nil {
		return err
	}
	for i := range all {
		if err := sdkCount(&all[i], seen); err != nil {
			return err
		}
	}
	return nil
}

// errNoNode stands for the client's failure policy, which answers when no node does.
var errNoNode = errors.New("no node answered in time")

// sdkCount adds d. All of a call are by the failure policy, or none is.
func sdkCount(d *client.Decision, seen *load.Tally) error {
	if d.Source == client.SourceFailClosed {
		return errNoNode
	}
	seen.Count(sdkSource(d.Source), d.Allowed)
	return nil
}

func sdkSource(s client.Source) load.Source {
	switch s {
	case client.SourceHeld:
		return load.Held
	case client.SourceForwarded:
		return load.Forwarded
	case client.SourceShare:
		return load.Share
	case client.SourceClosed:
		return load.Closed
	case client.SourceOpen:
		return load.Open
	case client.SourceUnruled:
		return load.Unruled
	case client.SourceLease:
		return load.Lease
	case client.SourceEventual:
		return load.Eventual
	case client.SourceDenyCache:
		return load.DenyCache
	}
	return load.Untold
}
