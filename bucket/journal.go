package bucket

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Recording selects the changes that a shard's journal records.
type Recording uint8

const (
	// RecordNothing disables the journal.
	RecordNothing Recording = iota
	// RecordLasting omits charges and refunds of transient requests.
	RecordLasting
	// RecordAll records every change.
	RecordAll
)

// journal has the keys of a shard that have changed, for replicas. It does not have the changes themselves: the counter is sent
// as it is then.
type journal struct {
	what Recording
	// gate is the age (ns) of a change from which on Try answers Behind; 0 means no gate.
	gate int64
	// first is the time of the first change in entries, unconfirmed that of the oldest drained change that is not confirmed,
	// oldest the earlier of the two; or none.
	first, unconfirmed, oldest int64
	// entries are the changed keys. Their counters are marked, so that each is added once.
	entries []changedKey
	// stale bounds the duplicate keys in entries since the last compact: it counts keys that lost their marked counter or have
	// none. bare: some key had none at the last compact.
	stale int
	bare  bool
}

// changedKey is a key in a journal. counter is the counter marked for it: if the mark is gone, or counter is nil, the key has
// no counter or another one.
type changedKey struct {
	key     Key
	counter *counter
}

func (e *changedKey) marked() bool { return e.counter != nil && e.counter.has(flagDirty) }

// none is the time of a missing change. No clock shows it; see inRange.
const none int64 = math.MaxInt64

// newJournal returns an empty journal that records nothing.
func newJournal() journal { return journal{first: none, unconfirmed: none, oldest: none} }

// takes reports whether a change is recorded.
func (j *journal) takes(transient bool) bool {
	return j.what == RecordAll || j.what == RecordLasting && !transient
}

// behind reports whether a change has been unconfirmed for longer than the gate allows.
func (j *journal) behind(now int64) bool {
	return j.gate > 0 && now > j.oldest && elapsed(j.oldest, now) > uint64(j.gate)
}

// maxStale is the number of stale keys that a short journal may have.
const maxStale = 64

// add adds key with its counter c, nil if it has none.
func (j *journal) add(now int64, key Key, c *counter) {
	if c != nil {
		if c.has(flagDirty) {
			return
		}
		c.cuts |= flagDirty
	} else {
		j.stale++
	}
	if len(j.entries) == 0 {
		j.first = now
		j.oldest = min(now, j.unconfirmed)
	}
	j.entries = append(j.entries, changedKey{key, c})
	if j.stale > maxStale+len(j.entries)/2 {
		j.compact()
	}
}

// compact removes duplicate keys. It runs when about half of the list is stale, so the list is at most about twice as long as
// necessary, at little cost.
func (j *journal) compact() {
	slices.SortFunc(j.entries, func(a, b changedKey) int {
		if a.key.Hi != b.key.Hi {
			return cmp.Compare(a.key.Hi, b.key.Hi)
		}
		return cmp.Compare(a.key.Lo, b.key.Lo)
	})
	j.bare = false
	kept := j.entries[:0]
	for _, e := range j.entries {
		if n := len(kept); n == 0 || kept[n-1].key != e.key {
			kept = append(kept, e)
		} else if e.marked() {
			kept[n-1].counter = e.counter // the only marked one
		}
	}
	for i := range kept {
		j.bare = j.bare || !kept[i].marked()
	}
	clear(j.entries[len(kept):])
	j.entries, j.stale = kept, 0
}

// empty removes all entries and their counters' marks.
func (j *journal) empty() {
	for i := range j.entries {
		if c := j.entries[i].counter; c != nil {
			c.cuts &^= flagDirty
		}
	}
	const enough = 256
	if cap(j.entries) > enough && len(j.entries) < cap(j.entries)/8 {
		j.entries = nil // memory of a past burst
	}
	clear(j.entries) // release removed counters
	j.entries, j.stale, j.bare = j.entries[:0], 0, false
	j.first, j.oldest = none, j.unconfirmed
}

// lose notes that c is no longer the counter of its key.
func (j *journal) lose(c *counter) {
	if c.has(flagDirty) {
		c.cuts &^= flagDirty
		j.stale++ // the next change adds the key again
	}
}

// confirm sets the time of the oldest drained change that is unconfirmed.
func (j *journal) confirm(since int64) {
	j.unconfirmed = since
	j.oldest = min(j.first, since)
}

// recordLocked adds key of shard own, with its counter c or nil, to the journal.
func (t *Table) recordLocked(sh *shard, own int, now int64, key Key, c *counter) {
	if len(sh.mu.journal.entries) == 0 {
		t.changed[own/64].Or(1 << (own % 64))
		select {
		case t.activated <- struct{}{}:
		default:
		}
	}
	sh.mu.journal.add(now, key, c)
}

// emptyLocked empties the journal of shard own.
func (t *Table) emptyLocked(sh *shard, own int) {
	if len(sh.mu.journal.entries) == 0 {
		return
	}
	sh.mu.journal.empty()
	t.changed[own/64].And(^(uint64(1) << (own % 64)))
}

// Record sets what the shard's journal records. While a recorded change has been unconfirmed for longer than gate, Try answers
// Behind to requests that are not transient; 0 or less means no gate. RecordNothing empties the journal and opens the gate;
// other values keep the journal's content. New tables record nothing.
func (t *Table) Record(shard int, what Recording, gate time.Duration) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.journal.what, sh.mu.journal.gate = what, int64(max(0, gate))
	if what == RecordNothing {
		t.emptyLocked(sh, shard)
		sh.mu.journal = newJournal()
	}
}

// Activated receives a value after an empty journal has got an entry; several times may count as one. Without it, Changed has
// nothing new.
func (t *Table) Activated() <-chan struct{} { return t.activated }

// Changed calls yield with every shard whose journal has entries, in ascending order. It holds no lock, so yield may call any
// method of the table.
func (t *Table) Changed(yield func(shard int)) {
	for i := range t.changed {
		for word := t.changed[i].Load(); word != 0; word &= word - 1 {
			yield(i*64 + bits.TrailingZeros64(word))
		}
	}
}

// Drain appends the keys whose counters have changed since the last Drain to keys, each once and in no order, and empties the
// journal. seq is the number of the shard's last change, recorded or not. since is the time (Unix ns) of the first drained
// change, math.MaxInt64 if none; it counts as unconfirmed until Confirm, unless an older one does already.
func (t *Table) Drain(shard int, keys []Key) (_ []Key, seq uint64, since int64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	j := &sh.mu.journal
	if j.stale > 0 || j.bare {
		j.compact()
	}
	keys, since = slices.Grow(keys, len(j.entries)), j.first
	for i := range j.entries {
		keys = append(keys, j.entries[i].key)
	}
	j.unconfirmed = min(j.unconfirmed, since)
	t.emptyLocked(sh, shard)
	return keys, sh.mu.seq, since
}

// Confirm declares all drained changes from before since (Unix ns) as confirmed; math.MaxInt64 confirms all. Changes that are
// not drained yet are unaffected.
func (t *Table) Confirm(shard int, since int64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.journal.confirm(since)
}
