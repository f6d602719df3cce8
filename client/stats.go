package sluice

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// Stats counts since New, except for Nodes.
type Stats struct {
	// Allowed and Denied are decisions by source.
	Allowed, Denied map[limit.Source]uint64
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
	allowed, denied                               [256]atomic.Uint64 // by source
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

// answered is how many checks nodes have decided, or this client's denial cache.
func (s *counters) answered() (n uint64) {
	for i := range limit.SourceFailOpen {
		n += s.allowed[i].Load() + s.denied[i].Load()
	}
	return n
}

// Stats returns what c has counted.
func (c *Client) Stats() Stats {
	s := &c.stats
	r := Stats{
		Allowed: map[limit.Source]uint64{}, Denied: map[limit.Source]uint64{},
		Invalid: s.invalid.Load(), Failed: s.failed.Load(), Retries: s.retries.Load(),
		Frames: s.frames.Load(), StreamsLost: s.streamsLost.Load(), Nodes: len(c.fleet.Load().nodes),
	}
	for _, l := range c.leases.all() {
		r.Allowed[limit.SourceLease] += uint64(l.Unseen())
	}
	for i := range s.allowed {
		if n := s.allowed[i].Load(); n > 0 {
			r.Allowed[limit.Source(i)] += n
		}
		if n := s.denied[i].Load(); n > 0 {
			r.Denied[limit.Source(i)] = n
		}
	}
	return r
}

// ReportLoad reports the load of the service behind a pool: 0 is idle, 1 its capacity. The pool shrinks by it, as its
// rule file says. A report is valid for the time that the rules give it, 10 s by default, so report every few seconds. Each
// Client is a reporter of its own, and the highest load of all reporters counts. An *Error says that load is out of range,
// or that the rules have no such pool or that it follows no load; ErrUnavailable says that no node has answered in time.
func (c *Client) ReportLoad(ctx context.Context, domain, pool string, load float64) error {
	if err := c.usable(); err != nil {
		return err
	}
	req := &sluicev1.ReportLoadRequest{Domain: domain, Pool: pool, Load: load, Reporter: c.reporter}
	return c.unary(ctx, counterKey{}, true, func(ctx context.Context, node sluicev1.RateLimitServiceClient) error {
		_, err := node.ReportLoad(ctx, req)
		return err
	})
}
