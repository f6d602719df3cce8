package bucket

// The sliding window counter: two fixed windows, aligned to the epoch unless they came from a node with another clock
// (see move.go), of which the earlier
// counts by the share of it that (now − period, now] still covers, as if its
// spending had been even. Described by Cloudflare ("How we built rate limiting capable
// of scaling to millions of domains", 2017), where it misjudged 0.003 % of requests.
//
// used = ⌊before × (period − e) / period⌋ + spent, e being the age of this window.
// It never rises without a charge: it is continuous where one window passes into the next.

// age returns how long ago the window of now began.
func (s *state) age(p *plan, now int64) int64 {
	age := floorMod(now, p.period)
	if s.log != nil {
		if age -= s.log.phase; age < 0 {
			age += p.period
		}
	}
	return age
}

// settleWeighted moves on to the window of now.
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

// restWeighted forgets the phase of windows of which nothing is spent.
func (s *state) restWeighted() {
	if s.spent == 0 && s.aux == 0 {
		s.log = nil
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

// fades returns the age of a window, in [0, period], at which ⌊n × (period − age) / period⌋ ≤ m
// first holds for what was spent in the window before it.
func (p *plan) fades(n, m int64) int64 {
	if n <= m {
		return 0
	}
	// n × (period − age) < (m + 1) × period, solved for whole nanoseconds.
	return p.period - mulDivCeil(p.period, m+1, n) + 1
}

// refundWeighted gives back to this window, then to the one before.
func (s *state) refundWeighted(cost int64) {
	now := min(s.spent, cost)
	s.spent -= now
	s.aux -= min(s.aux, cost-now)
	s.restWeighted()
}

// undoWeighted takes a charge of cost at time at out of the window that it went
// into, if that one still counts.
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

// mergeWeighted is merge for two windows each. Where they have different phases, those of the two counters that end
// later count for both: what was spent in the others then counts a little longer.
func (s *state) mergeWeighted(p *plan, o *state, now int64) (changed bool) {
	if o.spent == 0 && o.aux == 0 {
		return false
	}
	if s.spent == 0 && s.aux == 0 || o.age(p, now) < s.age(p, now) {
		changed = s.log != o.log
		s.log = o.log
	}
	if o.spent > s.spent {
		s.spent, changed = o.spent, true
	}
	if o.aux > s.aux {
		s.aux, changed = o.aux, true
	}
	return changed
}
