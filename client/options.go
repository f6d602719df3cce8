package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

// Option changes how a Client works.
type Option func(*options) error

type options struct {
	timeout   time.Duration
	policy    FailurePolicy
	denyCache int
	owners    int
	noRouting bool
	dial      []grpc.DialOption
	observer  Observer
	token     TokenSource
	inClear   bool
}

func newOptions(list []Option) (options, error) {
	o := options{timeout: 3 * time.Second, policy: FailOpen, denyCache: 10_000, owners: 65_536}
	// The cluster's rules bound the size of responses; nodes have no cap either.
	o.dial = []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		// A node that comes back is found soon: the circuit breaker says when to try.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: openTimeout,
		}),
	}
	for _, f := range list {
		if err := f(&o); err != nil {
			return o, fmt.Errorf("sluice: %w", err)
		}
	}
	if o.token != nil {
		o.dial = append(o.dial, grpc.WithPerRPCCredentials(TokenCredentials(o.token, o.inClear)))
	}
	return o, nil
}

// WithTimeout bounds the time of a call with all its retries; then the FailurePolicy answers. Above 0; 3 s by default,
// which is longer than a cluster needs after a crash.
func WithTimeout(d time.Duration) Option {
	return func(o *options) error {
		if d <= 0 {
			return fmt.Errorf("WithTimeout: %v; want a time above 0", d)
		}
		o.timeout = d
		return nil
	}
}

// WithFailurePolicy sets the policy when no node answers: FailOpen, which is the default, FailClosed or FailLocal.
func WithFailurePolicy(p FailurePolicy) Option {
	return func(o *options) error {
		switch {
		case p.kind != SourceFailOpen && p.kind != SourceFailClosed && !p.local():
			return errors.New("WithFailurePolicy: want FailOpen, FailClosed or FailLocal")
		case p.local() && !(p.share > 0 && p.share <= 1):
			return fmt.Errorf("WithFailurePolicy: FailLocal: share %v; want above 0 and at most 1", p.share)
		}
		o.policy = p
		return nil
	}
}

// WithDenyCache sets how many denials are remembered, 10,000 by default; 0 remembers none.
func WithDenyCache(entries int) Option {
	return func(o *options) error {
		if entries < 0 {
			return fmt.Errorf("WithDenyCache: %d; want 0 or more entries", entries)
		}
		o.denyCache = entries
		return nil
	}
}

// WithOwners sets of how many counters the owner is remembered, 65,536 by default.
func WithOwners(entries int) Option {
	return func(o *options) error {
		if entries < 1 {
			return fmt.Errorf("WithOwners: %d; want 1 entry or more", entries)
		}
		o.owners = entries
		return nil
	}
}

// WithoutRouting uses only the addresses of the target, in turn: for clients that cannot reach the nodes' own addresses.
func WithoutRouting() Option {
	return func(o *options) error { o.noRouting = true; return nil }
}

// WithDialOptions adds options to every connection, for example credentials; without any,
// connections are not encrypted.
func WithDialOptions(list ...grpc.DialOption) Option {
	return func(o *options) error { o.dial = append(o.dial, list...); return nil }
}

// Observer gets an Event for every decision. Decided is called in the caller's goroutine and must be quick and safe for
// concurrent use.
type Observer interface {
	Decided(ctx context.Context, e Event)
}

// Event is one decision or error. CheckAll has one for each check, or one if it failed: with the domain of the first check
// and the sum of the costs.
type Event struct {
	Domain string
	// Verb is check, read, charge, refund or reset.
	Verb string
	// Cost is 0 for a reset.
	Cost int64
	// Decision is zero if Err is set. That of a reset has only Allowed, Rule, Source and Owner.
	Decision Decision
	Err      error
	Took     time.Duration
}

// Outcome returns allowed, denied, shadowed (allowed by a rule that only watches), invalid (the check was wrong) or
// error.
func (e *Event) Outcome() string {
	switch {
	case e.Err != nil:
		if _, ok := errors.AsType[*Error](e.Err); ok {
			return "invalid"
		}
		return "error"
	case e.Decision.Shadowed:
		return "shadowed"
	case e.Decision.Allowed:
		return "allowed"
	}
	return "denied"
}

// WithObserver sets an Observer.
func WithObserver(observer Observer) Option {
	return func(o *options) error {
		if observer == nil {
			return errors.New("WithObserver: nil")
		}
		o.observer = observer
		return nil
	}
}

// Stats counts since Dial, except for Nodes.
type Stats struct {
	// Allowed and Denied are decisions by source.
	Allowed, Denied map[Source]uint64
	// Invalid are calls with an *Error, Failed those with another error.
	Invalid, Failed uint64
	// Retries are attempts after the first.
	Retries uint64
	// Frames were sent; checks ÷ frames is how well calls travel together.
	Frames uint64
	// StreamsLost are streams that ended other than by Close.
	StreamsLost uint64
	// Nodes is the number of known nodes of the cluster; 0 while only the target is used.
	Nodes int
}

type counters struct {
	allowed, denied                               [sources]atomic.Uint64
	invalid, failed, retries, frames, streamsLost atomic.Uint64
}

// count counts a decision, or an error if err is not nil.
func (s *counters) count(d *Decision, err error) {
	if err != nil {
		if _, ok := errors.AsType[*Error](err); ok {
			s.invalid.Add(1)
		} else {
			s.failed.Add(1)
		}
		return
	}
	if d.Allowed {
		s.allowed[d.Source].Add(1)
	} else {
		s.denied[d.Source].Add(1)
	}
}

// Stats returns what c has counted.
func (c *Client) Stats() Stats {
	s := &c.stats
	r := Stats{
		Allowed: map[Source]uint64{}, Denied: map[Source]uint64{},
		Invalid: s.invalid.Load(), Failed: s.failed.Load(), Retries: s.retries.Load(),
		Frames: s.frames.Load(), StreamsLost: s.streamsLost.Load(), Nodes: len(c.fleet.Load().nodes),
	}
	for i := range s.allowed {
		if n := s.allowed[i].Load(); n > 0 {
			r.Allowed[Source(i)] = n
		}
		if n := s.denied[i].Load(); n > 0 {
			r.Denied[Source(i)] = n
		}
	}
	return r
}

// ReportLoad reports the load of the service behind a pool: 0 is idle, 1 its capacity. The pool shrinks by it, as its
// rule file says. A report is valid for the time that the rules give it, 10 s by default, so report every few seconds. Each
// Client is a reporter of its own, and the highest load of all reporters counts. An *Error says that load is out of range,
// or that the rules have no such pool or that it follows no load; ErrUnavailable says that no node has answered in time.
func (c *Client) ReportLoad(ctx context.Context, domain, pool string, load float64) error {
	req := &sluicev1.ReportLoadRequest{Domain: domain, Pool: pool, Load: load, Reporter: c.reporter}
	_, err := c.inTurns(ctx, counterKey{}, func(ctx context.Context, n *node) error {
		try, cancel := context.WithTimeout(ctx, c.opts.timeout/2)
		defer cancel()
		_, err := sluicev1.NewRateLimitServiceClient(n.conn).ReportLoad(try, req)
		if err != nil {
			return finalOf(err, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition)
		}
		return nil
	})
	if errors.Is(err, errUnsent) {
		return fmt.Errorf("%w within %v", ErrUnavailable, c.opts.timeout)
	}
	return err
}
