package bucket

import "math"

// Receipt remembers one charge so that it can be undone. The zero value remembers none. A
// Receipt may be used again; it then reuses its memory.
type Receipt struct {
	key Key
	// counter is the very counter that was charged: one that took its place
	// after a reset, an eviction or a change of limits never had the charge. It
	// is also replaced at a refund, which may already have given the charge back.
	counter  *counter
	at, cost int64
	// ahead is what the shard's clock was corrected by then.
	ahead int64
	// admissions and cuts are the counter's, just after the charge.
	admissions, cuts uint32
	// transient is the request's.
	transient bool
	first     mark
	rest      []mark
}

// Charged reports whether rc remembers a charge.
func (rc *Receipt) Charged() bool { return rc.counter != nil }

// mark is what a charge to one limit must remember to be undone: the level (see state)
// just before it, the end of the window or step or the date of the entry that it went into, and the admission before it.
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

// before fills in what must be known of c before the charge.
func (rc *Receipt) before(c *counter, now int64) {
	plans := c.limits.plans
	rc.first = markOf(&plans[0], &c.first, now)
	rc.rest = rc.rest[:0]
	for i := 1; i < len(plans); i++ {
		rc.rest = append(rc.rest, markOf(&plans[i], c.at(i), now))
	}
}

// after completes the receipt once the charge is made to c, which is in the table now.
func (rc *Receipt) after(r *Request, c *counter, cost, ahead int64) {
	c.cuts |= flagHeld
	rc.key, rc.counter, rc.transient = r.Key, c, r.Transient
	rc.at, rc.cost, rc.ahead = c.now, cost, ahead
	rc.admissions, rc.cuts = c.admissions, c.cuts
}

// undo takes back the charge in rc. c is settled to now.
func (c *counter) undo(rc *Receipt, now int64) {
	plans := c.limits.plans
	for i := range plans {
		m := rc.first
		if i > 0 {
			m = rc.rest[i-1]
		}
		if (c.cuts ^ rc.cuts) >= oneCut {
			// Something below this charge may be gone, so what has drained since
			// counts against the charge alone.
			m.spent, m.aux = 0, drained(&plans[i], m.aux)
		}
		s := c.at(i)
		s.undo(&plans[i], m, rc.at, now, mulSat(rc.cost, plans[i].cost))
		if c.admissions == rc.admissions && s.last == rc.at {
			s.last = m.last
		}
	}
	c.cuts += oneCut
}

// drained returns what mark.aux becomes when the level before the charge is not to be relied on.
func drained(p *plan, aux int64) int64 {
	if p.kind == kindFlow {
		return 0
	}
	return aux
}

// undo takes back what is left of a charge of cost at time at, as m remembers it. It
// leaves no more room than there would be had the charge never been made.
func (s *state) undo(p *plan, m mark, at, now, cost int64) {
	if s.spent == math.MaxInt64 && p.kind != kindLog && p.kind != kindBins {
		return // saturated: how much of it was this charge is not known
	}
	switch p.kind {
	case kindFlow:
		s.undoFlow(p, m, at, now, cost)
	case kindStep:
		s.undoStep(p, m, now, cost)
	case kindFixed:
		s.undoFixed(p, m, cost)
	case kindLog, kindBins:
		s.undoLog(m.aux, cost)
	case kindWeighted:
		s.undoWeighted(p, at, now, cost)
	}
}
