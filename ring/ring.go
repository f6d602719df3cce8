// Package ring turns a set of members into an immutable table that says which
// member should hold each partition, and compares such tables.
//
// It decides placement only. Who holds a partition now, who is a member and when
// a table is built is for others. It has no goroutines, does no I/O and reads no
// clock; every function may be called from any goroutine.
package ring

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Table says who should hold each partition. It is immutable. Build makes one;
// the zero Table has no partitions and no members.
type Table struct {
	members []string
	owners  []uint16 // index into members, by partition; unused without members
	owned   []int    // partitions per member, by index into members
	hash    uint64
}

// Partitions returns the number of partitions.
func (t *Table) Partitions() int { return len(t.owners) }

// Members returns the members, sorted. Do not change it.
func (t *Table) Members() []string { return t.members }

// OwnerIndex returns the owner of a partition as an index into Members, or -1 if
// the table has no members or no such partition.
func (t *Table) OwnerIndex(partition int) int {
	if uint(partition) >= uint(len(t.owners)) || len(t.members) == 0 {
		return -1
	}
	return int(t.owners[partition])
}

// Owner returns the name of the member that should hold a partition, or "" if
// the table has no members or no such partition.
func (t *Table) Owner(partition int) string {
	i := t.OwnerIndex(partition)
	if i < 0 {
		return ""
	}
	return t.members[i]
}

// Hash identifies the table: tables with the same members and the same owners
// have equal hashes, on every machine and in every run.
func (t *Table) Hash() uint64 { return t.hash }

// Owned returns how many partitions the member should hold; 0 if it is not in
// the table.
func (t *Table) Owned(member string) int {
	i, ok := slices.BinarySearch(t.members, member)
	if !ok {
		return 0
	}
	return t.owned[i]
}

// fingerprint computes Hash. Lengths precede the parts so that no two tables
// write the same bytes.
func (t *Table) fingerprint() uint64 {
	b := make([]byte, 0, 16*len(t.members)+2*len(t.owners)+8)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.members)))
	for _, m := range t.members {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(m)))
		b = append(b, m...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.owners)))
	for _, o := range t.owners {
		b = binary.LittleEndian.AppendUint16(b, o)
	}
	return xxhash.Sum64(b)
}
