package bucket

import "math"

// Clocks differ between nodes, so counters are transferred as elapsed and remaining times only (image.go): a window ends when
// the node that opened it has said, whatever the next node's clock shows. Only what begins later is aligned to the clock of the
// current node:
//
//   - The window after one of another clock ends at the boundary of this clock nearest to a full window later; see
//     following. So no window is shorter than half of one, and none is lost or doubled.
//   - The two windows of a sliding counter keep their phase until both are empty.
//   - New sub-windows begin by the clock here; transferred ones count until they have the normal age.
//   - Logs that are too short merge entries in slots of the clock here.

// Correct sets the clock that windows and steps are aligned to: the callers' now plus ahead (ns). Existing counts keep their
// remaining time: only what begins afterwards is aligned to it. It locks each shard while updating all of its counters, so use
// it only when a clock was wrong. Earlier receipts give nothing back.
func (t *Table) Correct(ahead int64) {
	for i := range t.shards {
		t.shards[i].correct(ahead)
	}
}

func (sh *shard) correct(ahead int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	by := subSat(ahead, sh.mu.ahead)
	if by == 0 {
		return
	}
	sh.mu.ahead = ahead
	for slot := range sh.mu.store.n {
		c := sh.lookLocked(slot)
		if at := sh.mu.store.at(slot).ledger(); at != nil {
			at.ledger().move(by)
		}
		c.move(inRange(addSat(c.now, by)))
		sh.saveLocked(c)
	}
}

// atLocked returns the shard's time for the callers' time now.
func (sh *shard) atLocked(now int64) int64 {
	if sh.mu.ahead == 0 {
		return now
	}
	return inRange(addSat(now, sh.mu.ahead))
}

// clockLocked is the reverse of atLocked.
func (sh *shard) clockLocked(at int64) int64 { return inRange(subSat(at, sh.mu.ahead)) }

// move moves the counter from its time to to as if no time had passed in between.
func (c *counter) move(to int64) {
	for i := range c.states() {
		if !c.has(flagGrant) {
			c.at(i).move(c.plan(i), c.now, to)
		}
	}
	c.now = to
}

func (l *ledger) move(by int64) {
	for i := range l.deadlines() {
		d := &l.deadlines()[i]
		d.at = inRange(addSat(d.at, by))
	}
	l.last = inRange(addSat(l.last, by))
}

// move moves s, settled to from, to the time to. What counts at from counts for as long after to.
func (s *state) move(p *plan, from, to int64) {
	if s.last != never {
		s.last += to - from // wraps, unless they differ by more than int64; the sum does not
	}
	switch p.kind {
	case kindStep, kindFixed:
		if s.aux != never {
			s.aux = addSat(to, saturate(elapsed(from, s.aux)))
		}
	case kindLog, kindBins:
		v := s.span()
		for i := range v.n {
			s.log.at(v, i).at += to - from
		}
	case kindWeighted:
		if s.spent > 0 || s.aux > 0 {
			s.phase = p.phaseAt(s.age(p, from), to)
		}
	}
}

// phaseAt returns the phase of windows of which one has the given age at now.
func (p *plan) phaseAt(age, now int64) int64 {
	return floorMod(floorMod(now, p.period)-age, p.period)
}

// following returns the end of the window that begins at e. An e that is no boundary of this clock comes from another one.
func (p *plan) following(e int64) int64 {
	next := p.windowEnd(e)
	if p.align == AlignFirstHit || p.begins(e) {
		return next
	}
	if after := p.windowEnd(next); subSat(next, e) < subSat(after, next)/2 {
		return after
	}
	return next
}

// begins reports whether e is a boundary of this clock.
func (p *plan) begins(e int64) bool {
	if p.cal != nil {
		return e <= never+1 || p.cal.end(e-1) == e
	}
	return floorMod(e, p.period) == 0
}

// steps returns the number of boundaries in (e, now], if e is one.
func (p *plan) steps(e, now int64) int64 {
	if now <= e {
		return 0
	}
	if p.align == AlignFirstHit {
		return saturate(elapsed(e, now) / uint64(p.period))
	}
	first := p.following(e)
	switch {
	case now < first:
		return 0
	case p.cal != nil:
		return addSat(1, p.cal.count(first, now))
	}
	return addSat(1, saturate(elapsed(first, now)/uint64(p.period)))
}

// nth returns the n-th boundary (n ≥ 0) after the boundary e; 0 is e itself.
func (p *plan) nth(e, n int64) int64 {
	switch {
	case n == 0 || e == math.MaxInt64:
		return e
	case p.align == AlignFirstHit:
		return addSat(e, mulSat(n, p.period))
	}
	first := p.following(e)
	switch {
	case n == 1:
		return first
	case p.cal != nil:
		return p.cal.nth(first, n-1)
	}
	return addSat(first, mulSat(n-1, p.period))
}
