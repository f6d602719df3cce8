package bucket

// The token bucket with continuous refill. A bucket of b tokens that gets r tokens a
// second admits at most b + r·t in any t seconds (Turner, "New directions in
// communications", IEEE Communications Magazine, October 1986; RFC 2697).
//
// Instead of the tokens that are left, the state holds the tokens that are missing:
// the level. It drains at the rate at which tokens come back, which makes the
// bucket the mirror image of a leaky bucket, and one arithmetic serves both.
//
// The level is spent − aux/period units, 0 ≤ aux < period. Elapsed time times
// count is an exact number of 1/period units, so no rounding ever loses or mints
// a part of a token, however often the bucket is used. Because costs and capacities
// are whole, comparing spent, the level rounded up, decides exactly as the level would.

// settleFlow drains what has flowed off between last and now.
func (s *state) settleFlow(p *plan, last, now int64) {
	if s.spent == 0 {
		return
	}
	drained, rem := wide(elapsed(last, now), uint64(p.count)).add(uint64(s.aux)).div(p.period)
	if drained >= s.spent {
		s.spent, s.aux = 0, 0
		return
	}
	s.spent -= drained
	s.aux = rem
}

// untilFlow requires that more than target units count.
func (s *state) untilFlow(p *plan, target int64) int64 {
	need := wide(uint64(s.spent-target), uint64(p.period))
	return need.sub(uint128{lo: uint64(s.aux)}).divCeil(p.count)
}

// undoFlow takes back what is left of a charge of cost at time at, when the level
// was m.spent − m.aux/period before it. A level drains from the bottom: what was
// there before the charge has gone first, and only the rest of what has drained since
// came out of the charge.
func (s *state) undoFlow(p *plan, m mark, at, now, cost int64) {
	before := wide(uint64(m.spent), uint64(p.period)).sub(uint128{lo: uint64(m.aux)})
	lost := wide(elapsed(at, now), uint64(p.count)).sub(before)
	units, part := lost.div(p.period)
	if units >= cost {
		return
	}
	// level − (cost − units − part/period), written as spent − aux/period again.
	spent, aux := s.spent-(cost-units), s.aux-part
	if aux < 0 {
		spent, aux = spent+1, aux+p.period
	}
	if spent <= 0 {
		spent, aux = 0, 0
	}
	s.spent, s.aux = spent, aux
}
