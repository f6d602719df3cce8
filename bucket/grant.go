package bucket

import (
	"math"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// LeaseRequest requests units ahead of their use.
type LeaseRequest struct {
	Key    Key
	Limits *Limits
	// Want is the maximum number of units, in units of a check's cost, above 0.
	Want int64
	// At most Part/Whole of the available units is granted, rounded down, but at least one unit. 0 < Part ≤ Whole.
	Part, Whole int64
	// Reserve is the number of units that must stay free in every limit, as in Request; 0 or more.
	Reserve int64
	// For is the requested lifetime, LeastLease to MostLease; see Limits.Grantable.
	For time.Duration
	// Across is for how long before its end a window grants leases that do not end with it: their units count in both. 0: it never does.
	Across time.Duration
	// Unreplicated is as in Request.
	Unreplicated bool
	// DenyLost is as in Request.
	DenyLost bool
	// Nearest rounds Part/Whole of the units to the nearest number.
	Nearest bool
	// reservation is that of verb Reserve, of at least Least units, or nil for a lease.
	reservation *Reservation
	attempt     uint64
}

// Bounds of a lease's lifetime.
const (
	LeastLease = time.Millisecond
	MostLease  = time.Hour
)

// Grant answers a LeaseRequest.
type Grant struct {
	// ID identifies the grant for Return. It is unique in its table.
	ID uint64
	// Units may be spent from now on, by cost, and are held by every limit. 0: nothing can be granted now.
	Units int64
	// For is the lifetime, at most the requested one: no unit may be spent For after the request was sent, or later.
	For time.Duration
	// Decision is the state of the counter after the grant. If Units is 0, it is the answer to a Read of cost 1 with Reserve,
	// which may be allowed.
	Decision Decision
	// RetryAfter is the time until a unit could be granted if nothing else came; 0 if one was, Never if these limits do not
	// grant.
	RetryAfter time.Duration
}

// Grant grants units of a key ahead of their use, of all limits of the key or of none. The leaseholder may spend
// each at any time within the grant's lifetime, counted from a moment before now. In no interval is more spent than the limits
// alone would admit there (see ledger.go), except by Charge. Units are taken from the limit without its soft margin.
//
// A request with an invalid Want, Part, Whole or For gets nothing. seq and v are as of Try.
//
// A Reset keeps grants, since they may still be spent. An eviction forgets them, so their units may be admitted once more.
func (t *Table) Grant(now int64, l *LeaseRequest) (g Grant, seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(l.Key)
	grown := false
	if v = sh.verdictLocked(now, l.Unreplicated); v == Decided {
		grown = sh.grantLocked(now, l, &g)
	}
	seq = sh.mu.seq
	sh.unlock(now, grown)
	return g, seq, v
}

// Return ends grant id of key, of which unspent units will not be spent, and returns how many of them are free again. A grant
// is returned once, before it ends. back is 0 for one that is over, already returned or unknown. seq and v are as of Try,
// but v is never Behind.
func (t *Table) Return(now int64, key Key, id uint64, unspent int64) (back int64, seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	if sh.mu.sealed {
		return 0, sh.mu.seq, Sealed
	}
	at := sh.atLocked(now)
	if c := sh.getLocked(at, key); c != nil && c.granted() > 0 {
		back = sh.returnLocked(c, at, key, id, unspent)
	}
	return back, sh.mu.seq, Decided
}

// Granted returns the number of grants of key that have not ended at now, and their total units.
func (t *Table) Granted(now int64, key Key) (grants int, units int64) {
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	c := sh.getLocked(sh.atLocked(inRange(now)), key)
	if c == nil || c.granted() == 0 {
		return 0, 0
	}
	return c.granted(), c.more.ledger.units()
}

// nextGrant returns an ID that no grant of this table has, imported ones included. It is based on time, so that another table
// has not used it for the same key either.
func (t *Table) nextGrant(now int64) uint64 {
	for {
		last := t.granted.Load()
		// The sign bit is inverted, so that earlier times are smaller.
		if next := max(last+1, uint64(now)^1<<63); t.granted.CompareAndSwap(last, next) {
			return next
		}
	}
}

// noteGrant keeps nextGrant from reusing an ID.
func (t *Table) noteGrant(id uint64) {
	for last := t.granted.Load(); last < id && !t.granted.CompareAndSwap(last, id); last = t.granted.Load() {
	}
}

// grantable reports whether l can ever be granted.
func (l *LeaseRequest) grantable() bool {
	if l.reservation != nil && !l.reservation.Lease {
		return l.reservation.valid(l.Want, l.Limits)
	}
	return l.Want > 0 && 0 < l.Part && l.Part <= l.Whole && l.Limits.Grantable(l.For)
}

// least returns how many units will do.
func (l *LeaseRequest) least() int64 {
	if l.reservation != nil {
		return l.reservation.Least
	}
	return 1
}

// name returns the ID and the attributes of the grant.
func (l *LeaseRequest) name(clock int64, t *Table) (id uint64, kind uint32) {
	if r := l.reservation; r != nil {
		if r.Lease {
			return r.ID, attributes(ForLease, open, false)
		}
		if l.Limits.slots {
			return r.ID, attributes(ForSlot, open, true)
		}
		return r.ID, attributes(ForReservation, open, r.Release)
	}
	return t.nextGrant(clock), attributes(ForLease, open, false)
}

// grantLocked grants l as far as possible, in g. clock is the callers' time.
func (sh *shard) grantLocked(clock int64, l *LeaseRequest, g *Grant) (grown bool) {
	now := sh.atLocked(clock)
	if lost := !sh.mayGrantAfterLoss(now, l); lost || !l.grantable() {
		r := &Request{Key: l.Key, Limits: l.Limits, Reserve: l.Reserve, Verb: Read, DenyLost: lost}
		sh.decideLocked(now, r, Read, 1, nil, &g.Decision)
		if g.RetryAfter = Never; lost {
			g.RetryAfter = g.Decision.RetryAfter
		}
		return false
	}
	var made counter
	var did effects
	c := sh.getLocked(now, l.Key)
	var o outcome
	if c == nil {
		made.begin(l.Limits, now, &sh.mu.spare)
		c = &made
	} else if !c.limits.Equal(l.Limits) && l.deniedBy(c, now, &made) {
		c = &made // as a denied check, this leaves c as it is
	} else {
		c, o = sh.underLocked(c, l.Limits, now)
	}
	at := c.settle(now)
	units, life, wait := c.lease(at, now, l)
	if units > 0 && sh.table.fullFor(l.Limits) {
		units, wait = 0, int64(fullRetry)
	}
	if units > 0 && l.Limits.slots && !l.Limits.stateless {
		c.charge(at, units)
		did |= changed
	}
	switch {
	case c != &made:
		if units > 0 {
			o = o.and(sh.keepLocked(c, did))
		}
		sh.followLocked(clock, l.Key, o, l.Unreplicated)
		grown = o.grown > 0
	case did != 0:
		o := sh.insertLocked(l.Key, c)
		o.did |= did
		sh.followLocked(clock, l.Key, o, l.Unreplicated)
		c = sh.getLocked(now, l.Key)
	}
	if units == 0 {
		g.RetryAfter = time.Duration(wait)
		c.read(&Request{Reserve: l.Reserve}, at, l.least(), &g.Decision)
	} else {
		id, kind := l.name(clock, sh.table)
		key := l.Key.grantKey(id)
		opened := counter{limits: l.Limits, now: addSat(now, life), first: state{spent: units, aux: int64(l.Key.Hi), last: never}, admissions: kind}
		opened.setWho(attemptOf(l.attempt), uint32(l.attempt>>(64-CallerBits)))
		o := sh.putGrantLocked(now, key, &opened)
		sh.followLocked(clock, key, outcome{did: changed, counter: o.counter}, l.Unreplicated)
		g.ID, g.Units, g.For = id, units, time.Duration(life)
		c = sh.getLocked(now, l.Key)
		at = c.settle(now)
		c.status(at, &g.Decision)
		sh.table.accountLocked(sh, clock, o)
		grown = true
	}
	sh.mu.spare.release()
	g.Decision.seenFrom(now, at)
	postpone(elapsed(now, at), &g.RetryAfter)
	return grown
}

// deniedBy reports whether nothing can be granted of c, which is forgotten under its own limits first, and sets seen to c under
// those of l.
func (l *LeaseRequest) deniedBy(c *counter, now int64, seen *counter) bool {
	if *seen = c.under(l.Limits, now, new(more)); !c.endsBefore(seen) {
		return false
	}
	units, _, _ := seen.lease(seen.settle(now), now, l)
	return units == 0
}

// returnLocked ends grant id of key, whose counter is c.
func (sh *shard) returnLocked(c *counter, at int64, key Key, id uint64, unspent int64) (back int64) {
	slot, ok := sh.mu.store.find(key.grantKey(id))
	if !ok || !sh.mu.store.at(slot).isOpen() {
		return 0
	}
	units, limits := sh.mu.store.at(slot).spent, sh.limitsOf(slot)
	back = min(max(0, unspent), units)
	if guard.On(guard.SettleOnce) {
		sh.endLocked(at, slot, settled, units-back)
	} else {
		sh.closeLocked(sh.mu.store.at(slot))
	}
	c.settleUnits(c.settle(at), units-back, ForLease, limits)
	sh.followLocked(sh.clockLocked(at), key, sh.keepLocked(c, changed), false)
	return back
}

// lease returns how many units of c can be granted to l, which is grantable, and for how long (ns), or the time until there is one.
// at is the counter's time, now the shard's.
func (c *counter) lease(at, now int64, l *LeaseRequest) (units, life, wait int64) {
	if units, wait = c.spare(at, l); l.reservation != nil && l.reservation.Hold {
		units, wait = l.Want, 0
	}
	life, most := int64(l.For), maxGrants
	if l.reservation != nil {
		most = int(min(int64(most), l.reservation.MaxOpen))
	}
	if l.reservation == nil || l.reservation.Lease {
		if end := c.clip(at, life); end >= int64(l.Across) {
			life = end
		}
		if life < int64(LeastLease) {
			units, wait = 0, max(wait, life)
		}
	}
	if c.granted() >= most {
		units, wait = 0, max(wait, int64(LeastLease))
		if list := c.firstGrants(); len(list) > 0 {
			wait = max(wait, list[0].end-now)
		}
	}
	return units, life, wait
}

// spare returns how many units can be granted to l, or how long (ns) until there is one.
func (c *counter) spare(now int64, l *LeaseRequest) (units, wait int64) {
	reserve := max(0, l.Reserve)
	units = math.MaxInt64
	plans := c.plans()
	for i := range plans {
		p := &plans[i]
		if p.kind == kindUnlimited {
			continue
		}
		left := subSat(p.limit-c.at(i).used(p, now), reserve)
		units = min(units, max(0, left)/p.cost)
	}
	if least := l.least(); units >= least {
		part, rest := mulDiv(units, l.Part, l.Whole)
		if l.Nearest && rest >= l.Whole-rest {
			part++
		}
		return min(l.Want, max(least, part)), 0
	}
	for i := range c.limits.plans {
		p := &c.limits.plans[i]
		if p.kind == kindUnlimited {
			continue
		}
		need, fits := p.needs(l.least(), reserve)
		if !fits || need > p.limit {
			return 0, int64(Never)
		}
		wait = max(wait, c.until(i, now, p.limit-need))
	}
	return 0, wait
}

// clip returns life (ns), shortened to the first end of a window.
func (c *counter) clip(now, life int64) int64 {
	plans := c.limits.plans
	for i := range plans {
		if p := &plans[i]; p.windowed() {
			life = min(life, subSat(p.boundary(c.at(i), now), now))
		}
	}
	return life
}

// logLoss is the minimum ratio of a log's period to a lease's lifetime. An entry dated at the lease's end counts up to a
// lifetime too long, so a log that only grants loses at most 1/logLoss of its throughput.
const logLoss = 40

// LongestLease returns the longest lifetime of leases under these limits, 0 if they do not grant:
//
//   - A bucket with continuous refill does not refill granted units, so large long leases would refill too little. It grants
//     for less than the time in which half of its burst refills.
//   - A log grants for at most a fortieth of its period; see logLoss.
//   - Windows and steps grant until they end, if they are long enough.
//   - A LeakyQueue does not grant, because admitted checks must wait. Neither do limits with a minimum interval or that count
//     denials, whose checks depend on each other, and limits that admit everything or nothing.
func (l *Limits) LongestLease() time.Duration { return l.longestLease(1) }

// LongestFarLease is LongestLease for another region, which reports soon what it has spent, and returns what it will not spend: four times as
// long for buckets.
func (l *Limits) LongestFarLease() time.Duration { return l.longestLease(4) }

func (l *Limits) longestLease(flows int64) time.Duration {
	if l.unlimited {
		return 0
	}
	longest := int64(MostLease)
	for i := range l.plans {
		longest = min(longest, l.plans[i].longestLease(flows))
	}
	if longest < int64(LeastLease) {
		return 0
	}
	return time.Duration(longest)
}

// Grantable reports whether Grant can ever grant a lease for d under these limits: LeastLease ≤ d ≤ LongestFarLease.
func (l *Limits) Grantable(d time.Duration) bool { return LeastLease <= d && d <= l.LongestFarLease() }

// longestLease returns the longest lifetime (ns) of leases of p; 0 if it does not grant. flows is what that of a bucket is multiplied by.
func (p *plan) longestLease(flows int64) int64 {
	if p.kind == kindUnlimited {
		return math.MaxInt64
	}
	if p.queue || p.minInterval > 0 || p.countDenied || p.cost > p.limit {
		return 0
	}
	switch p.kind {
	case kindFlow:
		// The longest d with d × count / period < limit / 2.
		return mulSat(flows, ceilDiv(mulDivCeil(p.limit, p.period, p.count), 2)-1)
	case kindLog, kindBins:
		return p.period / logLoss
	case kindStep, kindFixed, kindWeighted:
		if p.cal != nil {
			return math.MaxInt64
		}
		return p.period
	}
	return 0
}

// boundary returns the end of the window or step in which a charge to s at now counts.
func (p *plan) boundary(s *state, now int64) int64 {
	switch {
	case p.kind == kindWeighted:
		return addSat(now, p.period-s.age(p, now))
	case s.aux != never:
		return s.aux
	}
	return p.windowEnd(now)
}

// windowed reports whether p has windows or steps that a lease can end with.
func (p *plan) windowed() bool {
	return p.kind == kindStep || p.kind == kindFixed || p.kind == kindWeighted
}
