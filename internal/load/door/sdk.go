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
	options := []client.Option{client.WithFailurePolicy(client.FailClosed)}
	if c.Timeout > 0 {
		options = append(options, client.WithTimeout(c.Timeout))
	}
	if c.TLS != nil {
		options = append(options, client.WithDialOptions(grpc.WithTransportCredentials(c.credentials())))
	}
	if c.Token != nil {
		options = append(options, client.WithToken(c.Token))
	}
	if c.TokenInClear {
		options = append(options, client.WithTokenInClear())
	}
	one, err := client.Dial(context.Background(), strings.Join(c.Addrs, ","), append(options, c.ClientOptions...)...)
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
	c := &sdkCaller{s, make([]client.Check, checks)}
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
	*sdk
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
		return countSDK(seen, d)
	}
	all, err := c.client.CheckAll(ctx, c.checks)
	if err != nil {
		return err
	}
	return countSDK(seen, all...)
}

// errNoNode stands for the client's failure policy, which answers when no node does.
var errNoNode = errors.New("no node answered in time")

// countSDK adds the decisions of a call: all of them are by the failure policy, or none is.
func countSDK(seen *load.Tally, all ...client.Decision) error {
	for i := range all {
		if all[i].Source == client.SourceFailClosed {
			return errNoNode
		}
		seen.Count(load.SourceNamed(all[i].Source.String()), all[i].Allowed)
	}
	return nil
}
