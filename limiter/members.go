package limiter

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

// Members is the cluster as one node sees it.
type Members struct {
	// Self is the name of the node that answers.
	Self string
	// Members are sorted by name: whom gossip shows, in any state, and the Missing.
	Members []Member
	// Ring is the ring table's hash, 16 hex digits: equal on nodes that agree.
	// It is empty before the first table.
	Ring string
	// Partitions is the ring table's number of partitions.
	Partitions int
	// Set, MayDecide, Reason and Holdings are the node's own: see Overview.
	Set       StableSet
	MayDecide bool
	Reason    string
	Unreached []string
	Holdings  Holdings
	Clocks    Clocks
	LostRules []LostRule
}

// Member is one member, its share of the ring, and how it stands with the node that
// answers.
type Member struct {
	member.Member
	// Missing: the stable set counts it and gossip does not show it. Of the embedded
	// Member only Name is known.
	Missing bool
	// Partitions is how many the ring gives to it, Holds how many it holds as far as the
	// node knows.
	Partitions, Holds int
	// Counted: it is in the stable set.
	Counted bool
	// Lives: heard from just now. Silent is how long it has not been; negative if that
	// is not known.
	Lives  bool
	Silent time.Duration
	// Ahead is how far its clock is ahead; nil if that is not known.
	Ahead *time.Duration
}

// StateName is the member's own word about itself, or "missing".
func (m *Member) StateName() string {
	if m.Missing {
		return "missing"
	}
	return m.State.String()
}

// membersOf joins the parts of an overview.
func membersOf(o Overview) Members {
	m := Members{Set: o.Set, MayDecide: o.MayDecide, Reason: o.Reason, Unreached: o.Unreached, Holdings: o.Holdings, Clocks: o.Clocks, LostRules: o.LostRules}
	if o.Ring != nil {
		m.Ring = hex16(o.Ring.Hash())
		m.Partitions = o.Ring.Partitions()
	}
	shown := make(map[string]bool)
	if o.View != nil {
		m.Self = o.View.Self
		for _, one := range o.View.Members {
			shown[one.Name] = true
			m.Members = append(m.Members, Member{Member: one})
		}
	}
	for _, name := range o.Set.Members {
		if !shown[name] {
			m.Members = append(m.Members, Member{Member: member.Member{Name: name}, Missing: true})
		}
	}
	slices.SortFunc(m.Members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })

	type process struct{ name, boot string }
	standings := make(map[process]Standing, len(o.Standings))
	for _, s := range o.Standings {
		standings[process{s.Name, s.Boot}] = s
	}
	for i := range m.Members {
		one := &m.Members[i]
		_, one.Counted = slices.BinarySearch(o.Set.Members, one.Name)
		if o.Ring != nil {
			one.Partitions = o.Ring.Owned(one.Name)
		}
		one.Silent = -1
		// What is known of another run of the process does not count.
		if s, ok := standings[process{one.Name, one.Boot}]; ok {
			one.Lives, one.Silent, one.Holds, one.Ahead = s.Lives, s.Silent, s.Holds, s.Ahead
		}
		if one.Name == m.Self && !one.Missing {
			one.Lives, one.Silent = true, 0
		}
	}
	return m
}

// hex16 is h as 16 hex digits.
func hex16(h uint64) string {
	s := strconv.FormatUint(h, 16)
	return "0000000000000000"[len(s):] + s
}
