// Package local is a rate limiter in one process, without a server: for small services, for development, for tests, and as
// a fallback that knows the rules while no node responds (limit.FailTo).
//
// It reads the rule files of nodes, and decides as a single node does. What rules say about other nodes (consistency,
// replication, on_failure, on_partition, on_lost_state) has no effect. Nobody reports a load to its pools, so a pool that
// follows one has its unreported load. It logs nothing: a check that no rule matches has limit.SourceUnmatched and no Rule.
//
// Counters are in memory and end with the process. It starts no goroutine, and needs no Close.
package local

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/rules"
)

// Limiter decides checks by rules, in this process. Make it with New. It is safe for concurrent use.
type Limiter struct {
	config
	table *bucket.Table
	set   atomic.Pointer[rules.Set]
	seeds [2]maphash.Seed // of the halves of counter keys
	// As on nodes, setting the wall clock neither ends windows nor holds them up.
	began time.Time
	epoch int64 // Unix time in ns of began

	reload sync.Mutex
	inline inlineLimits
	named  namedSpendings
}

var _ limit.Limiter = (*Limiter)(nil)

type config struct {
	memory       int64
	rules        rules.Options
	knownDomains bool
}

// Option changes a Limiter.
type Option func(*config) error

// Bounds of WithMemory, in bytes.
const (
	leastMemory   = 1 << 20
	defaultMemory = 64 << 20
)

// WithMemory bounds the memory of counters, in bytes: 1 MiB or more, by default 64 MiB. A counter takes about 70 bytes, more
// with several limits or a sliding_log. Beyond the bound, those that were not used for longest are forgotten.
func WithMemory(bytes int64) Option {
	return func(c *config) error {
		if bytes < leastMemory {
			return fmt.Errorf("WithMemory: %d bytes; want at least %d", bytes, leastMemory)
		}
		c.memory = bytes
		return nil
	}
}

// WithMergedDomains lets several rule files describe one domain, as --merge-domains of nodes.
func WithMergedDomains() Option {
	return func(c *config) error { c.rules.MergeDomains = true; return nil }
}

// WithKnownDomainsOnly makes checks of a domain without rules a limit.ErrUnknownDomain, as --unknown-domain=error of nodes.
// By default they are allowed.
func WithKnownDomainsOnly() Option {
	return func(c *config) error { c.knownDomains = true; return nil }
}

// shards are more than the goroutines that check at once, as each has a lock.
const shards = 64

// New returns a Limiter by the rules. Its error names the file and the line.
func New(r Rules, opts ...Option) (*Limiter, error) {
	l := &Limiter{
		config: config{memory: defaultMemory},
		seeds:  [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		began:  time.Now(),
	}
	l.epoch = l.began.UnixNano()
	for _, f := range opts {
		if err := f(&l.config); err != nil {
			return nil, fmt.Errorf("sluice: local: %w", err)
		}
	}
	table, err := bucket.NewTable(bucket.Config{Shards: shards, MaxBytes: l.memory, MaxEntries: int(l.memory / bucket.LeastBytes)})
	if err != nil {
		return nil, fmt.Errorf("sluice: local: %w", err)
	}
	l.table = table
	return l, l.Reload(r)
}

// Reload replaces the rules. Counters stay: those of a changed rule have the new limits from the next check on. After an
// error the rules are as before.
func (l *Limiter) Reload(r Rules) error {
	set, err := r.parse(l.rules)
	if err != nil {
		return fmt.Errorf("sluice: local: %w", err)
	}
	l.reload.Lock()
	defer l.reload.Unlock()
	l.table.SetDomains(set.MaxKeys())
	l.set.Store(set)
	return nil
}

// Key returns the counter of a domain and a descriptor, given as keys and values in turns.
func (l *Limiter) Key(domain string, descriptor ...string) limit.Key {
	return limit.NewKey(l, domain, descriptor...)
}

func (l *Limiter) now() int64 { return l.epoch + int64(time.Since(l.began)) }

// Check decides one check. It does not use the context.
func (l *Limiter) Check(_ context.Context, c limit.Check) (limit.Decision, error) {
	var m matched
	if err := l.match(l.set.Load(), &c, &m); err != nil {
		return limit.Decision{}, err
	}
	l.decide(l.now(), &m)
	m.finish(false)
	return m.decision(), nil
}

// CheckEach decides 1 to 10,000 checks, each by itself. The error joins those of the checks, whose decisions are zero.
func (l *Limiter) CheckEach(ctx context.Context, checks ...limit.Check) ([]limit.Decision, error) {
	if err := validateCount(len(checks)); err != nil {
		return nil, err
	}
	decisions, errs := make([]limit.Decision, len(checks)), []error(nil)
	for i := range checks {
		d, err := l.Check(ctx, checks[i])
		if err != nil {
			errs = append(errs, at(i, err))
		}
		decisions[i] = d
	}
	return decisions, errors.Join(errs...)
}

// maxChecks is the most checks of one call, as nodes have it.
const maxChecks = 10_000

func validateCount(n int) error {
	switch {
	case n == 0:
		return limit.Invalid("checks", "empty; want 1 to 10,000 checks")
	case n > maxChecks:
		return limit.Invalid("checks", "more than 10,000 checks; split the call")
	}
	return nil
}

// at returns err with the index of the check that it is about.
func at(i int, err error) error {
	e, ok := errors.AsType[*limit.Error](err)
	if !ok {
		return err
	}
	in := *e
	in.Field = fmt.Sprintf("checks[%d].%s", i, e.Field)
	return &in
}
