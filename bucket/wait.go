package bucket

// What is lent counts on after its loan has ended, so how long something takes depends on the loans too.

// retry returns the time (ns) from now until limit i has room for units > 0, or Never.
func (c *counter) retry(i int, now, units int64) int64 {
	p := &c.limits.plans[i]
	if p.kind == kindUnlimited {
		return 0
	}
	if units > p.capacity {
		return int64(Never)
	}
	return max(c.until(i, now, p.capacity-units), c.interval(i, now))
}

// interval is state.interval for limit i, with what is lent: it may have been spent just now, until the last loan ends.
// Limits with an interval do not lend, but may come into force while others have lent.
func (c *counter) interval(i int, now int64) int64 {
	p := &c.limits.plans[i]
	if list := c.grants(); len(list) > 0 && p.minInterval > 0 {
		return addSat(max(0, subSat(list[len(list)-1].end-1, now)), p.minInterval)
	}
	return c.at(i).interval(p, now)
}

// until is state.until for limit i, with what is lent: the time (ns) from now until at most target ≥ 0 units count,
// if nothing is charged and nothing comes back.
func (c *counter) until(i int, now, target int64) int64 {
	p, s, l := &c.limits.plans[i], c.at(i), c.ledger()
	switch {
	case l == nil || p.stateless():
		return s.until(p, now, target)
	case s.fits(p, len(l.grants)):
		return l.untilLog(i, p, s, now, target)
	}
	// From the end of one loan to the next, on a copy.
	t, at, held := *s, now, l.held(i, p.cost, 0)
	t.log = t.log.clone()
	for j := range l.grants {
		g := &l.grants[j]
		if g.isPaid(i) {
			continue
		}
		last := max(at, g.end-1)
		if held <= target {
			if wait := t.until(p, at, target-held); wait <= subSat(last, at) {
				return addSat(subSat(at, now), wait)
			}
		}
		held = l.heldAfter(i, p.cost, j, held)
		t.settle(p, at, last)
		t.chargeLate(p, last, mulSat(g.units, p.cost))
		at = last
	}
	return addSat(subSat(at, now), t.until(p, at, target))
}

// fits reports whether s is a log that can take n more entries without making old ones one.
func (s *state) fits(p *plan, n int) bool {
	return (p.kind == kindLog || p.kind == kindBins) && int(s.span().n)+n <= p.maxEntries
}

// untilLog is until for a log that fits, whose entries all expire before those that loans will make.
func (l *ledger) untilLog(i int, p *plan, s *state, now, target int64) int64 {
	held := l.held(i, p.cost, 0)
	if held <= target {
		return s.until(p, now, target-held)
	}
	j := 0
	for held = l.heldAfter(i, p.cost, 0, held); held > target; held = l.heldAfter(i, p.cost, j, held) {
		j++
	}
	last := max(now, l.grants[j].end-1)
	return addSat(subSat(last, now), p.expiry(p.dateOf(last), last))
}
