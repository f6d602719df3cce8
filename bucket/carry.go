package bucket

// A counter has one time, which is never behind that of any of its windows. When one of
// them has begun later than the clock here shows, or a counter is merged with one that is
// ahead of the clock, the rest of it must come along: it stands still until then, as
// a counter does when the clock steps back.

// carry moves the counter from its time to the later time to as if no time had passed
// between. Without aligned, states of aligned limits stay as they are, because they belong to to.
func (c *counter) carry(to int64, aligned bool) {
	plans := c.limits.plans
	for i := range plans {
		c.at(i).carry(&plans[i], c.now, to, aligned)
	}
	list := c.shadows()
	for i := range list {
		x := &list[i]
		x.state.carry(x.plan(), c.now, to, aligned)
	}
	lent := c.grants()
	for i := range lent {
		lent[i].end = addSat(lent[i].end, subSat(to, c.now))
	}
	c.now = to
}

// carry moves s, settled to from, to the later time to. Nothing that counts at from counts for less time
// after to than it would have after from.
func (s *state) carry(p *plan, from, to int64, aligned bool) {
	if s.last != never {
		s.last += to - from // wraps, unless the two are further apart than int64 can say; the sum does not
	}
	if !aligned && p.aligned() {
		return
	}
	switch p.kind {
	case kindStep, kindFixed:
		switch {
		case s.aux == never:
		case p.align == AlignFirstHit:
			s.aux = addSat(to, saturate(elapsed(from, s.aux)))
		default:
			s.aux = max(s.aux, p.windowEnd(to))
		}
	case kindLog, kindBins:
		v, d := s.span(), p.grainOf(to)-p.grainOf(from)
		for i := range v.n {
			s.log.at(v, i).grain += d
		}
	case kindWeighted:
		// What still counts of the window before must not fade with the time that is left out.
		s.spent, s.aux = s.usedWeighted(p, from), 0
	}
}
