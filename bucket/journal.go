package bucket

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Recording says which changes a shard's journal takes.
type Recording uint8

const (
	// RecordNothing keeps no journal.
	RecordNothing Recording = iota
	// RecordLasting leaves out what transient requests spend and give back.
	RecordLasting
	// RecordAll takes every change.
	RecordAll
)

// journal remembers which keys of a shard have changed, so that copies can be told. It
// does not remember how: what is sent is the counter as it is then.
type journal struct {
	what Recording
	// gate is how old (ns) a change may become before Try answers Behind; 0 is no gate.
	gate int64
	// first is the time of the first change in keys, unconfirmed that of the oldest that was
	// drained and may not have arrived, oldest the earlier of the two; or none.
	first, unconfirmed, oldest int64
	// entries are the keys that have changed. Those that have a counter are marked there, so
	// that they come in once.
	entries []changedKey
	// stale bounds how many keys have come into the list more than once since it was last
	// compact: it counts those that lost their marked counter, or have none. bare: some had
	// none then.
	stale int
	bare  bool
}

// changedKey is a key in a journal. counter is the one that is marked for it: if the mark is
// gone, or it is nil, the key has no counter, or another one.
type changedKey struct {
	key     Key
	counter *counter
}

func (e *changedKey) marked() bool { return e.counter != nil && e.counter.has(flagDirty) }

// none is the time of a change that is not there. No clock shows it, see inRange.
const none int64 = math.MaxInt64

// newJournal returns an empty journal that records nothing.
func newJournal() journal { return journal{first: none, unconfirmed: none, oldest: none} }

// takes reports whether a change goes into the journal.
func (j *journal) takes(transient bool) bool {
	return j.what == RecordAll || j.what == RecordLasting && !transient
}

// behind reports whether a change has been unconfirmed for longer than the gate allows.
func (j *journal) behind(now int64) bool {
	return j.gate > 0 && now > j.oldest && elapsed(j.oldest, now) > uint64(j.gate)
}

// maxStale is how many stale keys a short journal may have.
const maxStale = 64

// add puts key in, whose counter is c, or nil if it has none.
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

// compact leaves each key in the list once. Half of the list has become stale since the
// last time, so it is at most about twice as long as it must be, at little cost.
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

// empty takes all entries out, and their counters' marks away.
func (j *journal) empty() {
	for i := range j.entries {
		if c := j.entries[i].counter; c != nil {
			c.cuts &^= flagDirty
		}
	}
	const enough = 256
	if cap(j.entries) > enough && len(j.entries) < cap(j.entries)/8 {
		j.entries = nil // memory of a burst that is over
	}
	clear(j.entries) // so that counters that were removed are let go
	j.entries, j.stale, j.bare = j.entries[:0], 0, false
	j.first, j.oldest = none, j.unconfirmed
}

// lose notes that c, whose key may be in the journal, is not that key's counter any more.
func (j *journal) lose(c *counter) {
	if c.has(flagDirty) {
		c.cuts &^= flagDirty
		j.stale++ // the next change comes in again
	}
}

// confirm sets the time of the oldest change that was drained and is unconfirmed.
func (j *journal) confirm(since int64) {
	j.unconfirmed = since
	j.oldest = min(j.first, since)
}

// recordLocked puts key of shard own, whose counter is c now, or nil, into the journal.
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

// Record makes the shard keep a journal from now on. While a recorded change has been
// unconfirmed for longer than gate, Try answers Behind to requests that are not
// transient; 0 or less is no gate. RecordNothing empties the journal and opens the gate; another
// value leaves in the journal what is there. New tables record nothing.
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

// Activated receives after a journal that was empty has got an entry; several times may count as one. Who calls Changed now
// and then need not while nothing comes.
func (t *Table) Activated() <-chan struct{} { return t.activated }

// Changed calls yield with every shard whose journal has entries, in ascending order. It takes
// no lock, and yield may call any method of the table.
func (t *Table) Changed(yield func(shard int)) {
	for i := range t.changed {
		for word := t.changed[i].Load(); word != 0; word &= word - 1 {
			yield(i*64 + bits.TrailingZeros64(word))
		}
	}
}

// Drain appends the keys whose counters have changed since the last Drain to keys, each once and in
// no order, and empties the journal. seq is the number of the shard's last change, recorded or not.
// since is the time (Unix ns) of the first of the drained changes, or math.MaxInt64 if there are
// none; it counts as unconfirmed until Confirm, unless an older one does already.
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

// Confirm says that of the changes that were drained, none from before since (Unix ns) is
// unconfirmed. math.MaxInt64 confirms all. Changes that were not drained yet count on.
func (t *Table) Confirm(shard int, since int64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.journal.confirm(since)
}
