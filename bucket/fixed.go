package bucket

// The fixed window: count units in each of the windows that tile time. Up to twice
// the count fits around a boundary; the sliding algorithms exist to prevent that.

// settleFixed forgets a window that has ended. If it ended just before a boundary of this clock, because it came from
// another, the one that follows it is open already.
func (s *state) settleFixed(p *plan, now int64) {
	if now >= s.aux {
		s.spent, s.aux = 0, p.opened(s.aux, now)
	}
}

// opened returns the end of the window at now that follows one that ended at e ≤ now, or never if it is that of any
// charge at now.
func (p *plan) opened(e, now int64) int64 {
	if e == never || p.align == AlignFirstHit || p.begins(e) {
		return never
	}
	if end := p.following(e); now < end && end != p.windowEnd(now) {
		return end
	}
	return never
}

// atRest reports whether a charge to s, of which nothing is spent, begins what it would begin had s never been used.
func (s *state) atRest(p *plan, now int64) bool {
	switch p.kind {
	case kindStep, kindFixed:
		return s.aux == never || s.aux == p.windowEnd(now)
	}
	return true
}

// openFixed begins a window if none is open.
func (s *state) openFixed(p *plan, now int64) {
	if s.aux == never {
		s.aux = p.windowEnd(now)
	}
}

// windowEnd returns the end of the window that now lies in, or that a charge at
// now opens: the first instant after now that belongs to the next one.
func (p *plan) windowEnd(now int64) int64 {
	switch {
	case p.cal != nil:
		return p.cal.end(now)
	case p.align == AlignFirstHit:
		return addSat(now, p.period)
	}
	return addSat(now, p.period-floorMod(now, p.period))
}

// windowStart returns when the aligned window began that now (Unix ns) is in.
func (p *plan) windowStart(now int64) int64 {
	if p.cal != nil {
		return p.cal.nth(now, 0)
	}
	return now - floorMod(now, p.period)
}

// beginsAtHit reports whether p's windows begin with their first charge, a period before they end.
func (p *plan) beginsAtHit() bool { return p.kind == kindFixed && p.align == AlignFirstHit }

// undoFixed takes back a charge of cost if the window that it went into, which ends at
// m.aux, is still open.
func (s *state) undoFixed(p *plan, m mark, cost int64) {
	if s.aux == m.aux && s.aux != never {
		s.refund(p, cost)
	}
}
