package transport

import (
	"strconv"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/ring"
)

// Members is the cluster as one node sees it.
type Members struct {
	// Self is the name of the node that answers.
	Self string
	// Members are sorted by name, in any state.
	Members []Member
	// Ring is the ring table's hash, 16 hex digits: equal on nodes that agree.
	// It is empty before the first table.
	Ring string
	// Partitions is the ring table's number of partitions.
	Partitions int
}

// Member is one member and its share of the ring.
type Member struct {
	member.Member
	// Partitions is how many the ring gives to it.
	Partitions int
}

// membersOf joins a view and a ring table; either may be nil.
func membersOf(v *member.View, t *ring.Table) Members {
	var m Members
	if t != nil {
		m.Ring = hex16(t.Hash())
		m.Partitions = t.Partitions()
	}
	if v == nil {
		return m
	}
	m.Self = v.Self
	m.Members = make([]Member, len(v.Members))
	for i, one := range v.Members {
		m.Members[i].Member = one
		if t != nil {
			m.Members[i].Partitions = t.Owned(one.Name)
		}
	}
	return m
}

// hex16 is h as 16 hex digits.
func hex16(h uint64) string {
	s := strconv.FormatUint(h, 16)
	return "0000000000000000"[len(s):] + s
}
