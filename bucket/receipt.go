package bucket

import "math"

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
