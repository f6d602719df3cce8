package message

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/bucket"
)

// Epoch orders the owners of a partition over time: the higher generation wins,
// then the boot id. The zero Epoch is before all.
type Epoch struct {
	Gen  uint64 `cbor:"1,keyasint,omitempty"`
	Boot string `cbor:"2,keyasint,omitempty"`
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
	Epoch Epoch  `cbor:"1,keyasint,omitzero"`
	Seq   uint64 `cbor:"2,keyasint,omitempty"`
}

// Compare orders marks by epoch, then by seq.
func (m Mark) Compare(n Mark) int {
	if c := m.Epoch.Compare(n.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(m.Seq, n.Seq)
}

// Ballot orders proposals for one version of the voter set.
type Ballot struct {
	Round uint64 `cbor:"1,keyasint,omitempty"`
	Boot  string `cbor:"2,keyasint,omitempty"`
}

// Compare returns -1, 0 or 1.
func (b Ballot) Compare(c Ballot) int {
	if c := cmp.Compare(b.Round, c.Round); c != 0 {
		return c
	}
	return strings.Compare(b.Boot, c.Boot)
}

// Set is one version of the voter set. The zero Set is none.
type Set struct {
	// ID names the cluster ID: the boot id of the process that founded it.
	ID      string   `cbor:"1,keyasint,omitempty"`
	Version uint64   `cbor:"2,keyasint,omitempty"` // from 1
	Members []string `cbor:"3,keyasint,omitempty"` // names, sorted
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
// later version of the same cluster ID; of two cluster IDs the larger set, then the
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

// Record is what a process keeps on disk of its part in the voter set. It acknowledges and votes at a version, and says that it
// has accepted a founding, only when the disk has it.
type Record struct {
	// Set is the newest version that it knows, zero if none.
	Set Set `cbor:"1,keyasint,omitzero"`
	// Founding is the voter set that it has accepted of a founder and that may be in force, zero if none. Round is the founder's.
	Founding Set    `cbor:"2,keyasint,omitzero"`
	Round    uint64 `cbor:"3,keyasint,omitempty"`
	// Void are the IDs of foundings that it has promised to take no part in.
	Void []string `cbor:"4,keyasint,omitempty"`
}

// Equal reports whether r and t say the same.
func (r Record) Equal(t Record) bool {
	return r.Set.Equal(t.Set) && r.Founding.Equal(t.Founding) && r.Round == t.Round && slices.Equal(r.Void, t.Void)
}

// Report says what the sender has admitted by itself of keys that the receiver holds. Its
// lines are sums, so it may be lost, doubled and late.
type Report struct {
	// Sent is the sender's clock (ns); the Account returns it.
	Sent  int64  `cbor:"1,keyasint,omitempty"`
	Lines []Line `cbor:"2,keyasint,omitempty"`
}

// Line is one key of a Report.
type Line struct {
	Key    bucket.Key     `cbor:"1,keyasint,omitzero"`
	Limits *bucket.Limits `cbor:"-"`
	// Ends is the end of the window that the sum belongs to, by the owner's clock (Unix ns); 0 if the sender
	// does not know the window yet, and has admitted nothing.
	Ends int64 `cbor:"2,keyasint,omitempty"`
	// Sum is all that the sending process has admitted in that window, at least 0. It never gets less.
	Sum int64 `cbor:"3,keyasint,omitempty"`
	// Transient is as in a bucket.Request.
	Transient bool `cbor:"4,keyasint,omitempty"`
}

// Account answers a Report, as far as the sender holds its keys.
type Account struct {
	// Sent is that of the Report, Clock the sender's Unix time (ns).
	Sent  int64      `cbor:"1,keyasint,omitempty"`
	Clock int64      `cbor:"2,keyasint,omitempty"`
	Lines []Standing `cbor:"3,keyasint,omitempty"`
}

// Standing is how one key stands after a Report.
type Standing struct {
	Key bucket.Key `cbor:"1,keyasint,omitzero"`
	// Ends is the end of the window that the sender is in (Unix ns).
	Ends int64 `cbor:"2,keyasint,omitempty"`
	// Known is the highest sum that the key's counter has of the reporter in this window, Remaining what is left of the limit then.
	Known     int64 `cbor:"3,keyasint,omitempty"`
	Remaining int64 `cbor:"4,keyasint,omitempty"`
	// Reporters is among how many processes that is to be shared, at least 1.
	Reporters int `cbor:"5,keyasint,omitempty"`
}
