package bucket

import "math"

// The sliding window log: every charge is an entry, and what counts is the sum of the entries
// in (now − period, now]. It is exact, and the most expensive algorithm. Entries of
// one time are one. Above the cap the two oldest become one with the later time,
// which can only make the log stricter.
//
// spent is always the sum of the entries, unless that exceeds int64: then spent is the
// largest int64, and is summed anew when entries leave.

// dateOf returns the date of an entry for what is spent at now: the beginning of its sub-window.
func (p *plan) dateOf(now int64) int64 {
	if p.grain == 1 {
		return now
	}
	return max(never+1, subSat(now, floorMod(now, p.grain)))
}

// entryFor returns the date of the entry that a charge to s at now goes into. That is the newest one if its sub-window,
// which may have come from a node with another clock, is not over.
func (s *state) entryFor(p *plan, now int64) int64 {
	at := p.dateOf(now)
	if v := s.span(); v.n > 0 {
		at = max(at, s.log.at(v, v.n-1).at)
	}
	return at
}

// settleLog drops the entries that no longer count.
func (s *state) settleLog(p *plan, now int64) {
	v := s.span()
	if v.n == 0 {
		return
	}
	full := s.spent == math.MaxInt64
	before := v.n
	for v.n > 0 {
		x := s.log.at(v, 0)
		if elapsed(x.at, now) < uint64(p.span) {
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
	s.spent = 0
	if v := s.span(); v.n > 0 {
		_, s.spent = s.log.over(v, math.MaxInt64)
	}
}

// untilLog requires that more than target units count: they do until the entry has expired that has, with all newer ones, more.
func (s *state) untilLog(p *plan, now, target int64) int64 {
	v := s.span()
	i, _ := s.log.over(v, target)
	return p.expiry(s.log.at(v, i).at, now)
}

// expiry returns the time (ns) from now until an entry of date at counts no more.
func (p *plan) expiry(at, now int64) int64 { return p.span - int64(elapsed(at, now)) }

// chargeLog adds an entry of cost.
func (s *state) chargeLog(p *plan, now, cost int64) {
	s.spent = addSat(s.spent, cost)
	at, v := p.dateOf(now), s.span()
	for int(v.n) > p.maxEntries { // the cap was lowered
		v = s.mergeOldest(v)
	}
	if v.n > 0 {
		newest := *s.log.at(v, v.n-1)
		if newest.at >= at || p.maxEntries == 1 {
			newest.at = max(newest.at, at) // see entryFor
			newest.cost = addSat(newest.cost, cost)
			s.log.set(v, v.n-1, newest)
			s.setSpan(v)
			return
		}
	}
	if int(v.n) == p.maxEntries {
		v = s.mergeOldest(v)
	}
	s.setSpan(v)
	s.push(entry{at, cost})
}

// mergeOldest makes the two oldest entries one, with the later time.
func (s *state) mergeOldest(v span) span {
	s.log.setCost(v, 1, addSat(s.log.at(v, 1).cost, s.log.at(v, 0).cost))
	return span{(v.head + 1) & uint32(len(s.log.ring)-1), v.n - 1}
}

// squeeze makes the log of s have most entries at most, 0 if it is none: the oldest become one, with the latest of their times. The ring, which
// may be another's too, stays as it is; s gets one of its own.
func (s *state) squeeze(most int) {
	v := s.span()
	if most == 0 || s.log == nil || int(v.n) <= most {
		return
	}
	old, merged := s.log, int64(0)
	s.log = newEntries(most)
	first := v.n - uint32(most) // of those that stay
	for i := range first {
		merged = addSat(merged, old.at(v, i).cost)
	}
	to := span{0, uint32(most)}
	for i := range to.n {
		x := *old.at(v, first+i)
		if i == 0 {
			x.cost = addSat(x.cost, merged)
		}
		s.log.set(to, i, x)
	}
	s.setSpan(to)
}

// refundLog gives back from the newest entries.
func (s *state) refundLog(cost int64) {
	v := s.span()
	full, given := s.spent == math.MaxInt64, cost
	for v.n > 0 && cost > 0 {
		newest := s.log.at(v, v.n-1).cost
		if newest > cost {
			s.log.setCost(v, v.n-1, newest-cost)
			cost = 0
			break
		}
		cost -= newest
		v.n--
	}
	s.setSpan(v)
	s.lower(full, given-cost)
}

// undoLog takes a charge of cost out of its entry, which has the date at, if that still counts.
func (s *state) undoLog(at, cost int64) {
	v := s.span()
	for i := v.n; i > 0; i-- {
		x := s.log.at(v, i-1)
		if x.at > at {
			continue
		}
		if x.at == at {
			full, cost := s.spent == math.MaxInt64, min(cost, x.cost)
			if x.cost > cost {
				s.log.setCost(v, i-1, x.cost-cost)
			} else {
				s.remove(i - 1)
			}
			s.lower(full, cost)
		}
		return
	}
}

// lower lowers spent by the cost that was taken out of entries; full says that it was saturated.
func (s *state) lower(full bool, cost int64) {
	if full {
		s.sum()
		return
	}
	s.spent -= cost
}
