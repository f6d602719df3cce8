package cluster

import (
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/check"
)

// Bounds of what is remembered for give-backs.
const (
	undoableFor = 10 * time.Second
	maxUndoable = 65_536
)

// charge names a charge that can be given back: the boot id of the process that sent it, and the id that it gave.
type charge struct {
	from string
	id   uint64
}

// chargeLog remembers charges that can be given back, for undoableFor and at most max of them, the oldest dropped first. No charge is
// undone twice, and none that was undone is made again: messages may come twice and in any order.
type chargeLog struct {
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
	undone   bool   // undone, or not to be made because its undo arrived first
	held     lease.Held
}

func newChargeLog(max int) *chargeLog {
	l := &chargeLog{max: max}
	l.mu.charges = make(map[charge]*receipt)
	return l
}

// try decides r on table and remembers the charge. A known charge, which the requester has sent again, gets the same answer.
// seq is the number of the change, 0 if none.
func (l *chargeLog) try(now int64, c charge, table *bucket.Table, r *bucket.Request) (bucket.Decision, uint64, check.Status) {
	return l.once(now, c, false, func(rc *receipt) (v bucket.Verdict) {
		rc.decision, rc.seq, v = table.Try(now, r, &rc.bucket)
		return v
	})
}

// once is try for a charge that f makes, of what is leased of another region if leased. A charge of the table answers no such one: it may have
// been made when the counter had left already.
func (l *chargeLog) once(now int64, c charge, leased bool, f func(*receipt) bucket.Verdict) (bucket.Decision, uint64, check.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked(now)
	if known := l.mu.charges[c]; known != nil {
		if known.undone {
			return bucket.Decision{}, 0, check.Invalid // the requester gave up before this came
		}
		if leased && !known.held.Any() {
			return bucket.Decision{}, 0, check.NotReady
		}
		return known.decision, known.seq, check.Decided
	}
	rc := &receipt{expires: now + int64(undoableFor)}
	if f(rc) != bucket.Decided {
		return bucket.Decision{}, 0, check.NotReady
	}
	if !rc.bucket.Charged() && !rc.held.Any() {
		return rc.decision, 0, check.Decided
	}
	l.addLocked(c, rc)
	return rc.decision, rc.seq, check.Decided
}

// giveBack undoes a charge of table. An unknown one will not be made.
func (l *chargeLog) giveBack(now int64, c charge, table *bucket.Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked(now)
	known := l.mu.charges[c]
	if known == nil {
		l.addLocked(c, &receipt{expires: now + int64(undoableFor), undone: true})
		return
	}
	if !known.undone {
		known.undone = true
		if known.held.Any() {
			known.held.GiveBack(now)
		} else {
			table.GiveBack(now, &known.bucket)
		}
	}
}

func (l *chargeLog) addLocked(c charge, rc *receipt) {
	if len(l.mu.order) >= l.max {
		if !l.mu.charges[l.mu.order[0]].undone {
			l.mu.dropped++
		}
		l.forgetLocked()
	}
	l.mu.charges[c] = rc
	l.mu.order = append(l.mu.order, c)
}

func (l *chargeLog) expireLocked(now int64) {
	for len(l.mu.order) > 0 && l.mu.charges[l.mu.order[0]].expires <= now {
		l.forgetLocked()
	}
}

// forgetLocked forgets the oldest charge.
func (l *chargeLog) forgetLocked() {
	delete(l.mu.charges, l.mu.order[0])
	l.mu.order[0] = charge{}
	l.mu.order = l.mu.order[1:]
}

// count returns how many are remembered, and how many were dropped.
func (l *chargeLog) count() (receipts int, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.order), l.mu.dropped
}
