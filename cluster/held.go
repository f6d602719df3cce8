package cluster

import (
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// Bounds of what is remembered for give-backs.
const (
	heldFor = 10 * time.Second
	maxHeld = 65_536
)

// charge names a held charge: the asking process's boot id, and the id it gave.
type charge struct {
	from string
	id   uint64
}

// held remembers charges that can be given back, for heldFor and at most max of
// them, the oldest dropped first. Nothing in it is undone twice, and nothing that
// was undone is charged again: messages may come twice and in any order.
type held struct {
	max int
	mu  struct {
		sync.Mutex
		charges map[charge]*receipt
		order   []charge // as they came, which is as they expire
		dropped uint64   // charges forgotten before their time
	}
}

// receipt is what is known about a charge.
type receipt struct {
	expires  int64
	bucket   bucket.Receipt
	decision bucket.Decision
	seq      uint64 // of the change that the charge was
	// undone: it was given back, or must not be made, because its give-back came first.
	undone bool
}

func newHeld(max int) *held {
	h := &held{max: max}
	h.mu.charges = make(map[charge]*receipt)
	return h
}

// try decides r on table and remembers what it charged. A charge that is known
// already, because the asker has sent it again, is answered as it was. seq is that of the
// change which r has charged, 0 if none.
func (h *held) try(now int64, c charge, table *bucket.Table, r *bucket.Request) (bucket.Decision, uint64, check.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireLocked(now)
	if known := h.mu.charges[c]; known != nil {
		if known.undone {
			// The asker has given up before this came.
			return bucket.Decision{}, 0, check.Invalid
		}
		return known.decision, known.seq, check.Decided
	}
	rc := &receipt{expires: now + int64(heldFor)}
	d, seq, v := table.Try(now, r, &rc.bucket)
	if v != bucket.Decided {
		return bucket.Decision{}, 0, check.Later
	}
	if !rc.bucket.Charged() {
		return d, 0, check.Decided
	}
	rc.decision, rc.seq = d, seq
	h.addLocked(c, rc)
	return d, seq, check.Decided
}

// giveBack undoes a charge of table. One that is not known will not be made.
func (h *held) giveBack(now int64, c charge, table *bucket.Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireLocked(now)
	known := h.mu.charges[c]
	if known == nil {
		h.addLocked(c, &receipt{expires: now + int64(heldFor), undone: true})
		return
	}
	if !known.undone {
		known.undone = true
		table.GiveBack(now, &known.bucket)
	}
}

func (h *held) addLocked(c charge, rc *receipt) {
	if len(h.mu.order) >= h.max {
		if !h.mu.charges[h.mu.order[0]].undone {
			h.mu.dropped++
		}
		h.forgetLocked()
	}
	h.mu.charges[c] = rc
	h.mu.order = append(h.mu.order, c)
}

func (h *held) expireLocked(now int64) {
	for len(h.mu.order) > 0 && h.mu.charges[h.mu.order[0]].expires <= now {
		h.forgetLocked()
	}
}

// forgetLocked forgets the oldest charge.
func (h *held) forgetLocked() {
	delete(h.mu.charges, h.mu.order[0])
	h.mu.order[0] = charge{}
	h.mu.order = h.mu.order[1:]
}

// count returns how many are remembered, and how many were dropped.
func (h *held) count() (receipts int, dropped uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.order), h.mu.dropped
}
