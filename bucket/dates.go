package bucket

import (
	"math"
	"time"
)

// dates are the times of one counter, used at the same moment: what the clock here shows for it, and
// what the clock of the exporter did, if that is known. now is the time here; a counter that is
// ahead of its clock has a later one.
type dates struct {
	now, here, there int64
	known            bool
	// since is the earliest time that the counter may have here, because its windows have begun
	// then; at least here.
	since int64
}

// read reads s, which is new, a state of p. What is relative is as of d.here; what is aligned is settled to d.here, or
// if that is before its window has begun, it is as it was, and d.since says when that is.
func (d *dates) read(r *reader, p *plan, s *state) {
	if p.stateless() {
		return
	}
	if ago := r.uint(); ago > 0 {
		s.last = never + 1 + int64(max(elapsed(never+1, d.here), ago-1)-(ago-1))
	}
	switch p.kind {
	case kindFlow:
		if s.spent = r.units(); s.spent > 0 {
			s.aux = r.upTo(p.period-1, "a part of a unit is none")
		}
	case kindStep, kindFixed:
		d.readBoundary(r, p, s)
	case kindWeighted:
		s.spent, s.aux = r.units(), r.units()
	case kindLog, kindBins:
		d.readLog(r, p, s)
	}
	if r.why == "" && p.aligned() && (s.spent > 0 || s.aux > 0) {
		d.align(r, p, s)
	}
}

// readBoundary reads a state of kindStep or kindFixed.
func (d *dates) readBoundary(r *reader, p *plan, s *state) {
	if s.spent = r.units(); s.spent == 0 {
		return
	}
	wait := r.upTo(p.longest(), "a boundary is too far away")
	if !p.aligned() {
		s.aux = addSat(d.here, wait)
	} else {
		s.aux = addSat(d.there, wait)
	}
	switch {
	case r.why != "":
	case wait == 0:
		r.fail("a boundary has been passed")
	case !p.aligned() || s.aux == math.MaxInt64:
	case p.cal == nil && s.aux%p.period != 0, p.cal != nil && s.aux%int64(time.Second) != 0:
		r.fail("a boundary is none of its limit")
	}
}

// longestUnits are the lengths of calendar units, the longest of each.
var longestUnits = [...]time.Duration{
	Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour, Week: 7 * 24 * time.Hour,
	Month: 31 * 24 * time.Hour, Year: 366 * 24 * time.Hour,
}

// longest returns how far (ns) the next boundary can be away.
func (p *plan) longest() int64 {
	if p.cal == nil {
		return p.period
	}
	// No zone has ever moved its clock by more than a day, which lengthens a unit at either end.
	const moved = 2 * 24 * time.Hour
	return int64(longestUnits[p.cal.unit] + moved)
}

// readLog reads the entries of a log.
func (d *dates) readLog(r *reader, p *plan, s *state) {
	n := r.uint()
	if n == 0 {
		return
	}
	// The cap may have been lowered since, so more may be there than it allows.
	if n > MaxLogEntries || n > uint64(len(r.rest))/2 {
		r.fail("a log has too many entries")
		return
	}
	at := d.here
	if p.aligned() {
		at = d.there
	}
	s.log = newEntries(int(n))
	age := r.upTo(p.span-1, "an entry of a log has expired")
	for i := range n {
		if i > 0 {
			// Each entry is later than the one before.
			step := r.upTo(age, "an entry of a log is in the future")
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
		s.log.ring[i] = entry{p.grainOf(at) - age, cost}
		s.spent = addSat(s.spent, cost)
	}
	s.setSpan(span{0, uint32(n)})
}

// align settles s, a state of an aligned limit as of d.there, to d.here, or sees that the counter does
// not begin before the window that s belongs to.
func (d *dates) align(r *reader, p *plan, s *state) {
	switch {
	case !d.known:
		r.fail("it has an aligned limit, and no date")
	case d.here >= d.there:
		// Of the time by which the counter is ahead, nothing has passed yet.
		until := min(d.here, max(d.now, d.there))
		s.settle(p, d.there, until)
		if until < d.here {
			last := s.last // is relative
			s.carry(p, until, d.here, true)
			s.last = last
		}
	default:
		d.since = max(d.since, s.begins(p, d.here, d.there))
	}
}

// begins returns the earliest time at which s, settled to there, is as it is, or one before here.
func (s *state) begins(p *plan, here, there int64) int64 {
	switch {
	case p.kind == kindBins:
		v := s.span()
		whole := floorMod(there, p.grain)
		behind := mulSat(p.grainOf(there)-s.log.at(v, v.n-1).grain, p.grain)
		return max(never+1, subSat(there, addSat(whole, behind)))
	case p.cal == nil:
		return max(never+1, subSat(there, floorMod(there, p.period)))
	case p.cal.end(here) == s.aux:
		return here
	}
	return there
}
