package bucket

import (
	"math"
	"time"

	"github.com/sluice-project/sluice/internal/leaf/guard"
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
	// Unreplicated is as in Request.
	Unreplicated bool
	// DenyLost is as in Request.
	DenyLost bool
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
	// Units may be spent from now on, by cost, and are already charged to every limit. 0: nothing can be granted now.
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

// Grant grants units of a key ahead of their use, charging them to all limits of the key or none. The leaseholder may spend
// each at any time within the grant's lifetime, counted from a moment before now. In no interval is more spent than the limits
// alone would admit there (see ledger.go), except by Charge. Units are taken from the limit without its soft margin.
//
// A request with an invalid Want, Part, Whole or For gets nothing. seq and v are as of Try.
//
// A Reset keeps grants, since they may still be spent. An eviction forgets them, so their units may be admitted once more.
func (t *Table) Grant(now int64, l *LeaseRequest) (g Grant, seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(l.Key)
	var o outcome
	if v = sh.verdictLocked(now, l.Unreplicated); v == Decided {
		o = sh.grantLocked(now, l, &g)
		sh.followLocked(now, l.Key, o, l.Unreplicated)
	}
	seq = sh.mu.seq
	sh.unlock(now, o.grown > 0)
	return g, seq, v
}

// Return ends grant id of key, of which unspent units will not be spent, and returns how many of them are free again. A grant
// is returned once, before it ends. back is 0 for one that is over, already returned, unknown, or from before a Refund or a
// merge with another counter. seq and v are as of Try, but v is never Behind.
func (t *Table) Return(now int64, key Key, id uint64, unspent int64) (back int64, seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	if sh.mu.sealed {
		return 0, sh.mu.seq, Sealed
	}
	if c := sh.getLocked(key); c != nil && len(c.grants()) > 0 {
		var o outcome
		back, o = sh.returnLocked(c, sh.atLocked(now), id, unspent)
		sh.followLocked(now, key, o, false)
	}
	return back, sh.mu.seq, Decided
}

// Granted returns the number of grants of key that have not ended at now, and their total units.
func (t *Table) Granted(now int64, key Key) (grants int, units int64) {
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	c := sh.getLocked(key)
	if c == nil {
		return 0, 0
	}
	now = sh.atLocked(inRange(now))
	for _, g := range c.grants() {
		if g.end > now {
			grants++
			units = addSat(units, g.units)
		}
	}
	return grants, units
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

// noteGrants keeps nextGrant from reusing the IDs of list.
func (t *Table) noteGrants(list []grant) {
	for i := range list {
		id := list[i].id
		for last := t.granted.Load(); last < id && !t.granted.CompareAndSwap(last, id); last = t.granted.Load() {
		}
	}
}

// grantable reports whether l can ever be granted.
func (l *LeaseRequest) grantable() bool {
	return l.Want > 0 && 0 < l.Part && l.Part <= l.Whole && l.Limits.Grantable(l.For)
}

// grantLocked grants l as far as possible, in g. clock is the callers' time.
func (sh *shard) grantLocked(clock int64, l *LeaseRequest, g *Grant) (o outcome) {
	now := sh.atLocked(clock)
	if lost := !sh.mayGrantAfterLoss(now, l); lost || !l.grantable() {
		r := &Request{Key: l.Key, Limits: l.Limits, Reserve: l.Reserve, Verb: Read, DenyLost: lost}
		sh.decideLocked(now, r, Read, 1, nil, &g.Decision)
		if g.RetryAfter = Never; lost {
			g.RetryAfter = g.Decision.RetryAfter
		}
		return o
	}
	id := sh.table.nextGrant(clock)
	c := sh.getLocked(l.Key)
	if c == nil {
		made := newCounter(l.Limits, now, &sh.mu.spare)
		if made.grant(now, l, id, g) {
			o = sh.insertLocked(l.Key, &made)
			o.did |= changed
		}
		sh.mu.spare.release()
		return o
	}
	c, o.did = sh.underLocked(c, l.Limits, now)
	at := c.settle(now)
	if c.grant(at, l, id, g) {
		o.did = changed
	}
	o = sh.keepLocked(c, o.did)
	g.Decision.seenFrom(now, at)
	postpone(elapsed(now, at), &g.RetryAfter)
	return o
}

func (sh *shard) returnLocked(c *counter, now int64, id uint64, unspent int64) (back int64, o outcome) {
	c.settle(now)
	list := c.grants()
	if i := findGrant(list, id); i >= 0 && !list[i].kept {
		g := list[i]
		back = min(max(0, unspent), g.units)
		c.settleGrant(i, back)
		if !guard.On(guard.SettleOnce) {
			c.setGrants(append(c.grants(), g))
		}
		o.did = changed
	}
	return back, sh.keepLocked(c, o.did)
}

// grant grants l, which is grantable, as id, as far as possible, and reports whether it granted anything.
func (c *counter) grant(now int64, l *LeaseRequest, id uint64, g *Grant) bool {
	units, wait := c.spare(now, l)
	life := int64(l.For)
	if guard.On(guard.BoundaryClip) {
		life = c.clip(now, life)
	}
	if life < int64(LeastLease) {
		units, wait = 0, max(wait, life)
	}
	if list := c.grants(); len(list) >= maxGrants {
		units, wait = 0, max(wait, list[0].end-now)
	}
	if units == 0 {
		g.RetryAfter = time.Duration(wait)
		c.read(&Request{Reserve: l.Reserve}, now, 1, &g.Decision)
		return false
	}
	c.addGrant(grant{id: id, end: addSat(now, life), units: units}, now)
	g.ID, g.Units, g.For = id, units, time.Duration(life)
	c.status(now, &g.Decision)
	return true
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
	if units > 0 {
		part, _ := mulDiv(units, l.Part, l.Whole)
		return min(l.Want, max(1, part)), 0
	}
	for i := range c.limits.plans {
		p := &c.limits.plans[i]
		if p.kind == kindUnlimited {
			continue
		}
		need, fits := p.needs(1, reserve)
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

// addGrant adds g, which ends no later than the first window.
func (c *counter) addGrant(g grant, now int64) {
	plans := c.limits.plans
	for i := range plans {
		p, s := &plans[i], c.at(i)
		if p.paysAtOnce() {
			s.charge(p, now, mulSat(g.units, p.cost))
			g.paid |= 1 << i
		}
		s.admit(p, now)
	}
	c.admissions++
	c.setGrants(append(c.grants(), g))
}

// paysAtOnce reports whether p charges a lease when it is granted rather than when it ends.
func (p *plan) paysAtOnce() bool {
	switch p.kind {
	case kindFlow:
		return !guard.On(guard.BurstShrink)
	case kindLog, kindBins:
		return !guard.On(guard.LateDate)
	}
	return p.windowed()
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
func (l *Limits) LongestLease() time.Duration {
	if l.unlimited {
		return 0
	}
	longest := int64(MostLease)
	for i := range l.plans {
		longest = min(longest, l.plans[i].longestLease())
	}
	if longest < int64(LeastLease) {
		return 0
	}
	return time.Duration(longest)
}

// Grantable reports whether Grant can ever grant a lease for d under these limits: LeastLease ≤ d ≤ LongestLease.
func (l *Limits) Grantable(d time.Duration) bool { return LeastLease <= d && d <= l.LongestLease() }

// longestLease returns the longest lifetime (ns) of leases of p; 0 if it does not grant.
func (p *plan) longestLease() int64 {
	if p.kind == kindUnlimited {
		return math.MaxInt64
	}
	if p.queue || p.minInterval > 0 || p.countDenied || p.cost > p.limit {
		return 0
	}
	switch p.kind {
	case kindFlow:
		// The longest d with d × count / period < limit / 2.
		return ceilDiv(mulDivCeil(p.limit, p.period, p.count), 2) - 1
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
