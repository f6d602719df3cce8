package bucket

import (
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
	// RecordLasting omits charges and refunds of unreplicated requests.
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
	// dirty counts the counters that have changed; the store has their slots.
	dirty int
	// gone are changed keys that had no counter, kept how many of them were left by the last compact.
	gone []KeyAt
	kept int
}

// none is the time of a missing change. No clock shows it; see inRange.
const none int64 = math.MaxInt64

func newJournal() journal { return journal{first: none, unconfirmed: none, oldest: none} }

func (j *journal) takes(unreplicated bool) bool {
	return j.what == RecordAll || j.what == RecordLasting && !unreplicated
}

// behind reports whether a change has been unconfirmed for longer than the gate allows.
func (j *journal) behind(now int64) bool {
	return j.gate > 0 && now > j.oldest && elapsed(j.oldest, now) > uint64(j.gate)
}

// fewGone is the number of keys that gone of a short journal may have before it is made compact.
const fewGone = 64

func (j *journal) isEmpty() bool { return j.dirty == 0 && len(j.gone) == 0 }

// confirm sets the time of the oldest drained change that is unconfirmed.
func (j *journal) confirm(since int64) {
	j.unconfirmed = since
	j.oldest = min(j.first, since)
}

// recordLocked records a change of key, whose counter is c now, nil if it has none.
func (sh *shard) recordLocked(now int64, key Key, c *counter) {
	j := &sh.mu.journal
	sh.beginLocked(now)
	switch {
	case c == nil:
		sh.goneLocked(KeyAt{Key: key})
	case !sh.mu.store.isDirty(c.slot):
		sh.mu.store.setDirty(c.slot, true)
		j.dirty++
	}
}

// beginLocked notes that a journal without entries gets one.
func (sh *shard) beginLocked(now int64) {
	j := &sh.mu.journal
	if j.isEmpty() {
		j.first = now
		j.oldest = min(now, j.unconfirmed)
		sh.table.changed[sh.number/64].Or(1 << (sh.number % 64))
		select {
		case sh.table.activated <- struct{}{}:
		default:
		}
	}
}

func (sh *shard) goneLocked(k KeyAt) {
	j := &sh.mu.journal
	j.gone = append(j.gone, k)
	if len(j.gone) > fewGone+2*j.kept {
		sh.compactLocked()
	}
}

// compactLocked leaves each key in gone once, and none whose counter is recorded. It runs when the list has doubled.
func (sh *shard) compactLocked() {
	j := &sh.mu.journal
	slices.SortFunc(j.gone, KeyAt.Compare)
	j.gone = slices.DeleteFunc(slices.Compact(j.gone), func(k KeyAt) bool {
		slot, ok := sh.mu.store.find(k.Key)
		return ok && sh.mu.store.isDirty(slot)
	})
	j.kept = len(j.gone)
}

func (sh *shard) emptyLocked() {
	j := &sh.mu.journal
	if j.isEmpty() {
		return
	}
	clear(sh.mu.store.dirty)
	const enough = 256
	if cap(j.gone) > enough && len(j.gone) < cap(j.gone)/8 {
		j.gone = nil // memory of a past burst
	}
	j.dirty, j.gone, j.kept = 0, j.gone[:0], 0
	j.first, j.oldest = none, j.unconfirmed
	sh.table.changed[sh.number/64].And(^(uint64(1) << (sh.number % 64)))
}

// Record sets what the shard's journal records. While a recorded change has been unconfirmed for longer than gate, Try answers
// Behind to requests that are not unreplicated; 0 or less means no gate. RecordNothing empties the journal and opens the gate;
// other values keep the journal's content. New tables record nothing.
func (t *Table) Record(shard int, what Recording, gate time.Duration) {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	sh.mu.journal.what, sh.mu.journal.gate = what, int64(max(0, gate))
	if what == RecordNothing {
		sh.emptyLocked()
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

// Drain appends the keys whose counters have changed since the last Drain to keys, each once, and empties the
// journal. seq is the number of the shard's last change, recorded or not. since is the time (Unix ns) of the first drained
// change, math.MaxInt64 if none; it counts as unconfirmed until Confirm, unless an older one does already.
func (t *Table) Drain(shard int, keys []KeyAt) (_ []KeyAt, seq uint64, since int64) {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	j := &sh.mu.journal
	sh.compactLocked()
	from := len(keys)
	keys, since = slices.Grow(keys, j.dirty+len(j.gone)), j.first
	for slot := range sh.mu.store.eachDirty {
		keys = append(keys, sh.mu.store.at(slot).keyAt(slot))
	}
	keys = append(keys, j.gone...)
	keys = keys[:from+sh.groupLocked(keys[from:])]
	j.unconfirmed = min(j.unconfirmed, since)
	sh.emptyLocked()
	return keys, sh.mu.seq, since
}

// Confirm declares all drained changes from before since (Unix ns) as confirmed; math.MaxInt64 confirms all. Changes that are
// not drained yet are unaffected.
func (t *Table) Confirm(shard int, since int64) {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	sh.mu.journal.confirm(since)
}
