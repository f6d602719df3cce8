package bucket

import (
	"math"
	"slices"
)

// Two independent counters of one key are merged into one that is never more permissive than either at any later time. For most
// limits that is exactly the larger of the two: merging is idempotent, commutative and associative. Where a state cannot be as
// large as both without exceeding them, it does:
//
//   - Windows that begin with the first hit, or that nodes with different clocks have opened, may end at different times; the
//     later end counts.
//   - A counter that is ahead of the clock makes the other stand still until then; see move.
//   - A log above its cap has neighbours merged.
//
// Two cases are not covered. A grant is charged to windows when it is settled: if a merge has moved these, the charge may fall into
// an earlier window than in one of the counters, and then stops counting up to one period sooner. And a grant of a counter that is
// ahead of the clock may be charged earlier than there, by no more than it is ahead.
//
// If the limits differ, the counter continues under those of the existing one, and every other limit of either becomes a
// shadow. A limit that only one of them has starts in the other as after a change of limits (change.go), so that a change back
// admits nothing extra.
//
// A grant of only one of them is kept. For those that both have, see settleBothLocked.

// joinLocked merges x, as of now, into the counter of key. grants: grants of x will follow. x must not be used any more.
func (sh *shard) joinLocked(now int64, key Key, x *counter, grants bool) (o outcome) {
	c := sh.getLocked(now, key)
	if c == nil {
		if x.free(now) && !grants {
			return o
		}
		o = sh.insertLocked(key, x)
		o.did |= changed
		return o
	}
	c.cuts |= flagAgain
	if c.has(flagHeld) {
		c.birth = sh.bornLocked() // so that no receipt takes out of it what x has not had
		c.cuts &^= flagHeld
	}
	sh.mu.store.save(c)
	var was counter
	apart := c.apart(x)
	if apart {
		was = c.copyTo(new(more))
	}
	if !c.merge(x, now) {
		return o // its time stays
	}
	if apart {
		sh.enter(c, sh.exit(&was))
	}
	return sh.keepLocked(c, changed)
}

// merge makes c at least as strict as x and reports whether it has changed. Both get to now, or to their own times if ahead. x
// must not be used any more.
func (c *counter) merge(x *counter, now int64) (changed bool) {
	if c.apart(x) {
		return c.mergeApart(x, now)
	}
	c.settle(now)
	x.settle(now)
	changed = c.now < x.now
	if changed {
		c.move(x.now)
	} else if x.now < c.now {
		x.move(c.now)
	}
	for i := range c.limits.plans {
		changed = c.at(i).merge(&c.limits.plans[i], x.at(i), c.now) || changed
	}
	return changed
}

// apart reports whether c and x have different limits or shadows.
func (c *counter) apart(x *counter) bool {
	return !c.limits.Equal(x.limits) || len(c.shadows()) > 0 || len(x.shadows()) > 0
}

// mergeApart is merge for counters with different limits or shadows. What one of them lacks starts at its last use.
func (c *counter) mergeApart(x *counter, now int64) (changed bool) {
	if x.free(now) {
		return false
	}
	if c.free(now) {
		c.settle(now)
	}
	at := max(now, c.now, x.now)
	// As they were. Merging does not write to the rings of logs, so they may be shared.
	ours, theirs, oursAt, theirsAt := c.candidates(), x.candidates(), c.now, x.now
	if changed = c.settle(now) < at; changed {
		for i := range ours {
			ours[i].state.log = ours[i].state.log.clone()
		}
		c.move(at)
	}
	for i := range c.limits.plans {
		if p := &c.limits.plans[i]; !p.stateless() {
			o := theirs.stateOf(p, i, theirsAt)
			o.advance(p, theirsAt, now, at)
			changed = c.at(i).merge(p, &o, at) || changed
		}
	}
	list := c.shadows()
	for i := range list {
		y := &list[i]
		o := theirs.stateOf(y.plan(), y.place, theirsAt)
		o.advance(y.plan(), theirsAt, now, at)
		changed = y.state.merge(y.plan(), &o, at) || changed
	}
	for i := range theirs {
		if y := theirs[i].shadow; !theirs[i].taken && !y.plan().stateless() {
			y.state.advance(y.plan(), theirsAt, now, at)
			s := ours.started(y.plan(), y.place, oursAt)
			s.advance(y.plan(), oursAt, now, at)
			y.state.merge(y.plan(), &s, at)
			c.addShadow(y)
			changed = true
		}
	}
	c.boundShadows(at)
	return changed
}

