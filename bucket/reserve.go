package bucket

import (
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// Reservation is units that are set aside for a caller until a deadline. Until they are settled they count in every limit of the
// key: a window that begins meanwhile has them too, and the units that are charged count in the window of the settlement.
//
//   - Reserve sets aside Cost units, or at least Least if not so many are left, in all limits of the key, without their soft
//     margins. The upper CallerBits of Request.Once say who asks, as Held tells. It is repeatable: with the ID of an open reservation it
//     answers what that has.
//   - Spend charges Cost of the units, if so many are left.
//   - Extend adds Cost units, or takes -Cost away, and moves the deadline to For from now if that is later. Of several of either
//     with one Request.Once, one is made.
//   - Settle ends it and charges Cost units, whatever the limits say. It is repeatable: later ones change nothing, and are answered
//     with what the first one has charged, for the settle window. What of it was not reserved, and would
//     make a bucket deny for longer than For and than a full one takes to drain, is not charged, unless For is 0. A lease is
//     charged its units at most. At the deadline a reservation ends by itself: its units count as spent
//     or, with Release, are free again. A Settle after that charges what was not charged then.
//   - Cancel is for a Reserve of several keys that has failed for one of them. Request.Once names the attempt in both: Cancel ends what
//     that attempt has got, or may still get, and others with the same ID may reserve anew. What another attempt has got too
//     stays, since its caller may have it.
//
// Under limits with a Concurrency it is a slot: Reserve and Extend charge the other limits at once,
// and Settle and the deadline charge nothing. Cancel, with the For of Reserve, undoes that charge,
// and so does Extend with a Cost below 0 and the time since then, at least, as For.
//
// Only Reserve needs the request's Limits. The Decision of the others is about the limits that the counter has.
type Reservation struct {
	// ID names it in its counter; not 0.
	ID uint64
	// Least is 1 to Cost, MaxOpen the number of open grants of the key from which on none is made, For the time until the
	// deadline, LeastLease to MostReservation. For Extend it may be 0, and Cost negative.
	Least, MaxOpen int64
	For            time.Duration
	// Most is how many units Extend may make it, 0 for any number.
	Most int64
	// Release: at its deadline its units are free again.
	Release bool
	// Hold: Reserve gets Cost units, whatever is left.
	Hold bool
	// Fresh: no other attempt has the ID, unless by chance. Then Reserve answers Unknown. With Settle of a slot it says that none will
	// come, so nothing is remembered of it, and another Settle answers Unknown.
	Fresh bool
	// Lease: Reserve makes a lease as Table.Grant does, of at most an eighth of what is left. It ends with its window, its units
	// count as spent at the deadline, and nothing is remembered of it once it has ended.
	Lease bool
	// Home is that of the limits, where the request has none. Tables ignore it.
	Home string
	// Reserved is set by the request if it was decided.
	Reserved Reserved
}

// leaseWhole: a Lease gets at most one of so many parts of what is left, so that others find some too.
const leaseWhole = 8

// MostReservation is the most that Reservation.For may be.
const MostReservation = 24 * time.Hour

// Reserved is the state of a reservation.
type Reserved struct {
	// Units are those that are set aside; after Settle, or of one that has ended, those that were charged.
	Units int64
	// Returned are those that Settle has made free again.
	Returned int64
	// Expires is the time until the deadline, 0 if it has ended.
	Expires time.Duration
	// Late: the deadline had passed before Settle. Repeated: a Reserve or Settle that was made before. Unknown: there is no such
	// reservation, or it has ended and only Settle is possible; nothing was changed.
	Late, Repeated, Unknown bool
}

// valid reports whether r can ever have units under the limits l.
func (r *Reservation) valid(units int64, l *Limits) bool {
	i, _ := l.Reservable()
	return i < 0 && r.ID != 0 && 0 < r.Least && r.Least <= units && LeastLease <= r.For && r.For <= MostReservation
}

// reserve is decide for verbs about a reservation.
func (t *Table) reserve(now int64, r *Request, try bool, d *Decision) (seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(r.Key)
	grown := false
	if try {
		v = sh.verdictLocked(now, r.Unreplicated)
	}
	if v == Decided {
		r.Reservation.Reserved = Reserved{}
		grown = sh.reservationLocked(now, r, d)
	}
	seq = sh.mu.seq
	sh.unlock(now, grown)
	return seq, v
}

func (sh *shard) reservationLocked(now int64, r *Request, d *Decision) (grown bool) {
	at, x := sh.atLocked(now), r.Reservation
	var c *counter
	slot, found := sh.mu.store.find(r.Key.grantKey(x.ID))
	if found || r.Verb != Reserve {
		c = sh.getLocked(at, r.Key) // reservations whose deadline has passed have ended now
		slot, found = sh.mu.store.find(r.Key.grantKey(x.ID))
	}
	attempt := attemptOf(r.Once)
	if found { // the sweep may not have removed it yet
		found = sh.mu.store.at(slot).isOpen() || sh.mu.store.at(slot).now > at
	}
	switch {
	case r.Verb == Cancel:
		return sh.cancelLocked(now, slot, found, r, d)
	case r.Verb == Reserve && (!found || sh.mu.store.at(slot).ending() == released && sh.mu.store.at(slot).attempt() != attempt):
		return sh.reserveLocked(now, r, d)
	case !found, r.Verb != Settle && !sh.mu.store.at(slot).isOpen() && guard.On(guard.EndedStays), r.Verb == Reserve && x.Fresh && sh.mu.store.at(slot).attempt() != attempt:
		x.Reserved.Unknown = true
	case r.Verb == Reserve:
		x.Reserved.Repeated, d.Allowed = true, true
		if sh.mu.store.at(slot).attempt() != attempt {
			g := sh.lookLocked(slot)
			g.setWho(0, sh.mu.store.at(slot).callerOf())
			sh.followLocked(now, sh.mu.store.at(slot).key, sh.keepLocked(g, changed), r.Unreplicated)
		}
	case r.Verb == Settle:
		return sh.settleLocked(c, at, slot, r, d)
	default:
		grown = sh.changeOnceLocked(now, r, d)
		c = sh.getLocked(at, r.Key)
		slot, found = sh.mu.store.find(r.Key.grantKey(x.ID))
	}
	if found {
		g := sh.mu.store.at(slot)
		x.Reserved.Units = g.spent
		if g.isOpen() {
			x.Reserved.Expires = time.Duration(subSat(g.now, at))
		}
	}
	sh.standLocked(c, at, d)
	return grown
}

// changeOnceLocked spends or extends an open reservation, unless r.Once is remembered.
func (sh *shard) changeOnceLocked(now int64, r *Request, d *Decision) (grown bool) {
	at, key := sh.atLocked(now), r.Key.grantKey(r.Reservation.ID)
	slot, _ := sh.mu.store.find(key)
	limits, once := sh.limitsOf(slot), r.Once != 0 && r.Cost != 0
	if once && sh.doneLocked(at, r) {
		d.Allowed = true
		return false
	}
	c := sh.getLocked(at, r.Key)
	slot, _ = sh.mu.store.find(key)
	if r.Verb == Spend {
		sh.spendLocked(c, at, slot, r, d)
	} else {
		sh.extendLocked(c, at, slot, r, d)
	}
	if once && d.Allowed {
		grown = sh.rememberLocked(now, r, limits)
	}
	return grown
}

// attemptOf returns what is kept of Request.Once, 0 only for 0.
func attemptOf(once uint64) uint32 {
	if once == 0 {
		return 0
	}
	return 1 + uint32(once%attemptMask)
}

// cancelLocked cancels the attempt of r, whose reservation, if found, is in slot.
func (sh *shard) cancelLocked(now int64, slot uint32, found bool, r *Request, d *Decision) (grown bool) {
	at, attempt := sh.atLocked(now), attemptOf(r.Once)
	d.Allowed = true
	switch {
	case !found && r.Limits != nil: // so that what is still on its way gets nothing
		key := r.Key.grantKey(r.Reservation.ID)
		g := counter{limits: r.Limits, now: addSat(at, int64(cancelFor)), first: state{aux: int64(r.Key.Hi), last: never}}
		g.setWho(attempt, 0)
		sh.putOutcomeLocked(now, key, &g, r.Unreplicated)
		return true
	case found && sh.mu.store.at(slot).isOpen() && sh.mu.store.at(slot).attempt() == attempt:
		g := sh.mu.store.at(slot)
		units, made, use := g.spent, subSat(g.now, int64(r.Reservation.For)), g.use()
		r.Reservation.Reserved.Returned = units
		sh.endForLocked(int64(cancelFor), at, slot, released, 0)
		if c := sh.getLocked(at, r.Key); use == ForSlot && c != nil && !c.limits.stateless {
			c.undoAt(made, c.settle(at), units, false)
			sh.followLocked(now, r.Key, sh.keepLocked(c, changed), r.Unreplicated)
		}
		sh.mu.seq++
	}
	return false
}

// standLocked describes c, nil for none, in d. What c was changed to must be kept by then.
func (sh *shard) standLocked(c *counter, at int64, d *Decision) {
	if c == nil {
		return
	}
	allowed, retry := d.Allowed, d.RetryAfter
	then := c.settle(at)
	c.describeLeast(d, then)
	d.seenFrom(at, then)
	d.Allowed, d.RetryAfter = allowed, retry
}

// reserveLocked makes a reservation.
func (sh *shard) reserveLocked(now int64, r *Request, d *Decision) (grown bool) {
	x := r.Reservation
	l := LeaseRequest{
		Key: r.Key, Limits: r.Limits, Want: r.Cost, Part: 1, Whole: 1, Reserve: r.Reserve, For: x.For,
		Unreplicated: r.Unreplicated, DenyLost: r.DenyLost, reservation: x, attempt: r.Once,
	}
	if x.Lease {
		l.Whole = leaseWhole
	}
	var g Grant
	grown = sh.grantLocked(now, &l, &g)
	*d = g.Decision
	d.Allowed, d.Soft, d.Delay, d.RetryAfter = g.Units > 0, false, 0, g.RetryAfter
	x.Reserved.Units, x.Reserved.Expires = g.Units, g.For
	return grown
}

// spendLocked charges units of the open reservation in slot, if it has so many.
func (sh *shard) spendLocked(c *counter, at int64, slot uint32, r *Request, d *Decision) {
	g := sh.mu.store.at(slot)
	units := max(0, r.Cost)
	if d.Allowed = units <= g.spent; !d.Allowed || units == 0 {
		return
	}
	sh.changeLocked(at, slot, open, g.spent-units, g.now)
	c.settleUnits(c.settle(at), units, g.use(), sh.limitsOf(slot))
	sh.followLocked(sh.clockLocked(at), r.Key, sh.keepLocked(c, changed), r.Unreplicated)
}

// extendLocked gives the open reservation in slot more units or fewer, and a later deadline.
func (sh *shard) extendLocked(c *counter, at int64, slot uint32, r *Request, d *Decision) {
	g, x := sh.mu.store.at(slot), r.Reservation
	units := addSat(g.spent, max(r.Cost, -g.spent))
	if x.Most > 0 && r.Cost > 0 && units > x.Most {
		d.RetryAfter = Never
		return
	}
	if r.Cost > 0 {
		got, wait := c.spare(c.settle(at), &LeaseRequest{
			Want: r.Cost, Part: 1, Whole: 1, Reserve: r.Reserve, reservation: &Reservation{Least: r.Cost},
		})
		if got < r.Cost {
			d.RetryAfter = time.Duration(wait)
			return
		}
	}
	d.Allowed = true
	more, end := units-g.spent, max(g.now, addSat(at, int64(min(x.For, MostReservation))))
	if end == g.now && more == 0 {
		return
	}
	sh.changeLocked(at, slot, open, units, end)
	if sh.mu.seq++; g.use() != ForSlot || c.limits.stateless || more == 0 {
		return
	}
	if now := c.settle(at); more > 0 {
		c.charge(now, more)
	} else if x.For > 0 {
		c.undoAt(subSat(at, int64(x.For)), now, -more, true)
	}
	sh.followLocked(sh.clockLocked(at), r.Key, sh.keepLocked(c, changed), r.Unreplicated)
}

// undoAt undoes a charge of units at made, or since then if since is set, that no Receipt
// remembers, as far as it certainly still counts. c is settled to now.
func (c *counter) undoAt(made, now, units int64, since bool) {
	plans := c.limits.plans
	for i := range plans {
		p, s, m, cost := &plans[i], c.at(i), mark{}, mulSat(units, plans[i].cost)
		switch p.kind {
		case kindLog, kindBins:
			if m.aux = p.dateOf(made); since {
				if m.aux > subSat(now, p.span) { // what is newer is at least that charge
					s.refundLog(cost)
				}
				continue
			}
		case kindFixed, kindStep:
			if m.aux = made; made < s.aux && s.aux <= p.windowEnd(made) {
				m.aux = s.aux // nothing has ended since
			}
		}
		s.undo(p, m, made, now, cost)
	}
	c.cuts += oneCut
}

// settleLocked settles the reservation in slot.
func (sh *shard) settleLocked(c *counter, at int64, slot uint32, r *Request, d *Decision) (grown bool) {
	g, x := sh.mu.store.at(slot), r.Reservation
	units, ended, use, limits := g.spent, g.ending(), g.use(), sh.limitsOf(slot)
	actual := max(0, r.Cost)
	charge := actual
	d.Allowed = true
	switch ended {
	case settled:
		x.Reserved.Repeated, x.Reserved.Units = true, units
		sh.standLocked(c, at, d)
		return false
	case expired: // its units were charged
		charge, actual = max(0, actual-units), max(actual, units)
		fallthrough
	case released:
		x.Reserved.Late = true
	}
	sh.ensureOwnerLocked(r.Key, limits, at)
	b := bound{held: units, longest: int64(x.For)}
	if ended == expired {
		b.held = 0
	}
	if c = sh.getLocked(at, r.Key); use == ForLease {
		charge, actual = min(charge, units), min(actual, units)
	} else if use != ForSlot && c.limits.Equal(limits) { // others become full at most
		over := charge - min(charge, c.most(c.settle(at), b))
		charge, actual = charge-over, actual-over
	}
	if x.Fresh && use == ForSlot && ended == open {
		sh.forgetGrantLocked(at, slot)
		sh.forgetChangesLocked(at, r.Key, x.ID)
	} else {
		sh.endLocked(at, slot, settled, actual)
	}
	c = sh.getLocked(at, r.Key)
	c.settle(at)
	c.settleWithin(c.now, charge, b, use, limits)
	o := sh.keepLocked(c, changed)
	sh.standLocked(c, at, d)
	sh.followLocked(sh.clockLocked(at), r.Key, o, r.Unreplicated)
	x.Reserved.Units = actual
	if ended == open {
		x.Reserved.Returned = max(0, units-actual)
	}
	return o.grown > 0
}

// Held is an open grant of a key.
type Held struct {
	ID      uint64
	Use     Use
	Caller  uint32 // 0 for nobody known
	Units   int64
	Expires time.Duration
}

// Held returns the open grants of key at now, at most most, and the number and the units of all. They are in no order if there are
// more.
func (t *Table) Held(now int64, key Key, most int) (list []Held, all int, units int64) {
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	at := sh.atLocked(inRange(now))
	c := sh.getLocked(at, key)
	if c == nil || c.granted() == 0 {
		return nil, 0, 0
	}
	s := &sh.mu.store
	for _, d := range c.more.ledger.deadlines() {
		slot, ok := s.find(Key{d.hi, key.Lo})
		if !ok || !s.at(slot).isOpen() || s.at(slot).now < d.at {
			continue
		}
		if len(list) == most {
			break
		}
		g := s.at(slot)
		list = append(list, Held{g.id(), g.use(), g.callerOf(), g.spent, time.Duration(subSat(g.now, at))})
	}
	return list, c.granted(), c.more.ledger.units()
}
