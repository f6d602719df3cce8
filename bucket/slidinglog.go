package bucket

import "math"

// The sliding window log: every charge is an entry, and what counts is the sum of the entries
// in (now − period, now]. It is exact, and the most expensive algorithm. Entries of
// one time are one. Above the cap the two oldest become one with the later time,
// which can only make the log stricter.
//
// spent is always the sum of the entries, unless that exceeds int64: then spent is the
// largest int64, and is summed anew when entries leave.

// grainOf returns the grain of time that now lies in.
func (p *plan) grainOf(now int64) int64 {
	if p.grain == 1 {
		return now
	}
	return floorDiv(now, p.grain)
}

// settleLog drops the entries that no longer count.
func (s *state) settleLog(p *plan, now int64) {
	v := s.span()
	if v.n == 0 {
		return
	}
	g, full := p.grainOf(now), s.spent == math.MaxInt64
	before := v.n
	for v.n > 0 {
		x := s.log.at(v, 0)
		if elapsed(x.grain, g) < uint64(p.span) {
			break
		}
		s.spent -= x.cost
		v.head = (v.head + 1) & uint32(len(s.log.ring)-1)
		v.n--
	}
	if v.n == before {
		return
	}
	s.setSpan(v)
	if full {
		s.sum()
	}
}

// sum sets spent to the sum of the entries.
func (s *state) sum() {
	v := s.span()
	s.spent = 0
	for i := range v.n {
		s.spent = addSat(s.spent, s.log.at(v, i).cost)
	}
}

// untilLog requires that more than target units count.
func (s *state) untilLog(p *plan, now, target int64) int64 {
	v := s.span()
	i := v.n - 1
	if target > 0 {
		// left is what counts once the entries before i have expired.
		left := s.spent
		if left == math.MaxInt64 {
			return s.untilSaturatedLog(p, now, target)
		}
		for i = 0; ; i++ {
			if left -= s.log.at(v, i).cost; left <= target {
				break
			}
		}
	}
	return p.expiry(s.log.at(v, i).grain, now)
}

// untilSaturatedLog is untilLog for a sum above int64: it adds from the newest entry on.
func (s *state) untilSaturatedLog(p *plan, now, target int64) int64 {
	v := s.span()
	i := v.n
	for sum := int64(0); i > 0 && sum <= target; {
		i--
		sum = addSat(sum, s.log.at(v, i).cost)
	}
	return p.expiry(s.log.at(v, i).grain, now)
}

// expiry returns the time (ns) from now until an entry of grain g counts no more.
func (p *plan) expiry(g, now int64) int64 {
	if p.grain == 1 {
		return p.span - int64(elapsed(g, now))
	}
	// The rest of the present grain, and whole grains.
	whole := p.span - 1 - (floorDiv(now, p.grain) - g)
	return addSat(p.grain-floorMod(now, p.grain), mulSat(whole, p.grain))
}

// chargeLog adds an entry of cost.
func (s *state) chargeLog(p *plan, now, cost int64) {
	s.spent = addSat(s.spent, cost)
	g, v := p.grainOf(now), s.span()
	for int(v.n) > p.maxEntries { // the cap was lowered
		v = s.mergeOldest(v)
	}
	if v.n > 0 {
		newest := s.log.at(v, v.n-1)
		if newest.grain == g || p.maxEntries == 1 {
			newest.grain = g
			newest.cost = addSat(newest.cost, cost)
			s.setSpan(v)
			return
		}
	}
	if int(v.n) == p.maxEntries {
		v = s.mergeOldest(v)
	}
	s.setSpan(v)
	s.push(entry{g, cost})
}

// mergeOldest makes the two oldest entries one, with the later time.
func (s *state) mergeOldest(v span) span {
	second := s.log.at(v, 1)
	second.cost = addSat(second.cost, s.log.at(v, 0).cost)
	return span{(v.head + 1) & uint32(len(s.log.ring)-1), v.n - 1}
}

// refundLog gives back from the newest entries.
func (s *state) refundLog(cost int64) {
	for v := s.span(); v.n > 0 && cost > 0; v = s.span() {
		newest := s.log.at(v, v.n-1)
		if newest.cost > cost {
			s.take(newest, cost)
			return
		}
		cost -= newest.cost
		s.take(newest, newest.cost)
		s.remove(v.n - 1)
	}
}

// undoLog takes a charge of cost at time at out of its entry, if that still counts.
func (s *state) undoLog(p *plan, at, cost int64) {
	v, g := s.span(), p.grainOf(at)
	for i := v.n; i > 0; i-- {
		x := s.log.at(v, i-1)
		if x.grain > g {
			continue
		}
		if x.grain == g {
			s.take(x, min(cost, x.cost))
			if x.cost == 0 {
				s.remove(i - 1)
			}
		}
		return
	}
}

// take lowers the entry x by cost.
func (s *state) take(x *entry, cost int64) {
	x.cost -= cost
	if s.spent == math.MaxInt64 {
		s.sum()
		return
	}
	s.spent -= cost
}
