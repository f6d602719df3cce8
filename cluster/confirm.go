package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

var errUnconfirmed = errors.New("charged, but no copy has confirmed it in time")

// bell wakes all who wait for it. The zero bell is ready.
type bell struct {
	mu struct {
		sync.Mutex
		next chan struct{} // nil while nobody waits
	}
}

// wait returns what is closed when the bell rings next.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next == nil {
		b.mu.next = make(chan struct{})
	}
	return b.mu.next
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next != nil {
		close(b.mu.next)
		b.mu.next = nil
	}
}

// change is one that a check of a sync rule has made: to be confirmed before it is
// answered.
type change struct {
	index     int // of the check, in the caller's list
	partition int
	// term was read before the check was decided.
	term, seq uint64
}

// confirmed waits until a copy has change seq of a partition, or there is no copy to
// wait for. It reports false when ctx ended first, or this node was deposed: the charge
// stands, or is lost, and whoever asked must take it as one whose answer was lost.
func (n *Node) confirmed(ctx context.Context, c change) bool {
	h := n.runner.handoff
	confirmed := func() bool { return h.Confirmed(c.partition) >= c.seq && h.Term(c.partition) == c.term }
	if confirmed() {
		return true
	}
	// Once is enough: the change is in the journal, and from there it goes by itself.
	n.runner.flush.Store(true)
	signal(n.runner.kick)
	for {
		heard := n.confirms.wait()
		if confirmed() {
			return true
		}
		if h.Term(c.partition) != c.term {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-heard:
		}
	}
}

// term returns the term that a check of k would be decided in.
func (n *Node) term(k bucket.Key) uint64 {
	return n.runner.handoff.Term(k.Shard(n.cfg.Ring.Partitions))
}

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
// already, because the requester has sent it again, is answered as it was. seq is that of the
// change which r has charged, 0 if none.
func (h *held) try(now int64, c charge, table *bucket.Table, r *bucket.Request) (bucket.Decision, uint64, check.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expireLocked(now)
	if known := h.mu.charges[c]; known != nil {
		if known.undone {
			// The requester has given up before this came.
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
