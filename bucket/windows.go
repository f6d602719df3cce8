package bucket

// The fixed window counts units in consecutive windows. Around a boundary up to twice the count fits; the sliding algorithms
// prevent that.

// settleFixed drops a window that has ended. If it came from another clock and ended just before a boundary of this one, the
// following window is already open.
func (s *state) settleFixed(p *plan, now int64) {
	if now >= s.aux {
		s.spent, s.aux = 0, p.opened(s.aux, now)
	}
}

// opened returns the end of the window at now that follows one that ended at e ≤ now, or never if it is the one that a charge
// at now would open.
func (p *plan) opened(e, now int64) int64 {
	if e == never || p.align == AlignFirstHit || p.begins(e) {
		return never
	}
	if end := p.following(e); now < end && end != p.windowEnd(now) {
		return end
	}
	return never
}

// atRest reports whether a charge to s, without spent units, opens the same window as with a new state.
func (s *state) atRest(p *plan, now int64) bool {
	return p.kind != kindStep && p.kind != kindFixed || s.aux == never || s.aux == p.windowEnd(now)
}

// windowEnd returns the end of the window that contains now, or that a charge at now opens: the first instant of the next one.
func (p *plan) windowEnd(now int64) int64 {
	switch {
	case p.cal != nil:
		return p.cal.end(now)
	case p.align == AlignFirstHit:
		return addSat(now, p.period)
	}
	return addSat(now, p.period-floorMod(now, p.period))
}

// windowStart returns the beginning of the aligned window that contains now (Unix ns).
func (p *plan) windowStart(now int64) int64 {
	if p.cal != nil {
		return p.cal.nth(now, 0)
	}
	return now - floorMod(now, p.period)
}

// beginsAtHit reports whether p's windows begin with their first charge.
func (p *plan) beginsAtHit() bool { return p.kind == kindFixed && p.align == AlignFirstHit }

// The sliding window of n sub-windows: units are summed per sub-window of ⌈period / n⌉, aligned to the epoch, and the current
// sub-window and the n before it count. Together they cover (now − period, now] and up to one sub-window more, so it never
// admits more than the log.
//
// It is kept as a log whose entries are dated at the beginnings of sub-windows and count for n + 1 of them (kindBins; see
// log.go): at most n + 1 entries, and memory only for sub-windows with charges.

// The sliding window counter: two fixed windows, aligned to the epoch unless they came from a node with another clock (see
// move.go). The earlier one counts by the share that (now − period, now] still covers, as if its charges had been evenly
// distributed. Described by Cloudflare ("How we built rate limiting capable of scaling to millions of domains", 2017), where it
// misjudged 0.003 % of requests.
//
// used = ⌊before × (period − e) / period⌋ + spent, e being the age of the current window. It never rises without a charge: it
// is continuous from one window to the next.

// age returns the age of the window that contains now.
func (s *state) age(p *plan, now int64) int64 {
	age := floorMod(now, p.period) - s.phase
	if age < 0 {
		age += p.period
	}
	return age
}

// settleWeighted advances to the window that contains now.
func (s *state) settleWeighted(p *plan, last, now int64) {
	if s.spent > 0 || s.aux > 0 {
		// Capped, so that the age does not overflow.
		gone := min(elapsed(last, now), 2*uint64(p.period))
		switch age := uint64(s.age(p, last)) + gone; {
		case age < uint64(p.period):
			return
		case age < 2*uint64(p.period):
			s.spent, s.aux = 0, s.spent
		default:
			s.spent, s.aux = 0, 0
		}
	}
	s.restWeighted()
}

// restWeighted drops the phase of windows without spent units.
func (s *state) restWeighted() {
	if s.spent == 0 && s.aux == 0 {
		s.phase = 0
	}
}

// usedWeighted requires that s is settled to now.
func (s *state) usedWeighted(p *plan, now int64) int64 {
	if s.aux == 0 {
		return s.spent
	}
	before, _ := mulDiv(s.aux, p.period-s.age(p, now), p.period)
	return addSat(before, s.spent)
}

