package message

import "slices"

// Record is what a process keeps on disk of its part in the voter set. It acknowledges and votes at a version, and says that it
// has accepted a founding, only when the disk has it.
type Record struct {
	// Set is the newest version that it knows, zero if none.
	Set Set
	// Founding is the voter set that it has accepted of a founder and that may be in force, zero if none. Round is the founder's.
	Founding Set
	Round    uint64
	// Void are the IDs of foundings that it has promised to take no part in.
	Void []string
}

// Equal reports whether r and t say the same.
func (r Record) Equal(t Record) bool {
	return r.Set.Equal(t.Set) && r.Founding.Equal(t.Founding) && r.Round == t.Round && slices.Equal(r.Void, t.Void)
}
