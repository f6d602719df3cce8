package bucket

// Config sizes a Table.
type Config struct {
	// Shards is the number of shards; a cluster uses its partition count.
	Shards int
	// MaxEntries caps the counters held. 0 means 10,000,000.
	MaxEntries int
	// MaxBytes caps their approximate memory. 0 means no cap by memory.
	MaxBytes int64
}

// Table holds counters in shards, each with a lock and an LRU list. It is safe
// for concurrent use.
type Table struct{}

// NewTable returns an empty table, or an error that names the wrong field.
func NewTable(c Config) (*Table, error) { panic("seam") }

// Do decides r at now (Unix time in ns) on r.Key's counter, atomically over all its limits.
func (t *Table) Do(now int64, r *Request) Decision { panic("seam") }

// Receipt remembers one charge so that it can be undone.
type Receipt struct{}

// DoHeld is Do, and fills rc when it charged; it reports whether it did.
func (t *Table) DoHeld(now int64, r *Request, rc *Receipt) (d Decision, charged bool) { panic("seam") }

// GiveBack undoes the charge in rc as far as it still counts: never into a
// newer window, never more than has not yet leaked or refilled.
func (t *Table) GiveBack(now int64, rc *Receipt) { panic("seam") }

// DropShard forgets every counter of the shard and returns how many there were.
func (t *Table) DropShard(shard int) int { panic("seam") }

// Sweep removes the shard's counters that are wholly free again and returns how many.
func (t *Table) Sweep(now int64, shard int) int { panic("seam") }

// Stats counts since the table was made; Entries and Bytes are now.
type Stats struct {
	Entries, Bytes           int64
	Expired, EvictedLive     uint64
	EvictedExpired, Inserted uint64
}

// Stats returns the table's counts.
func (t *Table) Stats() Stats { panic("seam") }
