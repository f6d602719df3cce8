package wire

import (
	"context"
	"strings"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/client"
)

// SDK asks sluice through the Go client, one for all callers, which chooses the nodes by itself.
type SDK struct{ client *client.Client }

// NewSDK connects to the nodes at addrs. Denials are not remembered: each check is to be asked. Close it.
func NewSDK(ctx context.Context, addrs []string) (*SDK, error) {
	c, err := client.Dial(ctx, strings.Join(addrs, ","), client.WithDenyCache(0))
	if err != nil {
		return nil, err
	}
	return &SDK{c}, nil
}

// Close ends the client.
func (s *SDK) Close() error { return s.client.Close() }

// Nodes implements load.Target: whoever asks leaves the choice to the client.
func (s *SDK) Nodes() int { return 1 }

// NewCaller implements load.Target. Each check is a call of its own.
func (s *SDK) NewCaller(domain string, _ int) load.Caller {
	return &sdkCaller{client: s.client, check: client.Check{Domain: domain, Descriptor: []client.Entry{{Key: "user"}}}}
}

type sdkCaller struct {
	client *client.Client
	check  client.Check
}

// Call implements load.Caller.
func (c *sdkCaller) Call(ctx context.Context, _ int, keys []string, seen *load.Tally) error {
	for _, k := range keys {
		c.check.Descriptor[0].Value = k
		d, err := c.client.Check(ctx, c.check)
		if err != nil {
			return err
		}
		switch {
		case d.Allowed:
			seen.Allowed++
		default:
			seen.Denied++
		}
		switch d.Source {
		case client.SourceHeld, client.SourceLease:
		case client.SourceForwarded:
			seen.Forwarded++
		default:
			seen.Fallback++
		}
	}
	return nil
}
