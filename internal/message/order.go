package message

import (
	"cmp"
	"slices"
	"strings"
)

// Epoch orders the holders of a partition over time: the higher generation wins,
// then the boot id. The zero Epoch is before all.
type Epoch struct {
	Gen  uint64
	Boot string
}

// Handoffs is how many low bits of a generation count hand-offs since the last
// claim; the bits above count claims. So a claim outranks every hand-off of the
// history that it ends, also those that it never heard of.
const Handoffs = 20

// maxGen is higher than any generation can honestly get.
const maxGen = 1 << 62

// Sane reports whether e can be somebody's epoch.
func (e Epoch) Sane() bool { return e.Gen < maxGen }

// NextClaim returns the generation of a claim that ends the history of gen.
func NextClaim(gen uint64) uint64 { return (gen>>Handoffs + 1) << Handoffs }

// Compare returns -1, 0 or 1.
func (e Epoch) Compare(f Epoch) int {
	if c := cmp.Compare(e.Gen, f.Gen); c != 0 {
		return c
	}
	return strings.Compare(e.Boot, f.Boot)
}

// Claims returns how many claims led to e.
func (e Epoch) Claims() uint64 { return e.Gen >> Handoffs }

// Less reports whether e is before f.
func (e Epoch) Less(f Epoch) bool { return e.Compare(f) < 0 }

// Mark is a point in a partition's history: the change numbered Seq under Epoch.
type Mark struct {
	Epoch Epoch
	Seq   uint64
}

// Compare orders marks by epoch, then by seq.
func (m Mark) Compare(n Mark) int {
	if c := m.Epoch.Compare(n.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(m.Seq, n.Seq)
}

// Ballot orders proposals for one version of the stable set.
type Ballot struct {
	Round uint64
	Boot  string
}

// Compare returns -1, 0 or 1.
func (b Ballot) Compare(c Ballot) int {
	if c := cmp.Compare(b.Round, c.Round); c != 0 {
		return c
	}
	return strings.Compare(b.Boot, c.Boot)
}

// Set is one version of the stable set. The zero Set is none.
type Set struct {
	// ID names the lineage: the boot id of the process that founded it.
	ID      string
	Version uint64   // from 1
	Members []string // names, sorted
}

// Zero reports whether s is none.
func (s Set) Zero() bool { return s.Version == 0 }

// Equal reports whether s and t are one version with the same members.
func (s Set) Equal(t Set) bool {
	return s.ID == t.ID && s.Version == t.Version && slices.Equal(s.Members, t.Members)
}

// Has reports whether name is counted.
func (s Set) Has(name string) bool {
	_, ok := slices.BinarySearch(s.Members, name)
	return ok
}

// Majority returns the least number of members that is more than half.
func (s Set) Majority() int { return len(s.Members)/2 + 1 }

// Outranks reports whether a process that knows t should take s in its place: a
// later version of the same lineage; of two lineages the larger set, then the
// greater ID. It is a strict order.
func (s Set) Outranks(t Set) bool {
	switch {
	case s.Zero() || t.Zero():
		return !s.Zero() && t.Zero()
	case s.ID == t.ID:
		return s.Version > t.Version
	case len(s.Members) != len(t.Members):
		return len(s.Members) > len(t.Members)
	}
	return s.ID > t.ID
}
