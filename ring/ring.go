package ring

// Config places partitions on members. All nodes of a cluster must agree on it.
type Config struct {
	// Partitions defaults to 1021, Replication (points per member) to 400, Load
	// (the most of the average a member may own, as a ratio) to 1.10.
	Partitions  int
	Replication int
	Load        float64
}

// Table says who should hold each partition. It is immutable.
type Table struct {
	members []string
	owners  []uint16
}

// Build places partitions on members, whose order does not matter: equal sets
// give equal tables. No members give a table whose Owner is always "".
func Build(c Config, members []string) (*Table, error) { panic("seam") }

// Partitions returns the number of partitions.
func (t *Table) Partitions() int { return len(t.owners) }

// Members returns the members, sorted. Do not change it.
func (t *Table) Members() []string { return t.members }

// OwnerIndex returns the owner of a partition as an index into Members, or -1.
func (t *Table) OwnerIndex(partition int) int { panic("seam") }

// Owner returns the owner's name, or "".
func (t *Table) Owner(partition int) string { panic("seam") }

// Hash identifies the table: equal tables have equal hashes.
func (t *Table) Hash() uint64 { panic("seam") }

// Owned returns how many partitions member owns.
func (t *Table) Owned(member string) int { panic("seam") }

// Move is one partition that changes its owner.
type Move struct {
	Partition int
	From, To  string
}

// Diff lists the partitions whose owner differs between two tables of one Config.
func Diff(from, to *Table) []Move { panic("seam") }
