package bucket

import (
	"math"
	"time"
)

// Leave sets key's counter so that left[i] units of limit i are left at now (Unix ns); left has limits.Len() values. If left[i]
// is 0 or less, the soft margin is spent too; if it is the full limit or more, nothing is spent.
func (t *Table) Leave(now int64, key Key, limits *Limits, left []int64) {
	now = inRange(now)
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	at := sh.atLocked(now)
	old := sh.getLocked(at, key) // grants whose deadline has passed end now, and count no more
	if limits.stateless {
		if old != nil {
			sh.followLocked(now, key, sh.clearLocked(old), true)
		}
		return
	}
	c := newCounter(limits, at, &sh.mu.spare)
	defer sh.mu.spare.release()
	for i := range limits.plans {
		p, s := &limits.plans[i], c.at(i)
		units := p.limit - left[i]
		if left[i] <= 0 {
			units = p.capacity
		}
		if units > 0 {
			s.charge(p, at, units)
			s.admit(p, at)
		}
	}
	sh.followLocked(now, key, sh.placeLocked(key, &c), true)
}

// Has reports whether key has a counter.
func (t *Table) Has(key Key) bool {
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	_, ok := sh.mu.store.find(key)
	return ok
}

// Says returns the time range (Unix ns) in which a Decision on limit i, made at a time with this ResetAfter, tells what is left
// of the limit: the window open then, or one period where there are none; and the time until which nothing else is known. An
// aligned window ends by the deciding node's clock; if this node's clock is slightly behind, nothing counts as left until the
// window has ended here too.
func (l *Limits) Says(i int, at int64, resetAfter time.Duration) (from, to, until int64) {
	const always = math.MinInt64
	p := &l.plans[i]
	switch {
	case p.kind == kindFixed && resetAfter > 0:
		from, to = always, addSat(at, int64(resetAfter))
		if until = to; p.align != AlignFirstHit {
			if end := p.windowEnd(to - 1); end-to < (p.windowEnd(end)-end)/2 {
				from, until = p.windowStart(end-1), end
			}
		}
		return from, to, until
	case p.kind == kindFixed && p.align == AlignFirstHit:
		to = at // no window was open
	case p.kind == kindFixed, p.kind == kindStep && p.align != AlignFirstHit:
		to = p.windowEnd(at)
	default:
		to = addSat(at, p.period)
	}
	return always, to, to
}
