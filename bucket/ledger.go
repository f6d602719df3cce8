package bucket

import (
	"cmp"
	"math"
	"slices"
)

// A granted unit counts from the moment it is granted, and as if it were spent at the last possible moment. Whenever it is
// really spent, that is never more permissive than the algorithm:
//
//   - A bucket would have started to drain it earlier. While it is granted it does not drain, so the burst is smaller by the
//     granted units. Let V be the level with the real spending, L the level of the state, and H the granted units, of which S
//     are spent. V ≤ L + S always: a spent unit raises both by one; when a lease ends, L gains all of it and S loses the spent
//     part; and V drains whenever L does, or is at most S. So V ≤ L + H, which no check or lease lets exceed the capacity.
//   - A log would have dropped it earlier.
//   - A window is the same wherever in it the unit is spent. Leases end with the windows they are charged to, so they are
//     charged at once, and exactly.
//
// Units charged at once are paid; the others are held: they are subtracted from the capacity until the lease ends.

// grant is one lease.
type grant struct {
	id uint64
	// end is the counter's time from which on it may not be spent.
	end, units int64
	// paid has a bit for every limit in whose state the units are already charged.
	paid uint16
	// kept: nothing of it can be given back.
	kept bool
}

// maxGrants bounds the grants of a counter.
const maxGrants = 256

// grants returns the grants of c that have not ended, sorted by end.
func (c *counter) grants() []grant {
	if c.more == nil {
		return nil
	}
	return c.more.grants
}

// plans returns the limits' plans, with the held units subtracted from the capacity. Only deciding and describing use these.
func (c *counter) plans() []plan {
	if len(c.grants()) > 0 {
		return c.more.plans
	}
	return c.limits.plans
}

// setGrants sets the grants of c, in any order and including expired ones.
func (c *counter) setGrants(list []grant) {
	if len(list) == 0 && len(c.grants()) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b grant) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.id, b.id)) })
	c.ensureMore().grants = list
	c.holdGranted()
}

// holdGranted makes the plans of c.
func (c *counter) holdGranted() {
	m := c.more
	if m.plans = m.plans[:0]; len(m.grants) == 0 {
		return
	}
	m.plans = append(m.plans, c.limits.plans...)
	for i := range m.plans {
		p := &m.plans[i]
		held := heldBy(m.grants, i, p.cost)
		p.limit, p.capacity = max(0, p.limit-held), max(0, p.capacity-held)
		if p.minInterval > 0 && !p.blocks {
			p.capacity = 0 // see interval
		}
	}
}

// heldBy returns the units of limit i that the grants of list hold; cost is the limit's cost of a unit.
func heldBy(list []grant, i int, cost int64) (held int64) {
	for j := range list {
		if g := &list[j]; !g.isPaid(i) {
			held = addSat(held, mulSat(g.units, cost))
		}
	}
	return held
}

// heldAfter returns what is held after the first of list; held is what is held from it on.
func heldAfter(list []grant, i int, cost, held int64) int64 {
	switch g := &list[0]; {
	case g.isPaid(i):
		return held
	case held < math.MaxInt64:
		return held - mulSat(g.units, cost)
	}
	return heldBy(list[1:], i, cost)
}

func (g *grant) isPaid(i int) bool { return g.paid&(1<<i) != 0 }

// keepGrants makes Return give nothing back of the grants of c.
func (c *counter) keepGrants() {
	list := c.grants()
	for i := range list {
		list[i].kept = true
	}
}

// findGrant returns the index of grant id in list, or -1.
func findGrant(list []grant, id uint64) int {
	return slices.IndexFunc(list, func(g grant) bool { return g.id == id })
}

// lapse ends the grants that end at or before now: their units count as spent in the last nanosecond.
func (c *counter) lapse(now int64) {
	list := c.grants()
	n := 0
	for ; n < len(list) && list[n].end <= now; n++ {
		g := &list[n]
		c.settleStates(max(c.now, g.end-1))
		c.pay(g, g.units)
	}
	if n > 0 {
		c.setGrants(slices.Delete(list, 0, n))
	}
}

// pay charges the spent units of g, which ends, to all states that they were not charged to.
func (c *counter) pay(g *grant, spent int64) {
	if spent == 0 {
		return
	}
	plans := c.limits.plans
	for i := range plans {
		p, s := &plans[i], c.at(i)
		if !g.isPaid(i) {
			s.chargeLate(p, c.now, mulSat(spent, p.cost))
		}
		s.admit(p, c.now)
	}
	c.admissions++
	c.chargeShadows(c.now, spent, (*state).chargeLate)
}

