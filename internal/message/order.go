package message

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/bucket"
)

// Compare orders processes by name, then boot ID.
func (p Peer) Compare(q Peer) int {
	return cmp.Or(strings.Compare(p.Name, q.Name), strings.Compare(p.Boot, q.Boot))
}

// Epoch orders the owners of a partition over time: by generation, then boot ID. The zero Epoch is before all.
type Epoch struct {
	Gen  uint64 `cbor:"1,keyasint,omitempty"`
	Boot string `cbor:"2,keyasint,omitempty"`
}

// Handoffs is the number of low bits of a generation that count handoffs since the last claim; the bits above count claims.
// So a claim outranks every handoff before it, even ones that the claimer never learned of.
const Handoffs = 20

// maxGen is above every valid generation.
const maxGen = 1 << 62

// Sane reports whether e is plausible.
func (e Epoch) Sane() bool { return e.Gen < maxGen }

// NextClaim returns the generation of a claim that follows gen.
func NextClaim(gen uint64) uint64 { return (gen>>Handoffs + 1) << Handoffs }

// Compare returns -1, 0 or 1.
func (e Epoch) Compare(f Epoch) int {
	return cmp.Or(cmp.Compare(e.Gen, f.Gen), strings.Compare(e.Boot, f.Boot))
}

// Claims returns the number of claims up to e.
func (e Epoch) Claims() uint64 { return e.Gen >> Handoffs }

// Less reports whether e is before f.
func (e Epoch) Less(f Epoch) bool { return e.Compare(f) < 0 }

// Mark is a point in a partition's history: the change numbered Seq under Epoch.
type Mark struct {
	Epoch Epoch  `cbor:"1,keyasint,omitzero"`
	Seq   uint64 `cbor:"2,keyasint,omitempty"`
}

// Compare orders marks by epoch, then by seq.
func (m Mark) Compare(n Mark) int { return cmp.Or(m.Epoch.Compare(n.Epoch), cmp.Compare(m.Seq, n.Seq)) }

// Ballot orders proposals for one version of the voter set.
type Ballot struct {
	Round uint64 `cbor:"1,keyasint,omitempty"`
	Boot  string `cbor:"2,keyasint,omitempty"`
}

// Compare returns -1, 0 or 1.
func (b Ballot) Compare(c Ballot) int {
	return cmp.Or(cmp.Compare(b.Round, c.Round), strings.Compare(b.Boot, c.Boot))
}

// Set is one version of the voter set. The zero Set means none.
type Set struct {
	// ID is the cluster ID: the boot ID of the process that founded the set.
	ID      string   `cbor:"1,keyasint,omitempty"`
	Version uint64   `cbor:"2,keyasint,omitempty"` // from 1
	Members []string `cbor:"3,keyasint,omitempty"` // names, sorted
	// Roles are those that others play than the members named so, or have played, sorted by Of. Only a set of regions has any.
	Roles []Role `cbor:"4,keyasint,omitempty"`
}

// Role says that region At has the counters of keys whose home is region Of.
type Role struct {
	Of string `cbor:"1,keyasint,omitempty"`
	At string `cbor:"2,keyasint,omitempty"`
	// By identifies the attempt of a region to pass the role on, with its counters. Empty: the region was removed, and At lacks them.
	By string `cbor:"3,keyasint,omitempty"`
	// Age is Played.Age when the attempt began.
	Age int64 `cbor:"4,keyasint,omitempty"`
}

// Compare orders roles by Of.
func (r Role) Compare(o Role) int { return strings.Compare(r.Of, o.Of) }

// CompareAll orders roles by all that they have.
func (r Role) CompareAll(o Role) int {
	return cmp.Or(r.Compare(o), strings.Compare(r.At, o.At), strings.Compare(r.By, o.By), cmp.Compare(r.Age, o.Age))
}

// Plays returns which region plays the role of.
func (s Set) Plays(of string) string {
	r, _ := s.Role(of)
	return r.At
}

