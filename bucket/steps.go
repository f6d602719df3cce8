package bucket

// The token bucket with refill in steps: count tokens at once at every boundary.
// Boundaries are multiples of the period since the Unix epoch, or calendar units,
// or, aligned to the first hit, multiples of the period since the charge that found the bucket
// full. A full bucket is like no bucket, so it is then that one is created.

// settleStep refills at the boundaries up to now.
func (s *state) settleStep(p *plan, now int64) {
	if s.spent == 0 || now < s.aux {
		return
	}
	n := int64(1)
	if p.cal != nil {
		n = addSat(n, p.cal.count(s.aux, now))
	} else {
		n = addSat(n, saturate(elapsed(s.aux, now)/uint64(p.period)))
	}
	if gain := mulSat(n, p.count); gain < s.spent {
		s.spent -= gain
		s.aux = s.boundary(p, n+1)
		return
	}
	s.spent, s.aux = 0, never
}

// openStep sets the next boundary if the bucket is full.
func (s *state) openStep(p *plan, now int64) {
	if s.aux == never {
		s.aux = p.windowEnd(now)
	}
}

// boundary returns the n-th boundary (n ≥ 1) from s.aux on, itself being the first.
func (s *state) boundary(p *plan, n int64) int64 {
	if n == 1 {
		return s.aux
	}
	if p.cal != nil {
		return p.cal.nth(s.aux, n-1)
	}
	return addSat(s.aux, mulSat(n-1, p.period))
}

// untilStep requires that more than target units count.
func (s *state) untilStep(p *plan, now, target int64) int64 {
	return subSat(s.boundary(p, ceilDiv(s.spent-target, p.count)), now)
}

// undoStep is undoFlow for a bucket that is refilled in steps.
func (s *state) undoStep(p *plan, m mark, at, now, cost int64) {
	if s.spent == 0 {
		return
	}
	lost := max(0, subSat(mulSat(s.passed(p, at, now), p.count), m.spent))
	if lost < cost {
		s.refund(p, cost-lost)
	}
}

// passed returns the number of boundaries in (at, now]. s.aux is the first after now.
func (s *state) passed(p *plan, at, now int64) int64 {
	if p.cal != nil {
		return p.cal.count(at, now)
	}
	// Counting back from aux, at least 1 ns after at.
	return saturate((elapsed(at, s.aux) - 1) / uint64(p.period))
}
