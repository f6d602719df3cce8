package bucket

import "time"

// read reads s, which is new, a state of p that is as of now.
func (s *state) read(r *reader, p *plan, now int64, made *phases) {
	if p.stateless() {
		return
	}
	if ago := r.uint(); ago > 0 {
		s.last = never + 1 + int64(max(elapsed(never+1, now), ago-1)-(ago-1))
	}
	switch p.kind {
	case kindFlow:
		if s.spent = r.units(); s.spent > 0 {
			s.aux = r.upTo(p.period-1, "a part of a unit is none")
		}
	case kindStep, kindFixed:
		s.readBoundary(r, p, now)
	case kindWeighted:
		if s.spent, s.aux = r.units(), r.units(); s.spent > 0 || s.aux > 0 {
			s.log = made.at(p, r.upTo(p.period-1, "a window is older than it lasts"), now)
		}
	case kindLog, kindBins:
		s.readLog(r, p, now)
	}
}

// readBoundary reads a state of kindStep or kindFixed.
func (s *state) readBoundary(r *reader, p *plan, now int64) {
	s.spent = r.units()
	switch wait := r.upTo(p.longest(), "a boundary is too far away"); {
	case r.why != "":
	case wait > 0:
		s.aux = addSat(now, wait)
	case s.spent > 0:
		r.fail("a boundary has been passed")
	}
}

// longestUnits are the lengths of calendar units, the longest of each.
var longestUnits = [...]time.Duration{
	Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour, Week: 7 * 24 * time.Hour,
	Month: 31 * 24 * time.Hour, Year: 366 * 24 * time.Hour,
}

// longest returns how far (ns) the next boundary can be away, also after a window of another clock.
func (p *plan) longest() int64 {
	longest := p.period
	if p.cal != nil {
		// No zone has ever moved its clock by more than a day, which lengthens a unit at either end.
		const moved = 2 * 24 * time.Hour
		longest = int64(longestUnits[p.cal.unit] + moved)
	}
	if p.align != AlignFirstHit {
		longest = addSat(longest, longest/2)
	}
	return longest
}

// readLog reads the entries of a log.
func (s *state) readLog(r *reader, p *plan, now int64) {
	n := r.uint()
	if n == 0 {
		return
	}
	// The cap may have been lowered since, so more may be there than it allows.
	if n > MaxLogEntries || n > uint64(len(r.rest))/2 {
		r.fail("a log has too many entries")
		return
	}
	s.log = newEntries(int(n))
	age := r.upTo(p.span-1, "an entry of a log has expired")
	for i := range n {
		if i > 0 {
			// Each entry is later than the one before.
			step := r.step(p, age)
			if step == 0 {
				r.fail("two entries of a log have one time")
			}
			age -= step
		}
		cost := r.units()
		if cost == 0 {
			r.fail("an entry of a log has no cost")
		}
		if r.why != "" {
			return
		}
		s.log.set(span{}, uint32(i), entry{now - age, cost})
		s.spent = addSat(s.spent, cost)
	}
	s.setSpan(span{0, uint32(n)})
	s.squeeze(p.maxEntries)
}

// step reads the time between two entries of a log of p, at most most.
func (r *reader) step(p *plan, most int64) int64 {
	const future = "an entry of a log is in the future"
	if p.grain == 1 {
		return r.upTo(most, future)
	}
	u := r.uint()
	step := int64(u >> 1)
	if u&1 == 0 {
		step = mulSat(step, p.grain)
	}
	if step > most {
		r.fail(future)
		return 0
	}
	return step
}
