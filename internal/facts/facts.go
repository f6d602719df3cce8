// Package facts has what nodes tell each other about themselves for people to look at: counts, standing, what is known
// of a key. They are values; who gathers them, and who shows them, is for others to say.
package facts

import "time"

// Counts are checks by result. All are the number since the node was started, or within a Slot's time.
type Counts struct{ Allowed, Denied, Shadowed, Failed uint64 }

// Sum returns how many checks there were.
func (c Counts) Sum() uint64 { return c.Allowed + c.Denied + c.Shadowed + c.Failed }

// Plus returns c and d together.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Allowed + d.Allowed, c.Denied + d.Denied, c.Shadowed + d.Shadowed, c.Failed + d.Failed}
}

// Minus returns what c has more than before: of counts that have begun anew, all of them.
func (c Counts) Minus(before Counts) Counts {
	less := func(a, b uint64) uint64 {
		if a < b {
			return a
		}
		return a - b
	}
	return Counts{
		less(c.Allowed, before.Allowed), less(c.Denied, before.Denied),
		less(c.Shadowed, before.Shadowed), less(c.Failed, before.Failed),
	}
}

// History is made of Slots slots of SlotTime each. Slot n is of the Unix time from n·SlotTime on.
const (
	SlotTime = 5 * time.Second
	Slots    = 60
)

// MaxRules is how many rules a node tells of: those with the most checks. MaxHistories is how many of them, and of those
// kept, have a history.
const (
	MaxRules     = 512
	MaxHistories = 512
)

// Node is what a node tells of itself.
type Node struct {
	// Name and Boot are set by who gathers.
	Name, Boot string
	// Rules is a hash of the rules in force: equal where they are. Empty for none.
	Rules string
	// MayDecide: it has quorum to decide; if not, Reason says why.
	MayDecide bool
	Reason    string
	Holdings  Holdings
	// All are the checks of all rules, and of none.
	All     Counts
	Latency Latency
	// ByRule has at most MaxRules, sorted by domain and name.
	ByRule []Rule
	// Slot is the newest slot of the histories, 0 if there are none.
	Slot int64
	// History is of all checks, as in a Rule.
	History []Counts
}

// Holdings are numbers of partitions, as of now: see limiter.Holdings.
type Holdings struct {
	Holding, Unprotected, BelowReplicas, HandingOver, Copies, Claims, Divergent, Lost int
}

// Latency is a histogram: see timing.Latency.
type Latency struct {
	Bounds []time.Duration
	Counts []uint64
	Sum    time.Duration
}

// Rule is what was counted by one rule.
type Rule struct {
	Domain, Name string
	Counts
	// History has the slots up to the node's Slot, the oldest first, at most Slots; empty where it was not asked for.
	History []Counts
}

// Key is what a node knows of a counter key.
type Key struct {
	// Node is set by who gathers.
	Node      string
	Partition int
	// Holds: it decides it. Copy: it has a copy of its partition, one that is Whole or is being filled.
	Holds, Copy, Whole bool
	// Gen is the generation under which it has the state, if it holds or has a copy.
	Gen uint64
	// Counted: there is a counter; where there is none, everything is free. Limits are how its limits stand, in the rule's order. Both
	// are told by who holds the key.
	Counted bool
	Limits  []Limit
	// Grants are those of the owner which have not ended, Granted the units of all of them.
	Grants  int
	Granted int64
	// Leased: it has a lease of the key, with LeaseLeft units unspent.
	Leased    bool
	LeaseLeft int64
	// Denies is for how much longer it denies the key from memory, 0 if it does not.
	Denies time.Duration
}

// Limit is how one limit of a key stands. Spent may be above Limit: the key is in debt, or within a soft margin. What is granted
// counts as spent. Limit and Remaining are int64's maximum for no limit.
type Limit struct {
	Limit, Spent, Remaining int64
	// ResetAfter is until all of it is free again if nothing more is spent.
	ResetAfter time.Duration
}
