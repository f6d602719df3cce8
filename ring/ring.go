// Package ring turns a set of members into an immutable table that says which
// member should hold each partition, and compares such tables.
//
// It decides placement only. Who holds a partition now, who is a member and when
// a table is built is for others. It has no goroutines, does no I/O and reads no
// clock; every function may be called from any goroutine.
package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/buraksezer/consistent"
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

// Placement numbers the way in which this package places partitions: library,
// hash, naming of the points on the ring, and the defaults below. It is raised
// only when one of them changes. Members advertise it, and members with
// different numbers reject each other: they would send keys to different owners.
const Placement = 1

// Defaults of Config. With them the fullest of 3 to 12 members owns at most 1.10
// of the average, rounded up. The emptiest depends on the names: at 7 members it
// mostly owns 0.85 to 0.95, now and then 0.75.
const (
	DefaultPartitions = 1021
	DefaultPoints     = 400
	DefaultLoad       = 1.10
)

// Bounds of Config.
const (
	MaxPartitions = 1 << 20
	MaxPoints     = 10_000
	MaxLoad       = 10.0
	// MaxMembers is what a table can hold: owners are stored in 16 bits.
	MaxMembers = math.MaxUint16
)

// Config places partitions on members. All nodes of a cluster must agree on it.
// The zero value stands for the defaults.
type Config struct {
	// Partitions is the number of slices of the key space, 1 to MaxPartitions.
	// Zero means DefaultPartitions. A prime spreads best.
	Partitions int
	// Points is the number of points each member has on the ring, 1 to
	// MaxPoints. Zero means DefaultPoints. More points spread more
	// evenly and take longer to build.
	Points int
	// Load is the most that one member may own, as a ratio of the average,
	// 1 to MaxLoad. Zero means DefaultLoad. It is rounded up to whole partitions.
	Load float64
}

// WithDefaults returns c with its zero fields set to the defaults.
func (c Config) WithDefaults() Config {
	if c.Partitions == 0 {
		c.Partitions = DefaultPartitions
	}
	if c.Points == 0 {
		c.Points = DefaultPoints
	}
	if c.Load == 0 {
		c.Load = DefaultLoad
	}
	return c
}

// Validate reports every field that is out of range, after the defaults. The
// library below does not check: it loops on a negative partition count and
// panics when the load leaves less room than there are partitions.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		errs = append(errs, fmt.Errorf("ring: Partitions is %d: want 1 to %d", c.Partitions, MaxPartitions))
	}
	if c.Points < 1 || c.Points > MaxPoints {
		errs = append(errs, fmt.Errorf("ring: Points is %d: want 1 to %d points per member", c.Points, MaxPoints))
	}
	// Written so that NaN fails too.
	if !(c.Load >= 1 && c.Load <= MaxLoad) {
		errs = append(errs, fmt.Errorf("ring: Load is %v: want 1 to %v times the average", c.Load, MaxLoad))
	}
	return errors.Join(errs...)
}

// Build places partitions on members, whose order does not matter: equal sets
// give equal tables. No members give a table whose Owner is always "".
//
// The algorithm is consistent hashing with bounded loads (Mirrokni, Thorup and
// Zadimoghaddam, 2016). Build rejects a Config out of range, an empty name, a
// name given twice, and more than MaxMembers members. With the defaults it takes
// 1 to 15 ms for 3 to 30 members.
func Build(c Config, members []string) (*Table, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	if len(members) > MaxMembers {
		return nil, fmt.Errorf("ring: %d members: at most %d fit in a table", len(members), MaxMembers)
	}
	sorted := slices.Sorted(slices.Values(members))
	for i, name := range sorted {
		if name == "" {
			return nil, fmt.Errorf("ring: a member has an empty name")
		}
		if i > 0 && name == sorted[i-1] {
			return nil, fmt.Errorf("ring: member %q is given twice: names must be unique", name)
		}
	}
	t := &Table{
		members: sorted,
		owners:  make([]uint16, c.Partitions),
		owned:   make([]int, len(sorted)),
	}
	if len(sorted) > 0 {
		place(c, t)
	}
	t.hash = t.fingerprint()
	return t, nil
}

// place fills in the owners of a table with at least one member. It always
// starts from an empty ring and never uses Add or Remove, whose result depends
// on what came before.
func place(c Config, t *Table) {
	points := make([]consistent.Member, len(t.members))
	index := make(map[string]uint16, len(t.members))
	for i, name := range t.members {
		points[i] = point(name)
		index[name] = uint16(i)
	}
	ring := consistent.New(points, consistent.Config{
		Hasher:            hasher{},
		PartitionCount:    c.Partitions,
		ReplicationFactor: c.Points,
		Load:              c.Load,
	})
	for p := range t.owners {
		i := index[ring.GetPartitionOwner(p).String()]
		t.owners[p] = i
		t.owned[i]++
	}
}

// point is a member as the library sees it. The library hashes the number of the
// point, a colon and this name, in that order, so point 1 of pod-11 and point 11
// of pod-1 differ, and no name needs a terminator.
type point string

func (p point) String() string { return string(p) }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }
