package bucket

import "time"

// state is the state of one limit of one key. The meaning of spent and aux depends on the kind of the limit's plan:
//
//	kind      spent                      aux
//	flow      level, rounded up          how far the level is below spent, in 1/period units
//	step      level                      next boundary, or never if that is any charge's
//	fixed     spent in the window        end of the window, or never while none is open
//	log, bins sum of the entries         where the entries lie in log (see log.go)
//	weighted  spent in this window       spent in the window before
//
// All states of a counter are settled to the counter's time; see counter.settle.
type state struct {
	spent, aux int64
	// last is when the last check was admitted. It is never until one was admitted under a minimum interval. If the plan blocks,
	// it is when the last denial that blocks was.
	last int64
	// phase is the offset of the windows of weighted, in [0, period): 0 is the clock's own.
	phase int64
	log   *entries
}

// newState returns a state without spent units.
func newState(p *plan) state {
	s := state{last: never}
	if p.kind == kindStep || p.kind == kindFixed {
		s.aux = never
	}
	return s
}

// settle moves s from time last to now ≥ last, dropping what has drained or expired. It does not write to entries, so settling
// a copy does not change the original.
func (s *state) settle(p *plan, last, now int64) {
	switch p.kind {
	case kindFlow:
		s.settleFlow(p, last, now)
	case kindStep:
		s.settleStep(p, now)
	case kindFixed:
		s.settleFixed(p, now)
	case kindLog, kindBins:
		s.settleLog(p, now)
	case kindWeighted:
		s.settleWeighted(p, last, now)
	}
}

// used returns the units that count against the limit at now, in [0, MaxInt64].
func (s *state) used(p *plan, now int64) int64 {
	if p.kind == kindWeighted {
		return s.usedWeighted(p, now)
	}
	return s.spent
}

// until returns the time (ns) from now until at most target ≥ 0 units count, if nothing is charged; 0 if they do now. It is
// exact to the nanosecond.
func (s *state) until(p *plan, now, target int64) int64 {
	if s.used(p, now) <= target {
		return 0
	}
	switch p.kind {
	case kindFlow:
		return s.untilFlow(p, target)
	case kindStep:
		return s.untilStep(p, now, target)
	case kindFixed:
		return subSat(s.aux, now)
	case kindLog, kindBins:
		return s.untilLog(p, now, target)
	case kindWeighted:
		return s.untilWeighted(p, now, target)
	}
	return 0
}

// interval returns the time (ns) from now until the minimum interval since the last admitted check has passed; 0 if it has.
func (s *state) interval(p *plan, now int64) int64 {
	if p.minInterval == 0 || s.last == never {
		return 0
	}
	gone := elapsed(s.last, now)
	if gone >= uint64(p.minInterval) {
		return 0
	}
	return p.minInterval - int64(gone)
}

// blocksBy reports whether the limit denies cost > 0 units at now because others were spent, and has to be blocked by that.
func (s *state) blocksBy(p *plan, now, cost int64) bool {
	return p.blocks && s.interval(p, now) == 0 && cost <= p.capacity && cost > p.capacity-min(p.capacity, s.used(p, now))
}

// admits reports whether the limit has room for cost > 0 units at now.
func (s *state) admits(p *plan, now, cost int64) bool {
	if p.kind == kindUnlimited {
		return true
	}
	used := s.used(p, now)
	return used <= p.capacity && cost <= p.capacity-used && s.interval(p, now) == 0
}

// free returns the time (ns) from now until the state is completely free.
func (s *state) free(p *plan, now int64) int64 {
	return max(s.until(p, now, 0), s.interval(p, now))
}

// charge spends cost > 0 units at now, regardless of the limit.
func (s *state) charge(p *plan, now, cost int64) {
	switch p.kind {
	case kindUnlimited, kindBlocked, kindSlots:
		return
	case kindStep, kindFixed:
		if s.aux == never {
			s.aux = p.windowEnd(now) // of the step or window that begins
		}
	case kindLog, kindBins:
		s.chargeLog(p, now, cost)
		return
	}
	s.spent = addSat(s.spent, cost)
}

// fills reports whether what is spent above a capacity denies for longer. Windows and entries of logs end by themselves, and a
// meter has no end.
func (p *plan) fills() bool {
	return (p.kind == kindFlow || p.kind == kindStep || p.kind == kindWeighted) && p.capacity < endlessCount
}

// cut drops what is spent above the capacity of p, if it fills.
func (s *state) cut(p *plan) {
	if !p.fills() {
		return
	}
	if s.spent > p.capacity {
		s.fill(p)
	}
	if p.kind == kindWeighted {
		s.aux = min(s.aux, p.capacity)
	}
}

// fill sets what is spent to the capacity of p, which fills.
func (s *state) fill(p *plan) {
	if s.spent = p.capacity; p.kind == kindFlow {
		s.aux = 0
	}
}

// chargeUpTo charges cost > 0 units that other limits have admitted: a limit that fills becomes full at most.
func (s *state) chargeUpTo(p *plan, now, cost int64) {
	switch {
	case !p.fills():
		s.charge(p, now, cost)
	case s.spent <= p.capacity: // else it is in debt by its own charges
		if s.charge(p, now, cost); s.spent > p.capacity {
			s.fill(p)
		}
	}
}

// refund refunds cost > 0 units, newest first, never above full.
func (s *state) refund(p *plan, cost int64) {
	switch p.kind {
	case kindLog, kindBins:
		s.refundLog(cost)
		return
	case kindWeighted:
		s.refundWeighted(cost)
		return
	}
	if s.spent > cost {
		s.spent -= cost
		return
	}
	if s.spent > 0 {
		// An aligned window or step stays open: it may be that of another clock.
		next := newState(p)
		if p.align != AlignFirstHit && (p.kind == kindStep || p.kind == kindFixed) {
			next.aux = s.aux
		}
		next.last = s.last
		*s = next
	}
}

// admit notes that a check was admitted at now.
func (s *state) admit(p *plan, now int64) {
	if !p.blocks && (p.minInterval > 0 || s.last != never) {
		s.last = now
	}
}

// read reads s, a new state of p, as of now.
func (s *state) read(r *reader, p *plan, now int64) {
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
			s.phase = p.phaseAt(r.upTo(p.period-1, "a window is older than it lasts"), now)
		}
	case kindLog, kindBins:
		s.readLog(r, p, now)
	}
}

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

// longestUnits are the longest lengths of calendar units.
var longestUnits = [...]time.Duration{
	Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour, Week: 7 * 24 * time.Hour,
	Month: 31 * 24 * time.Hour, Year: 366 * 24 * time.Hour,
}

// longest returns how far away (ns) the next boundary can be, including after a window of another clock.
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

func (s *state) readLog(r *reader, p *plan, now int64) {
	n := r.uint()
	if n == 0 {
		return
	}
	// The cap may have been lowered since, so there may be more entries than it allows.
	if n > MaxLogEntries || n > uint64(len(r.rest))/2 {
		r.fail("a log has too many entries")
		return
	}
	s.log = newEntries(int(n))
	age := r.upTo(p.span-1, "an entry of a log has expired")
	for i := range n {
		if i > 0 {
			// Each entry is later than the previous one.
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
	s.squeeze(p, p.maxEntries)
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
