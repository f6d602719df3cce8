// Package bucket decides whether a key may spend a cost now. It has the limits, their algorithms, the counters of spent units,
// and the sharded, bounded table of counters.
//
// Which limits apply to a key (rules), which node decides (cluster) and how a decision is transmitted (transport) is up to
// others. It is pure: no I/O, no logging, no goroutine, and every call takes the time. The owner must call [Table.Sweep]
// periodically.
//
// A shard is also the unit that nodes hand to each other. It can be sealed, so that nothing is decided in it ([Table.Seal],
// [Table.Try]), it reports changes ([Table.Record], [Table.Drain]), and its counters are transferred as an [Image].
// cluster/handoff decides when a shard is sealed and where its counters are sent.
//
// Four principles hold for every algorithm:
//
//   - A counter has what was spent, never what is left. So a changed limit takes effect at the next check and admits nothing
//     extra.
//   - Arithmetic is on integers, exact to the nanosecond, and saturates at the ends of int64.
//   - The time of a counter never runs backwards: an earlier time is taken as that of its last use.
//   - A completely free counter equals no counter. Dropping it changes no later decision.
package bucket

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket/internal/offheap"
)

// Config configures a Table.
type Config struct {
	// Shards is the number of shards; a cluster uses its partition count.
	Shards int
	// MaxEntries caps the number of counters. 0 means 10,000,000.
	MaxEntries int
	// MaxBytes caps the approximate memory of counters and their limits. 0 means no cap.
	MaxBytes int64
	// MaxSets caps the sets of limits that counters refer to. 0 means DefaultMaxSets.
	MaxSets int
	// WhenFull decides about a new key at a cap.
	WhenFull WhenFull
}

// WhenFull is the policy for a key without a counter when there is no room for another.
type WhenFull uint8

const (
	// EvictOld makes room for it; see evict.go.
	EvictOld WhenFull = iota
	// DenyNew denies it, so that no counter that still counts is evicted. Charges and imported counters still make room.
	DenyNew
)

// Bounds and defaults of a Config.
const (
	MaxShards         = 1 << 20
	DefaultMaxEntries = 10_000_000
	// DefaultSettleWindow is that of a new Table, and MaxSettleWindow the longest; see SetSettleWindow.
	DefaultSettleWindow = 10 * time.Minute
	MaxSettleWindow     = 24 * time.Hour
)

func (c *Config) validate() error {
	switch {
	case c.Shards < 1 || c.Shards > MaxShards:
		return errors.New("shards: is out of range; use 1 to 1048576")
	case c.MaxEntries < 0:
		return errors.New("max_entries: is negative; use 0 for the default, or at least 1")
	case c.MaxBytes < 0:
		return errors.New("max_bytes: is negative; use 0 for no cap by memory, or at least 1")
	case c.MaxSets < 0 || c.MaxSets > MaxSets:
		return fmt.Errorf("max_sets: is out of range; use 0 for the default, or 1 to %d", MaxSets)
	case c.WhenFull > DenyNew:
		return errors.New("when_full: is unknown; use EvictOld or DenyNew")
	}
	return nil
}

// Table has counters in shards, each with a lock. It is safe for concurrent use. No operation holds two shard locks.
//
// A counter of one limit without a log takes LeastBytes as accounted, and about 67 bytes of memory (BenchmarkTableMemory), 80 with what a node needs besides: it is
// a record outside Go's heap (store.go), as are the blocks of counters that take more (side.go).
type Table struct {
	shards     []shard
	maxEntries int64
	maxBytes   int64
	maxSets    int64
	whenFull   WhenFull
	// settleWindow is in ns; see SetSettleWindow.
	settleWindow atomic.Int64
	held         atomic.Pointer[map[uint64]time.Duration] // see SetHeld
	// entries and bytes are sums over the shards; bytes includes setBytes, those of the sets of limits.
	entries, bytes, sets, setBytes atomic.Int64
	// accounts is locked under a shard's lock, never the other way round.
	accounts struct {
		sync.Mutex
		bySet  map[*Limits]*account
		byName map[string]*domain
		// named is the argument of SetDomains.
		named map[string]int64
	}
	// domains are all of accounts.byName, and those of others with counters. capped: some have a cap.
	domains atomic.Pointer[[]*domain]
	others  [otherDomains]domain
	// numbers finds an account by its number, which records have; freed are numbers without an account.
	numbers atomic.Pointer[[]*account]
	freed   []uint32
	arena   *offheap.Arena
	slabs   *slabs
	seed    maphash.Seed
	capped  atomic.Bool
	sharing atomic.Bool // further domains share accounts
	// changed has a bit for every shard whose journal has entries. Written under the shard's lock, read without.
	changed []atomic.Uint64
	// See Activated.
	activated chan struct{}
	// granted is the ID of the last grant.
	granted atomic.Uint64
	// next is the shard to evict from when the one that grew has nothing to evict.
	next                                           atomic.Uint64
	inserted, expired, evictedLive, evictedExpired atomic.Uint64
	deniedLost, deniedFull                         atomic.Uint64
}

// NewTable returns an empty table, or an error that names the invalid field.
func NewTable(c Config) (*Table, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	t := &Table{
		shards:     make([]shard, c.Shards),
		changed:    make([]atomic.Uint64, (c.Shards+63)/64),
		activated:  make(chan struct{}, 1),
		maxEntries: cmp.Or(int64(c.MaxEntries), DefaultMaxEntries),
		maxBytes:   cmp.Or(c.MaxBytes, math.MaxInt64),
		maxSets:    cmp.Or(int64(c.MaxSets), DefaultMaxSets),
		whenFull:   c.WhenFull,
		arena:      offheap.New(pageBytes, true),
		slabs:      newSlabs(),
		seed:       maphash.MakeSeed(),
	}
	for i := range t.others {
		t.others[i].name, t.others[i].shared = OtherDomains+strconv.Itoa(i), true
	}
	t.SetSettleWindow(DefaultSettleWindow)
	t.accounts.bySet, t.accounts.byName = make(map[*Limits]*account), make(map[string]*domain)
	t.listDomainsLocked()
	t.numbers.Store(new([]*account))
	for i := range t.shards {
		sh := &t.shards[i]
		sh.table, sh.number, sh.mu.journal = t, i, newJournal()
		sh.mu.store.arena, sh.mu.store.slabs = t.arena, t.slabs
	}
	return t, nil
}