// Role returns the role of, and whether another region has ever had it.
func (s Set) Role(of string) (r Role, moved bool) {
	if i, ok := slices.BinarySearchFunc(s.Roles, Role{Of: of}, Role.Compare); ok {
		return s.Roles[i], true
	}
	return Role{Of: of, At: of}, false
}

// Zero reports whether s means no set.
func (s Set) Zero() bool { return s.Version == 0 }

// Equal reports whether s and t are the same version with the same members and roles.
func (s Set) Equal(t Set) bool {
	return s.ID == t.ID && s.Version == t.Version && slices.Equal(s.Members, t.Members) && slices.Equal(s.Roles, t.Roles)
}

// Has reports whether name is a voter.
func (s Set) Has(name string) bool {
	_, ok := slices.BinarySearch(s.Members, name)
	return ok
}

// Majority returns the size of the smallest majority.
func (s Set) Majority() int { return len(s.Members)/2 + 1 }

// Outranks reports whether a process that knows t should adopt s: a later version of the same cluster ID; of two cluster
// IDs the larger set, then the greater ID. It is a strict order.
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

// Record is the voter set state that a process keeps on disk. It acknowledges and votes at a version, and confirms a
// founding, only once that is on disk.
type Record struct {
	// Set is the newest version that it knows, zero if none.
	Set Set `cbor:"1,keyasint,omitzero"`
	// Founding is the accepted founding that may be in force, zero if none. Round is the founder's round.
	Founding Set    `cbor:"2,keyasint,omitzero"`
	Round    uint64 `cbor:"3,keyasint,omitempty"`
	// Void are the foundings that the process has promised to take no part in.
	Void []string `cbor:"4,keyasint,omitempty"`
}

// Equal reports whether r and t have the same content.
func (r Record) Equal(t Record) bool {
	return r.Set.Equal(t.Set) && r.Founding.Equal(t.Founding) && r.Round == t.Round && slices.Equal(r.Void, t.Void)
}

// Report tells an owner how much the sender has admitted by itself on its keys. Lines are sums, so a Report may be lost,
// duplicated and late.
type Report struct {
	// Sent is the sender's clock (ns); the Account returns it.
	Sent  int64  `cbor:"1,keyasint,omitempty"`
	Lines []Line `cbor:"2,keyasint,omitempty"`
}

// Line is one key of a Report.
type Line struct {
	Key    bucket.Key     `cbor:"1,keyasint,omitzero"`
	Limits *bucket.Limits `cbor:"-"`
	// Ends is the end (Unix ns, owner's clock) of the window of Sum; 0 if the sender does not know the window yet and has
	// admitted nothing.
	Ends int64 `cbor:"2,keyasint,omitempty"`
	// Sum is everything the sender has admitted in that window, at least 0. It never decreases.
	Sum int64 `cbor:"3,keyasint,omitempty"`
	// Unreplicated is as in bucket.Request.
	Unreplicated bool `cbor:"4,keyasint,omitempty"`
}

// Account answers a Report for the keys that its sender owns.
type Account struct {
	// Sent is that of the Report. Clock is the sender's Unix time (ns).
	Sent  int64      `cbor:"1,keyasint,omitempty"`
	Clock int64      `cbor:"2,keyasint,omitempty"`
	Lines []Standing `cbor:"3,keyasint,omitempty"`
}

// Standing is the state of one key after a Report.
type Standing struct {
	Key bucket.Key `cbor:"1,keyasint,omitzero"`
	// Ends is the end of the current window (Unix ns).
	Ends int64 `cbor:"2,keyasint,omitempty"`
	// Known is the highest sum of the reporter that the counter has in this window. Remaining is what is left of the limit.
	Known     int64 `cbor:"3,keyasint,omitempty"`
	Remaining int64 `cbor:"4,keyasint,omitempty"`
	// Reporters is the number of processes that share Remaining, at least 1.
	Reporters int `cbor:"5,keyasint,omitempty"`
}
