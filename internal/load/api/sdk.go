package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/load"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
)

// sdk uses one Go client for all callers, as a program would. The client chooses the node and packs concurrent checks into
// frames.
type sdk struct {
	client *sluice.Client
	config Config
}

func openSDK(c Config) (API, error) {
	options := []sluice.Option{sluice.WithFailurePolicy(sluice.FailClosed())}
	if c.Timeout > 0 {
		options = append(options, sluice.WithTimeout(c.Timeout))
	}
	if c.TLS != nil {
		options = append(options, sluice.WithTLS(c.TLS))
	}
	if c.Token != nil {
		options = append(options, sluice.WithToken(c.Token))
	}
	if c.TokenInClear {
		options = append(options, sluice.WithPlaintextToken())
	}
	one, err := sluice.New(strings.Join(c.Addrs, ","), append(options, c.ClientOptions...)...)
	if err != nil {
		return nil, err
	}
	// Without a node, calls say so.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := one.Ready(ctx); errors.Is(err, sluice.ErrUnauthenticated) {
		one.Close()
		return nil, err
	}
	return &sdk{one, c}, nil
}

// Nodes implements load.Target: the client chooses the node.
func (*sdk) Nodes() int { return 1 }

// Close implements API.
func (s *sdk) Close() error { return s.client.Close() }

// NewCaller implements load.Target.
func (s *sdk) NewCaller(checks int) load.Caller {
	c := &sdkCaller{s, make([]sluice.Check, checks)}
	var limits []sluice.Limit
	for _, l := range s.config.Limits {
		limits = append(limits, sluice.Limit{Count: l.Count, Period: l.Period})
	}
	for i := range c.checks {
		c.checks[i] = sluice.Check{Domain: s.config.Domain, Descriptor: []sluice.Entry{{Key: s.config.Key}}, Limits: limits, Amount: 1}
	}
	return c
}

type sdkCaller struct {
	*sdk
	checks []sluice.Check
}

// Call implements load.Caller.
func (c *sdkCaller) Call(ctx context.Context, _ int, keys []string, seen *load.Counts) error {
	for i, k := range keys {
		c.checks[i].Descriptor[0].Value = k
	}
	var all []sluice.Decision
	var err error
	if len(keys) == 1 {
		all = make([]sluice.Decision, 1)
		all[0], err = c.client.Check(ctx, c.checks[0])
	} else {
		var b sluice.Batch
		b, err = c.client.CheckAll(ctx, c.checks...)
		all = b.Decisions
	}
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].Source == limit.SourceFailClosed { // then all are by the failure policy
			return errors.New("no node answered in time")
		}
		seen.Count(load.SourceNamed(all[i].Source.String()), all[i].Allowed)
	}
	return nil
}

// streams calls RateLimitService.CheckStream.
type streams struct {
	*connections
	config Config
}

func openStream(c Config) (API, error) {
	conns, err := connect(c)
	return &streams{conns, c}, err
}

// NewCaller implements load.Target.
func (s *streams) NewCaller(checks int) load.Caller {
	return &streamCaller{
		conns: s.take(), open: make([]*stream, s.Nodes()), timeout: cmp.Or(s.config.Timeout, math.MaxInt64), request: request(&s.config, checks),
	}
}

// streamCaller has a stream to each node, opened at the first call and again after its end. Streams end with their
// connection.
type streamCaller struct {
	conns   []*grpc.ClientConn
	open    []*stream
	timeout time.Duration
	request *sluicev1.CheckRequest
}

// stream is an open one. It is cancelled when a call on it takes too long.
type stream struct {
	grpc.BidiStreamingClient[sluicev1.CheckRequest, sluicev1.CheckResponse]
	cancel context.CancelFunc
	late   *time.Timer
}

// Call implements load.Caller.
func (c *streamCaller) Call(ctx context.Context, node int, keys []string, seen *load.Counts) error {
	s := c.open[node]
	if s == nil {
		var err error
		if s, err = c.begin(ctx, node); err != nil {
			return err
		}
	}
	s.late.Reset(c.timeout)
	name(c.request, keys)
	c.request.Id++
	res, err := s.ask(c.request)
	if !s.late.Stop() && err != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %v: %w", c.timeout, err)
	}
	if err != nil {
		s.cancel()
		c.open[node] = nil
		return err
	}
	return count(res, len(keys), seen)
}

// begin opens a stream to node, which lives as long as ctx.
func (c *streamCaller) begin(ctx context.Context, node int) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(c.timeout, cancel)
	opened, err := sluicev1.NewRateLimitServiceClient(c.conns[node]).CheckStream(ctx)
	if err != nil {
		cancel()
		late.Stop()
		return nil, err
	}
	c.open[node] = &stream{opened, cancel, late}
	return c.open[node], nil
}

// ask sends req and returns its response. No other request is in flight.
func (s *stream) ask(req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	// After io.EOF, Recv says why the stream has ended.
	if err := s.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	res, err := s.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the node has ended the stream")
	case err == nil && res.GetId() != req.GetId():
		return nil, fmt.Errorf("asked request %d, got the answer of %d", req.GetId(), res.GetId())
	}
	return res, err
}
