package limiter

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/rules"
)

// maxReporters bounds the reporters of one pool's load. Above it the oldest report is dropped.
const maxReporters = 256

// poolState has a pool's reported load and its counts. It outlives reloads that keep the pool's name. It is safe for
// concurrent use.
type poolState struct {
	admitted, denied atomic.Uint64

	// current is the load until the next report expires. A check that finds it out of date computes it again.
	current atomic.Pointer[poolStep]
	mu      struct {
		sync.Mutex
		pool    *rules.Pool
		reports []loadReport
	}
}

// poolStep is the load that counts until a moment of the Limiter's clock.
type poolStep struct {
	until time.Duration
	load  float64
	step  int
}

// loadReport is the newest report of one reporter, and when this node received it.
type loadReport struct {
	LoadReport
	received time.Duration
}

// newPools returns the states of set's pools, which may be nil, going on from those before.
func newPools(set *rules.Set, before map[*rules.Pool]*poolState) map[*rules.Pool]*poolState {
	if set == nil {
		return nil
	}
	known := make(map[ruleName]*poolState, len(before))
	for p, s := range before {
		known[ruleName{p.Domain, p.Name}] = s
	}
	out := make(map[*rules.Pool]*poolState)
	for _, p := range set.Pools() {
		s := known[ruleName{p.Domain, p.Name}]
		if s == nil {
			s = new(poolState)
		}
		s.mu.Lock()
		s.mu.pool = p
		s.current.Store(nil)
		s.mu.Unlock()
		out[p] = s
	}
	return out
}

// pool returns the pool of that name, nil if there is none.
func (b *activeRules) pool(domain, name string) *rules.Pool {
	if b.set == nil {
		return nil
	}
	return b.set.Pool(domain, name)
}

// at returns the load that counts at now.
func (s *poolState) at(now time.Duration) *poolStep {
	if p := s.current.Load(); p != nil && now < p.until {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.computeLocked(now)
}

// computeLocked drops expired reports and computes the load: the highest reported, or without reports that of the rules.
func (s *poolState) computeLocked(now time.Duration) *poolStep {
	pool := s.mu.pool
	p := &poolStep{until: math.MaxInt64}
	if pool.FollowsLoad {
		s.mu.reports = slices.DeleteFunc(s.mu.reports, func(r loadReport) bool { return now-r.received >= pool.Expires })
		p.load = pool.Unreported
		for i, r := range s.mu.reports {
			if i == 0 || r.Load > p.load {
				p.load = r.Load
			}
			p.until = min(p.until, r.received+pool.Expires)
		}
		p.step = rules.StepOf(p.load)
	}
	s.current.Store(p)
	return p
}

// report takes r, received at now, unless a newer one of the same reporter is known.
func (s *poolState) report(r LoadReport, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := slices.IndexFunc(s.mu.reports, func(o loadReport) bool { return o.Reporter == r.Reporter })
	switch {
	case known >= 0 && s.mu.reports[known].Stamp >= r.Stamp:
		return
	case known >= 0:
		s.mu.reports = slices.Delete(s.mu.reports, known, known+1)
	case len(s.mu.reports) >= maxReporters:
		s.mu.reports = slices.Delete(s.mu.reports, 0, 1) // they are in the order in which they were heard
	}
	s.mu.reports = append(s.mu.reports, loadReport{r, now})
	s.computeLocked(now)
}

// PoolStats are one pool's counts since the Limiter was made, on this node.
type PoolStats struct {
	Domain, Name string
	// Admitted and Denied are checks that the pool admitted and denied, those that only read included.
	Admitted, Denied uint64
	// Load is the load now, 0 to 1, and Reporters the number of its reports.
	Load      float64
	Reporters int
}

// poolStats returns the counts of all pools, sorted.
func (b *activeRules) poolStats(now time.Duration) []PoolStats {
	out := make([]PoolStats, 0, len(b.pools))
	for p, s := range b.pools {
		st := PoolStats{Domain: p.Domain, Name: p.Name, Admitted: s.admitted.Load(), Denied: s.denied.Load(), Load: s.at(now).load}
		s.mu.Lock()
		st.Reporters = len(s.mu.reports)
		s.mu.Unlock()
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b PoolStats) int { return ruleName{a.Domain, a.Name}.compare(ruleName{b.Domain, b.Name}) })
	return out
}

// LoadReport is a service's report of its load for a pool.
type LoadReport struct {
	Domain, Pool string
	// Reporter is the service's name, at most MaxText bytes; its newest report counts. Those without a name are one.
	Reporter string
	// Load is 0 (idle) to 1 (as much as it can bear).
	Load float64
	// Stamp orders the reports of one reporter to all nodes: the Unix time in ns of the node that took it. Callers leave it
	// 0.
	Stamp int64
}

// PoolLoad is the load of a pool on this node.
type PoolLoad struct {
	// Load is the highest of the reports that count, 0 to 1.
	Load float64
	// Expires is how long a report counts.
	Expires time.Duration
}

// ReportLoad implements Service.
func (l *Limiter) ReportLoad(_ context.Context, r LoadReport) (PoolLoad, error) {
	if fault := textError(r.Reporter, true); fault != "" {
		return PoolLoad{}, &Error{Code: Invalid, Field: "reporter", Message: fault}
	}
	if !(r.Load >= 0 && r.Load <= 1) { // a NaN is neither
		return PoolLoad{}, &Error{Code: Invalid, Field: "load", Message: fmt.Sprintf("%v; want 0 to 1", r.Load)}
	}
	active := l.rules.Load()
	pool := active.pool(r.Domain, r.Pool)
	switch {
	case pool == nil:
		return PoolLoad{}, &Error{Code: NotFound, Field: "pool", Message: fmt.Sprintf("the domain %q has no pool %q", r.Domain, r.Pool)}
	case !pool.FollowsLoad:
		return PoolLoad{}, &Error{Code: Rejected, Field: "pool", Message: fmt.Sprintf("pool %q follows no load; give it one in the rules", r.Pool)}
	}
	r.Stamp = time.Now().UnixNano()
	l.TakeLoad(r)
	l.config.Cluster.SpreadLoad(r)
	return PoolLoad{Load: active.pools[pool].at(l.config.Clock()).load, Expires: pool.Expires}, nil
}

// TakeLoad takes a report from another node. It ignores invalid reports, and those of unknown pools.
func (l *Limiter) TakeLoad(r LoadReport) {
	active := l.rules.Load()
	pool := active.pool(r.Domain, r.Pool)
	if pool == nil || !pool.FollowsLoad || !(r.Load >= 0 && r.Load <= 1) || len(r.Reporter) > MaxText {
		return
	}
	active.pools[pool].report(r, l.config.Clock())
}
