package bucket

// The token bucket with refill in steps: count tokens at once at every boundary.
// Boundaries are multiples of the period since the Unix epoch, or calendar units,
// or, aligned to the first hit, multiples of the period since the charge that found the bucket
// full. A full bucket is like no bucket, so it is then that one is created.

// settleStep refills at the boundaries up to now.
func (s *state) settleStep(p *plan, now int64) {
	if s.aux == never || now < s.aux {
		return
	}
	n := addSat(1, p.steps(s.aux, now))
	switch gain := mulSat(n, p.count); {
	case gain < s.spent:
		s.spent -= gain
		s.aux = p.nth(s.aux, n)
	case n == 1:
		s.spent, s.aux = 0, p.opened(s.aux, now)
	default:
		s.spent, s.aux = 0, never
	}
}

// openStep sets the next boundary if the bucket is full.
func (s *state) openStep(p *plan, now int64) {
	if s.aux == never {
		s.aux = p.windowEnd(now)
	}
}

// untilStep requires that more than target units count.
func (s *state) untilStep(p *plan, now, target int64) int64 {
	return subSat(p.nth(s.aux, ceilDiv(s.spent-target, p.count)-1), now)
}

// undoStep is undoFlow for a bucket that is refilled in steps.
func (s *state) undoStep(p *plan, m mark, now, cost int64) {
	if s.spent == 0 {
		return
	}
	// m.aux was the first boundary after the charge.
	n := int64(0)
	if m.aux <= now {
		n = addSat(1, p.steps(m.aux, now))
	}
	lost := max(0, subSat(mulSat(n, p.count), m.spent))
	if lost < cost {
		s.refund(p, cost-lost)
	}
}
