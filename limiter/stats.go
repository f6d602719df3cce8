package limiter

import (
	"sync/atomic"

	"github.com/sluice-project/sluice/internal/timing"
	"github.com/sluice-project/sluice/rules"
)

// Stats are counts since the Limiter was made, of checks of every verb.
type Stats struct {
	// Calls are calls of Check and Reset, refused ones too.
	Calls uint64
	// Every check is counted once: as Allowed (Shadowed ones not among them),
	// Denied, Shadowed, or in Errors by code.
	Allowed, Denied, Shadowed uint64
	Errors                    map[Code]uint64
	// Rules are the same counts for each rule in force, sorted by domain and name.
	// They outlive reloads that keep the name.
	Rules []RuleStats
	// Unmatched are the checks that no rule matches, by domain: the domains of the rules in force, and
	// UnknownDomains for all others together. A check with its own limits is not among them.
	Unmatched map[string]uint64
	// Descriptors are the same counts for the descriptors of rules with detailed_metric or value_to_metric, by their names in
	// metrics: at most MaxDescriptorStats, and OtherDescriptors of each domain. They begin anew when the rules change.
	Descriptors []RuleStats
	// Pools are the pools of the rules in force, sorted by domain and name.
	Pools []PoolStats
	// Latency is that of calls of Check that were decided, Doors the same for each door.
	Latency timing.Snapshot
	Doors   []DoorLatency
}

// RuleStats are the counts of one rule or descriptor.
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
// and name share theirs. The maps never change.
type ruleCounts struct {
	byRule map[*rules.Rule]*counts
	byName map[ruleName]*counts
}

// newRuleCounts returns counts for set, which may be nil, that go on from those
// of the set it replaces.
func newRuleCounts(set *rules.Set, before ruleCounts) ruleCounts {
	c := ruleCounts{byRule: make(map[*rules.Rule]*counts), byName: make(map[ruleName]*counts)}
	if set == nil {
		return c
	}
	for _, r := range set.Rules() {
		name := ruleName{r.Domain, r.Name}
		n := c.byName[name]
		if n == nil {
			if n = before.byName[name]; n == nil {
				n = new(counts)
			}
			c.byName[name] = n
		}
		c.byRule[r] = n
	}
	return c
}

func (c ruleCounts) snapshot() []RuleStats { return statsOf(c.byName) }
