// Package wire says how each limiter is asked: it writes calls and reads answers,
// and leaves to load what is asked and to system who is there to answer.
//
// Only Stream has goroutines, one per node; Close waits for them.
package wire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-project/sluice/bench/load"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Dial connects to the nodes, with a connection each and windows as wide as those
// of sluice's server. They are plain unless an option says otherwise.
func Dial(addrs []string, options ...grpc.DialOption) ([]*grpc.ClientConn, error) {
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1 << 20),
		grpc.WithInitialConnWindowSize(4 << 20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
	}, options...)
	var conns []*grpc.ClientConn
	for _, a := range addrs {
		c, err := grpc.NewClient(a, options...)
		if err != nil {
			Hangup(conns)
			return nil, fmt.Errorf("connecting to %s: %w", a, err)
		}
		conns = append(conns, c)
	}
	return conns, nil
}

// Hangup closes conns.
func Hangup(conns []*grpc.ClientConn) {
	for _, c := range conns {
		// Closing twice is the only error there is.
		_ = c.Close()
	}
}

// Sluice asks sluice, and the echo that speaks like it, by unary calls.
type Sluice struct{ Conns []*grpc.ClientConn }

// Nodes implements load.Target.
func (s Sluice) Nodes() int { return len(s.Conns) }

// NewCaller implements load.Target.
func (s Sluice) NewCaller(domain string, checks int) load.Caller {
	c := &sluiceCaller{req: request(domain, checks)}
	for _, conn := range s.Conns {
		c.clients = append(c.clients, sluicev1.NewSluiceServiceClient(conn))
	}
	return c
}

type sluiceCaller struct {
	clients []sluicev1.SluiceServiceClient
	req     *sluicev1.CheckRequest
}

// Call implements load.Caller.
func (c *sluiceCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	for i, k := range keys {
		c.req.Checks[i].Descriptor_[0].Value = k
	}
	res, err := c.clients[node].Check(ctx, c.req)
	if err != nil {
		return err
	}
	return tally(res, len(keys), seen)
}

// request has so many checks, whose keys are still to be set.
func request(domain string, checks int) *sluicev1.CheckRequest {
	req := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, checks)}
	for i := range req.Checks {
		req.Checks[i] = newCheck(domain)
	}
	return req
}

func newCheck(domain string) *sluicev1.Check {
	return &sluicev1.Check{Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: "user"}}}
}

func tally(res *sluicev1.CheckResponse, want int, seen *load.Tally) error {
	if e := res.GetError(); e != nil {
		return fmt.Errorf("%v: %s", e.GetCode(), e.GetMessage())
	}
	ds := res.GetDecisions()
	if len(ds) != want {
		return fmt.Errorf("%d decisions for %d checks", len(ds), want)
	}
	for _, d := range ds {
		count(d, seen)
	}
	return nil
}

func count(d *sluicev1.Decision, seen *load.Tally) {
	switch {
	case d.GetError() != nil:
		seen.Failed++
	case d.GetAllowed():
		seen.Allowed++
	default:
		seen.Denied++
	}
	switch d.GetSource() {
	case sluicev1.Source_SOURCE_HELD, sluicev1.Source_SOURCE_LEASE:
	case sluicev1.Source_SOURCE_FORWARDED:
		seen.Forwarded++
	default:
		seen.Fallback++
	}
}
