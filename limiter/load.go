package limiter

import (
	"context"
	"fmt"
	"time"
)

// LoadReport says how much of its load a service behind a pool bears.
type LoadReport struct {
	Domain, Pool string
	// Reporter names who reports, so that its newest report counts: at most MaxText bytes. Those without a name
	// are one.
	Reporter string
	// Load is 0 (idle) to 1 (as much as it can bear).
	Load float64
	// Stamp orders the reports of one reporter, whichever nodes they came to: the Unix time in ns of the
	// node that took it. Callers leave it 0.
	Stamp int64
}

// PoolLoad is what counts for a pool on the node that was asked.
type PoolLoad struct {
	// Load is the highest of the reports that count, 0 to 1.
	Load float64
	// Expires is how long a report counts.
	Expires time.Duration
}

// ReportLoad implements Service.
func (s *Limiter) ReportLoad(_ context.Context, r LoadReport) (PoolLoad, error) {
	if fault := textFault(r.Reporter, true); fault != "" {
		return PoolLoad{}, &Error{Code: Invalid, Field: "reporter", Message: fault}
	}
	if !(r.Load >= 0 && r.Load <= 1) { // a NaN is neither
		return PoolLoad{}, &Error{Code: Invalid, Field: "load", Message: fmt.Sprintf("%v; want 0 to 1", r.Load)}
	}
	book := s.rules.Load()
	pool := book.pool(r.Domain, r.Pool)
	switch {
	case pool == nil:
		return PoolLoad{}, &Error{Code: NotFound, Field: "pool", Message: fmt.Sprintf("the domain %q has no pool %q", r.Domain, r.Pool)}
	case !pool.FollowsLoad:
		return PoolLoad{}, &Error{Code: Refused, Field: "pool", Message: fmt.Sprintf("pool %q follows no load; give it one in the rules", r.Pool)}
	}
	r.Stamp = time.Now().UnixNano()
	s.TakeLoad(r)
	if s.config.SpreadLoad != nil {
		s.config.SpreadLoad(r)
	}
	return PoolLoad{Load: book.pools[pool].at(s.config.Clock()).load, Expires: pool.Expires}, nil
}

// TakeLoad takes a report that another node was given. One about a pool that this node does not have is
// ignored.
func (s *Limiter) TakeLoad(r LoadReport) {
	book := s.rules.Load()
	pool := book.pool(r.Domain, r.Pool)
	if pool == nil || !pool.FollowsLoad || !(r.Load >= 0 && r.Load <= 1) || len(r.Reporter) > MaxText {
		return
	}
	book.pools[pool].report(loadReport{reporter: r.Reporter, load: r.Load, stamp: r.Stamp}, s.config.Clock())
}
