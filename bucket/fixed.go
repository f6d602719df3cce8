package bucket

// The fixed window: count units in each of the windows that tile time. Up to twice
// the count fits around a boundary; the sliding algorithms exist to prevent that.

// settleFixed forgets a window that has ended.
func (s *state) settleFixed(now int64) {
	if now >= s.aux {
		s.spent, s.aux = 0, never
	}
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

// beginsAtHit reports whether p's windows begin with their first charge, a period before they end.
func (p *plan) beginsAtHit() bool { return p.kind == kindFixed && p.align == AlignFirstHit }

// undoFixed takes back a charge of cost if the window that it went into, which ends at
// m.aux, is still open.
func (s *state) undoFixed(p *plan, m mark, cost int64) {
	if s.aux == m.aux && s.aux != never {
		s.refund(p, cost)
	}
}
