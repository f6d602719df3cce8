package transport

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-project/sluice/rules"
)

// Stats are counts since the Service was made, of checks of every verb.
type Stats struct {
	// Calls are calls of Check and Reset, refused ones too.
	Calls uint64
	// Every check is counted once: as Allowed (Shadowed ones not among them),
	// Denied, Shadowed, or in Errors by code.
	Allowed, Denied, Shadowed uint64
	Errors                    map[Code]uint64
	// Rules are the same counts by rule, sorted by domain and name: the rules in
	// force that have been asked since they, or their namesakes before them, came.
	Rules []RuleStats
	// Latency is that of calls of Check that were decided.
	Latency Latency
}

// RuleStats are the counts of one rule.
type RuleStats struct {
	Domain, Name                      string
	Allowed, Denied, Shadowed, Errors uint64
}

// tally counts checks by result.
type tally struct{ allowed, denied, shadowed, errors uint64 }

func (t *tally) add(r *Result) {
	switch {
	case r.Err != nil:
		t.errors++
	case r.Shadowed:
		t.shadowed++
	case r.Allowed:
		t.allowed++
	default:
		t.denied++
	}
}

// counts is a tally that many add to.
type counts struct{ allowed, denied, shadowed, errors atomic.Uint64 }

func (c *counts) add(t tally) {
	addIf(&c.allowed, t.allowed)
	addIf(&c.denied, t.denied)
	addIf(&c.shadowed, t.shadowed)
	addIf(&c.errors, t.errors)
}

// addIf spares the cache line when there is nothing to add.
func addIf(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

// ruleName is what a rule's counts survive a reload under.
type ruleName struct{ domain, name string }

// ruleCounts are the counts of the rules of one rules.Set. Rules of one domain
// and name share theirs. It is safe for concurrent use.
type ruleCounts struct {
	// byRule maps *rules.Rule to *counts and is all that a known rule needs.
	byRule sync.Map
	mu     struct {
		sync.Mutex
		byName map[ruleName]*counts
		// before are those of the set before, for rules not asked since.
		before map[ruleName]*counts
	}
}

// newRuleCounts returns the counts of a set that replaces the one of before,
// which may be nil.
func newRuleCounts(before *ruleCounts) *ruleCounts {
	c := new(ruleCounts)
	c.mu.byName = make(map[ruleName]*counts)
	if before != nil {
		before.mu.Lock()
		defer before.mu.Unlock()
		c.mu.before = before.mu.byName
	}
	return c
}

func (c *ruleCounts) of(r *rules.Rule) *counts {
	if found, ok := c.byRule.Load(r); ok {
		return found.(*counts)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := ruleName{r.Domain, r.Name}
	n, ok := c.mu.byName[name]
	if !ok {
		if n, ok = c.mu.before[name]; !ok {
			n = new(counts)
		}
		c.mu.byName[name] = n
	}
	c.byRule.Store(r, n)
	return n
}

func (c *ruleCounts) snapshot() []RuleStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]RuleStats, 0, len(c.mu.byName))
	for name, n := range c.mu.byName {
		list = append(list, RuleStats{
			Domain: name.domain, Name: name.name,
			Allowed: n.allowed.Load(), Denied: n.denied.Load(), Shadowed: n.shadowed.Load(), Errors: n.errors.Load(),
		})
	}
	slices.SortFunc(list, func(a, b RuleStats) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	return list
}
