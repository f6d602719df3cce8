package sim

import (
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// reservation is a reservation in the model's book, and how its caller settles it.
type reservation struct {
	*granted
	release bool
	// actual is what its caller settles it with, charged what was charged in all, ended whether it has ended at the owner.
	actual, charged int64
	ended           bool
	// lost: the caller never settles it.
	lost bool
	// lease: it is a client's lease. again is one that was made by a copy of its request after it had ended.
	lease bool
	again *granted
}

// reservationUnits is the most units of a reservation.
const reservationUnits = 6

// reserve makes a reservation for a caller of p, which repeats its requests until they are answered.
func (w *leaseSimCluster) reserve(p *leaseNode) {
	w.lastReservation++
	r := &reservation{granted: &granted{id: w.lastReservation, life: between(w.rng, time.Millisecond, 4*w.ttl)}, release: w.rng.IntN(2) == 0, lost: w.rng.IntN(4) == 0}
	want := 1 + w.rng.Int64N(reservationUnits)
	asked, answered := 0, false
	var ask func()
	ask = func() {
		if answered || asked == 20 {
			return
		}
		asked++
		w.send(func() {
			units, ok := w.reserveAt(r, want)
			if !ok {
				return
			}
			w.send(func() {
				if answered {
					return
				}
				answered = true
				if units > 0 && !r.lost {
					r.actual = w.rng.Int64N(units + 1)
					w.after(between(w.rng, 0, 2*r.life), func() { w.send(func() { w.extendAt(r) }) })
					w.after(between(w.rng, 0, 3*r.life), func() { w.settleReservation(p, r, 0) })
				}
			})
		})
		w.after(20*time.Millisecond, ask)
	}
	ask()
}

// reserveAt asks the owner for units of r, and returns how many it has. ok is false if nobody decides.
func (w *leaseSimCluster) reserveAt(r *reservation, want int64) (units int64, ok bool) {
	got, ok := w.ask(r, bucket.Reserve, want)
	if !ok || got.Units == 0 || got.Unknown {
		return 0, ok
	}
	if got.Repeated {
		if got.Units != r.units {
			w.fail("I4", "reservation %d of %d units is answered again with %+v", r.id, r.units, got)
		}
		return got.Units, true
	}
	if r.units > 0 {
		w.fail("I4", "reservation %d of %d units is made again: %+v", r.id, r.units, got)
	}
	r.units, r.over = got.Units, w.now+int64(r.life)
	w.book = append(w.book, r.granted)
	w.Reservations++
	w.expireAt(r)
	w.confirm()
	w.audit()
	return got.Units, true
}

// expireAt charges what is left of r in its last nanosecond.
func (w *leaseSimCluster) expireAt(r *reservation) {
	w.after(time.Duration(r.over-1-w.now), func() {
		switch {
		case r.ended:
		case w.now < r.over-1: // it was handed on meanwhile, and had not aged
			w.expireAt(r)
		default:
			if r.ended = true; !r.release {
				w.chargeReservation(r, r.units)
			}
		}
	})
}

func (w *leaseSimCluster) chargeReservation(r *reservation, units int64) {
	for range units {
		w.admit("a unit of a reservation", w.nodes[0])
	}
	r.charged += units
}

// settleReservation settles r, and repeats that until it is answered and once more.
func (w *leaseSimCluster) settleReservation(p *leaseNode, r *reservation, answered int) {
	if answered == 2 || !p.up {
		return
	}
	done := false
	w.send(func() {
		if w.settleAt(r) {
			w.send(func() { done = true })
		}
	})
	w.after(20*time.Millisecond, func() {
		if done {
			answered++
		}
		w.settleReservation(p, r, answered)
	})
}

// settleAt settles r at the owner, and compares what that says with the book.
func (w *leaseSimCluster) settleAt(r *reservation) bool {
	late := !r.settled && w.now >= r.over
	if r.ended && !r.settled && !late {
		return false // in its last nanosecond, in which the book has charged it
	}
	actual := r.actual
	if late && r.release {
		actual = 0 // what is charged now is a debt, which the limit would not admit
	}
	got, ok := w.ask(r, bucket.Settle, actual)
	if !ok {
		return false
	}
	want := bucket.Reserved{Units: r.charged, Repeated: r.settled, Late: late}
	if !r.settled && !late {
		want.Units, want.Returned = actual, r.units-actual
		w.chargeReservation(r, actual)
	}
	if got != want {
		w.fail("I4", "reservation %d of %d units is settled with %d: %+v, want %+v", r.id, r.units, actual, got, want)
	}
	r.settled, r.ended = true, true
	w.confirm()
	return true
}

// extendAt moves the deadline of r at the owner, if it has not ended.
func (w *leaseSimCluster) extendAt(r *reservation) {
	if r.ended && w.now < r.over {
		return // the book has charged it, as in settleAt
	}
	got, ok := w.ask(r, bucket.Extend, 0)
	switch {
	case !ok || got.Unknown:
	case r.ended:
		w.fail("I4", "reservation %d of %d units has ended, and is extended: %+v", r.id, r.units, got)
	default:
		r.over = max(r.over, w.now+int64(r.life))
		w.Extended++
		w.confirm()
		w.audit()
	}
}

// ask asks the owner about r.
func (w *leaseSimCluster) ask(r *reservation, verb bucket.Verb, units int64) (got bucket.Reserved, ok bool) {
	h := w.owner
	if h == nil {
		return got, false
	}
	x := &bucket.Reservation{ID: r.id, Least: 1, MaxOpen: 1000, For: r.life, Release: r.release, Lease: r.lease}
	_, _, v := h.table.Try(w.now+h.ahead, &bucket.Request{Limits: w.limits, Verb: verb, Cost: units, Reservation: x}, nil)
	return x.Reserved, v == bucket.Decided
}