// advance settles s from last to now, and moves it to at if that is later; see move.
func (s *state) advance(p *plan, last, now, at int64) {
	s.settle(p, last, max(last, now))
	if from := max(last, now); from < at {
		s.log = s.log.clone()
		s.move(p, from, at)
	}
}

// merge makes s, a state of p, at least as strict as o, both as of now, and reports whether it has changed. s may take over o's
// data behind pointers.
func (s *state) merge(p *plan, o *state, now int64) (changed bool) {
	if o.last > s.last {
		s.last, changed = o.last, true
	}
	switch p.kind {
	case kindFlow:
		if o.spent > s.spent || o.spent == s.spent && o.aux < s.aux {
			s.spent, s.aux, changed = o.spent, o.aux, true
		}
	case kindWeighted:
		return s.mergeWeighted(p, o, now) || changed
	case kindStep, kindFixed:
		return s.raise(o) || changed // never is before every boundary
	case kindLog, kindBins:
		return s.mergeLog(p, o, now) || changed
	}
	return changed
}

// raise makes spent and aux of s at least those of o.
func (s *state) raise(o *state) (changed bool) {
	changed = o.spent > s.spent || o.aux > s.aux
	s.spent, s.aux = max(s.spent, o.spent), max(s.aux, o.aux)
	return changed
}

// mergeLog is merge for logs. What counts of a log at a later time is the sum of the entries from some date on. For each date
// the merged log has the larger of the two sums, so it is exactly the larger of the two at all times.
func (s *state) mergeLog(p *plan, o *state, now int64) bool {
	if o.span().n == 0 {
		return false
	}
	if s.span().n == 0 {
		s.spent, s.aux, s.log = o.spent, o.aux, o.log
		s.squeeze(p, p.maxEntries)
		return true
	}
	list := s.larger(o, now)
	slices.Reverse(list)
	t := state{log: newEntries(len(list))}
	v := span{0, uint32(len(list))}
	for i, x := range list {
		t.log.set(v, uint32(i), x)
	}
	t.setSpan(v)
	t.squeeze(p, p.maxEntries)
	if s.holds(&t) {
		return false
	}
	s.aux, s.log = t.aux, t.log
	s.sum()
	return true
}

// larger returns the entries of the log that is the larger of s and o at all times, newest first.
func (s *state) larger(o *state, now int64) []entry {
	v, w := s.span(), o.span()
	i, j := v.n, w.n
	list := make([]entry, 0, max(i, j)+8)
	var a, b, sum int64
	for i > 0 || j > 0 {
		// Ages, because dates may have wrapped around the end of int64.
		ageA, ageB := uint64(math.MaxUint64), uint64(math.MaxUint64)
		if i > 0 {
			ageA = elapsed(s.log.at(v, i-1).at, now)
		}
		if j > 0 {
			ageB = elapsed(o.log.at(w, j-1).at, now)
		}
		if ageA <= ageB {
			i--
			a = addSat(a, s.log.at(v, i).cost)
		}
		if ageB <= ageA {
			j--
			b = addSat(b, o.log.at(w, j).cost)
		}
		if most := max(a, b); most > sum {
			list = append(list, entry{now - int64(min(ageA, ageB)), most - sum})
			sum = most
		}
	}
	return list
}

// holds reports whether the logs of s and o have the same entries.
func (s *state) holds(o *state) bool {
	v, w := s.span(), o.span()
	if v.n != w.n {
		return false
	}
	for i := range v.n {
		if *s.log.at(v, i) != *o.log.at(w, i) {
			return false
		}
	}
	return true
}