// untilWeighted requires that more than target units count.
func (s *state) untilWeighted(p *plan, now, target int64) int64 {
	age := s.age(p, now)
	if s.spent <= target {
		return p.fades(s.aux, target-s.spent) - age
	}
	// Not before this window has become the earlier one.
	return addSat(p.period-age, p.fades(s.spent, target))
}

// fades returns the age of a window, in [0, period], at which ⌊n × (period − age) / period⌋ ≤ m first holds, n being the units
// of the window before it.
func (p *plan) fades(n, m int64) int64 {
	if n <= m {
		return 0
	}
	// n × (period − age) < (m + 1) × period, solved for whole nanoseconds.
	return p.period - mulDivCeil(p.period, m+1, n) + 1
}

// refundWeighted refunds to this window, then to the one before.
func (s *state) refundWeighted(cost int64) {
	now := min(s.spent, cost)
	s.spent -= now
	s.aux -= min(s.aux, cost-now)
	s.restWeighted()
}

// undoWeighted removes a charge of cost at time at from its window, if that still counts.
func (s *state) undoWeighted(p *plan, at, now, cost int64) {
	gone, age := elapsed(at, now), uint64(s.age(p, now))
	switch {
	case gone <= age:
		s.spent -= min(s.spent, cost)
	case gone <= age+uint64(p.period):
		s.aux -= min(s.aux, cost)
	}
	s.restWeighted()
}

// mergeWeighted is merge for two windows each. With different phases, the windows that end later are used for both, so the
// units of the others count slightly longer.
func (s *state) mergeWeighted(p *plan, o *state, now int64) (changed bool) {
	if o.spent == 0 && o.aux == 0 {
		return false
	}
	if s.spent == 0 && s.aux == 0 || o.age(p, now) < s.age(p, now) {
		changed = s.phase != o.phase
		s.phase = o.phase
	}
	return s.raise(o) || changed
}

// The token bucket with continuous refill. A bucket of b tokens that gets r tokens a second admits at most b + r·t in any t
// seconds (Turner, "New directions in communications", IEEE Communications Magazine, October 1986; RFC 2697).
//
// Instead of the remaining tokens, the state has the missing ones: the level. It drains at the refill rate, which makes the
// bucket the mirror image of a leaky bucket, so one arithmetic serves both.
//
// The level is spent − aux/period units, 0 ≤ aux < period. Elapsed time times count is an exact number of 1/period units, so
// rounding never loses or adds a fraction of a token. Because costs and capacities are integers, comparing spent, the level
// rounded up, decides exactly as the level would.

// settleFlow drains the level from last to now.
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

// undoFlow undoes what is left of a charge of cost at time at, before which the level was m.spent − m.aux/period. A level
// drains from the bottom: what was there before the charge drains first, and only the rest drains from the charge.
func (s *state) undoFlow(p *plan, m mark, at, now, cost int64) {
	before := wide(uint64(m.spent), uint64(p.period)).sub(uint128{lo: uint64(m.aux)})
	lost := wide(elapsed(at, now), uint64(p.count)).sub(before)
	units, part := lost.div(p.period)
	if units >= cost {
		return
	}
	// level − (cost − units − part/period), again as spent − aux/period.
	spent, aux := s.spent-(cost-units), s.aux-part
	if aux < 0 {
		spent, aux = spent+1, aux+p.period
	}
	if spent <= 0 {
		spent, aux = 0, 0
	}
	s.spent, s.aux = spent, aux
}

// The leaky bucket has two forms, which Turner's article of 1986 and ITU-T Recommendation I.371 distinguish:
//
//   - As a meter (LeakyBucket) it has a level that leaks at a constant rate, and rejects what would make it overflow. This is
//     the token bucket upside down, see above; in terms of theoretical arrival times it is the generic cell rate algorithm
//     (GCRA) of I.371.
//   - As a queue (LeakyQueue) it shapes: admitted checks come out at the constant rate. Nothing is stored here; a check is
//     told how long to wait.

// delay returns how long (ns) a check admitted now must wait: until everything admitted before it has drained. Only a queue
// delays.
func (s *state) delay(p *plan, now int64) int64 {
	if !p.queue {
		return 0
	}
	return s.until(p, now, 0)
}