// chargeLate charges units > 0 that were spent at now or before. Their window ends no sooner than if they had opened it,
// whatever was charged in between or merged from a counter with other windows.
func (s *state) chargeLate(p *plan, now, units int64) {
	s.charge(p, now, units)
	if p.kind == kindStep || p.kind == kindFixed {
		s.aux = max(s.aux, p.windowEnd(now))
	}
}

// settleGrant ends the grant at index i, of which unspent units were not spent.
func (c *counter) settleGrant(i int, unspent int64) {
	list := c.grants()
	g := list[i]
	c.pay(&g, g.units-unspent)
	plans := c.limits.plans
	for j := range plans {
		// A saturated state does not tell how much of it was this grant.
		if p, s := &plans[j], c.at(j); g.isPaid(j) && unspent > 0 && s.spent < math.MaxInt64 {
			s.refund(p, mulSat(unspent, p.cost))
		}
	}
	c.cuts += oneCut
	c.setGrants(slices.Delete(list, i, i+1))
}

// Receipt remembers one charge so that it can be undone. The zero value remembers none. A Receipt may be reused, with its
// memory.
type Receipt struct {
	key Key
	// counter is the exact counter that was charged: its successor after a reset, eviction or change of limits never had the
	// charge. It is also replaced at a refund, which may already have returned the charge.
	birth    uint16
	charged  bool
	at, cost int64
	// ahead is the correction of the shard's clock at the time.
	ahead int64
	// admissions and cuts are the counter's, just after the charge.
	admissions, cuts uint32
	// unreplicated is the request's.
	unreplicated bool
	first        mark
	rest         []mark
}

// Charged reports whether rc remembers a charge.
func (rc *Receipt) Charged() bool { return rc.charged }

// mark is what undoing a charge to one limit needs: the level (see state) just before it, the end of the window or step or the
// date of the entry that it went into, and the admission before it.
type mark struct{ spent, aux, last int64 }

// markOf returns the mark of a charge to s that is about to be made.
func markOf(p *plan, s *state, now int64) mark {
	m := mark{s.spent, s.aux, s.last}
	switch p.kind {
	case kindFixed, kindStep:
		if m.aux == never {
			m.aux = p.windowEnd(now)
		}
	case kindLog, kindBins:
		m.aux = s.entryFor(p, now)
	}
	return m
}

// before records the state of c before the charge.
func (rc *Receipt) before(c *counter, now int64) {
	plans := c.limits.plans
	rc.first = markOf(&plans[0], &c.first, now)
	rc.rest = rc.rest[:0]
	for i := 1; i < len(plans); i++ {
		rc.rest = append(rc.rest, markOf(&plans[i], c.at(i), now))
	}
}

// after completes the receipt after the charge to c, which is now in the table.
func (rc *Receipt) after(r *Request, c *counter, cost, ahead int64) {
	rc.key, rc.birth, rc.charged, rc.unreplicated = r.Key, c.birth, true, r.Unreplicated
	rc.at, rc.cost, rc.ahead = c.now, cost, ahead
	rc.admissions, rc.cuts = c.admissions, c.cuts
}

// undo undoes the charge in rc. c is settled to now.
func (c *counter) undo(rc *Receipt, now int64) {
	plans := c.limits.plans
	for i := range plans {
		m := rc.first
		if i > 0 {
			m = rc.rest[i-1]
		}
		if (c.cuts^rc.cuts)&cutsMask >= oneCut {
			// Something below this charge may be gone, so everything drained since counts against the charge alone.
			if m.spent = 0; plans[i].kind == kindFlow {
				m.aux = 0
			}
		}
		s := c.at(i)
		s.undo(&plans[i], m, rc.at, now, mulSat(rc.cost, plans[i].cost))
		if (c.admissions^rc.admissions)&admissionsMask == 0 && s.last == rc.at {
			s.last = m.last
		}
	}
	c.cuts += oneCut
}

// undo undoes what is left of a charge of cost at time at, as m remembers it. It leaves no more room than if the charge had
// never been made.
func (s *state) undo(p *plan, m mark, at, now, cost int64) {
	if s.spent == math.MaxInt64 && p.kind != kindLog && p.kind != kindBins {
		return // saturated: the part of this charge is unknown
	}
	switch p.kind {
	case kindFlow:
		s.undoFlow(p, m, at, now, cost)
	case kindStep:
		s.undoStep(p, m, now, cost)
	case kindFixed:
		if s.aux == m.aux && s.aux != never { // its window is still open
			s.refund(p, cost)
		}
	case kindLog, kindBins:
		s.undoLog(m.aux, cost)
	case kindWeighted:
		s.undoWeighted(p, at, now, cost)
	}
}