// SetSettleWindow sets how long the outcomes of reservations that end from now on are remembered, up to MaxSettleWindow.
func (t *Table) SetSettleWindow(d time.Duration) {
	t.settleWindow.Store(int64(min(max(0, d), MaxSettleWindow)))
}

// Do decides r at now (Unix time in ns; see Correct) on r.Key's counter, atomically over all its limits.
func (t *Table) Do(now int64, r *Request) (d Decision) {
	t.decide(now, r, nil, false, &d)
	return d
}

// DoHeld is Do, and fills rc if it charged; charged reports whether it did.
func (t *Table) DoHeld(now int64, r *Request, rc *Receipt) (d Decision, charged bool) {
	t.decide(now, r, rc, false, &d)
	return d, rc.charged
}

// decide decides r in d, which is zero; rc may be nil. With try it does so only if the shard may decide, as Try.
func (t *Table) decide(now int64, r *Request, rc *Receipt, try bool, d *Decision) (seq uint64, v Verdict) {
	if rc != nil {
		rc.charged = false
	}
	if r.Reservation != nil {
		return t.reserve(now, r, try, d)
	}
	verb, cost := r.normal()
	now = inRange(now)
	idle := r.Limits.unlimited && verb != Reset
	var o outcome
	repeated, grown := false, false
	sh := t.lockKey(r.Key)
	if try {
		v = sh.verdictLocked(now, r.Unreplicated || idle)
	}
	switch {
	case v != Decided:
	case idle:
		*d = unlimitedDecision()
	default:
		if r.Once != 0 {
			if repeated, grown = sh.repeatedLocked(now, r); repeated {
				verb, cost = status, 0
			}
		}
		o = sh.decideLocked(sh.atLocked(now), r, verb, cost, rc, d)
		sh.followLocked(now, r.Key, o, r.Unreplicated && verb != Reset)
	}
	seq = sh.mu.seq
	sh.unlock(now, grown || o.grown > 0)
	if d.Lost {
		t.deniedLost.Add(1)
	}
	return seq, v
}

func unlimitedDecision() Decision {
	return Decision{Allowed: true, Limit: math.MaxInt64, Remaining: math.MaxInt64}
}

// followLocked records and accounts for the outcome o for key.
func (sh *shard) followLocked(now int64, key Key, o outcome, unreplicated bool) {
	if o.has(changed) {
		sh.mu.seq++
		if sh.mu.journal.takes(unreplicated) {
			sh.recordLocked(now, key, o.counter)
		}
	}
	if o.grown != 0 {
		sh.table.accountLocked(sh, now, o)
	}
}

// GiveBack undoes the charge in rc as far as it still counts: never in a newer window, never more than has not yet leaked or
// refilled, and nothing while the shard is sealed. A receipt counts once.
func (t *Table) GiveBack(now int64, rc *Receipt) {
	if !rc.charged {
		return
	}
	now = inRange(now)
	sh := t.lockKey(rc.key)
	sh.followLocked(now, rc.key, sh.undoLocked(sh.atLocked(now), rc), rc.unreplicated)
	sh.mu.Unlock()
	rc.charged = false
}

// DropShard forgets the shard's counters, its journal and its number of changes, and returns the number of counters. Seal and
// Recording are unchanged.
func (t *Table) DropShard(shard int) int {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	n := int(sh.mu.store.n)
	for slot := range sh.mu.store.n {
		sh.exit(sh.lookLocked(slot))
	}
	t.entries.Add(-int64(n))
	t.bytes.Add(-sh.mu.store.bytes)
	sh.emptyLocked()
	sh.mu.store.clear()
	sh.mu.seq = 0
	sh.mu.journal.confirm(none)
	return n
}

// Stats are counts since the table was made; Entries, Bytes, Sets and SetBytes are current.
type Stats struct {
	Entries, Bytes int64
	// Sets is the number of sets of limits that counters refer to. Bytes includes SetBytes, their memory.
	Sets, SetBytes           int64
	Expired, EvictedLive     uint64
	EvictedExpired, Inserted uint64
	// DeniedLost counts decisions with Lost.
	DeniedLost uint64
	// DeniedFull counts checks denied because there was no room for a counter.
	DeniedFull uint64
}

// OffHeap returns the memory that the table has outside Go's heap, in bytes.
func (t *Table) OffHeap() int64 { return t.arena.Bytes() + t.slabs.bytes() }

// Stats returns the table's counts.
func (t *Table) Stats() Stats {
	return Stats{
		Entries:        t.entries.Load(),
		Bytes:          t.bytes.Load(),
		Expired:        t.expired.Load(),
		EvictedLive:    t.evictedLive.Load(),
		EvictedExpired: t.evictedExpired.Load(),
		Inserted:       t.inserted.Load(),
		DeniedLost:     t.deniedLost.Load(),
		DeniedFull:     t.deniedFull.Load(),
		Sets:           t.sets.Load(),
		SetBytes:       t.setBytes.Load(),
	}
}

// inRange keeps now away from the ends of int64, which have special meanings.
func inRange(now int64) int64 { return min(max(now, never+1), math.MaxInt64-1) }
