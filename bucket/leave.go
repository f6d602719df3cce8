package bucket

import (
	"math"
	"time"
)

// Leave makes key's counter one of which left[i] units of limit i are left at now (Unix ns), whatever it was before; left has
// limits.Len() places. Where nothing is left, nothing is left of the soft margin either; of a limit with as much as it has, or
// more, nothing is spent.
func (t *Table) Leave(now int64, key Key, limits *Limits, left []int64) {
	now = inRange(now)
	own := key.Shard(len(t.shards))
	sh := &t.shards[own]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c, ok := sh.mu.lru.Peek(key); ok {
		t.forgetLocked(sh, key, c)
	}
	at := sh.atLocked(now)
	c := newCounter(limits, at, &sh.mu.spare)
	defer sh.mu.spare.letGo()
	if limits.stateless {
		return
	}
	for i := range limits.plans {
		p, s := &limits.plans[i], c.at(i)
		units := p.limit - left[i]
		switch {
		case p.stateless():
			continue
		case left[i] <= 0:
			units = p.capacity
		}
		if units > 0 {
			s.charge(p, at, units)
			s.last = at
		}
	}
	t.followLocked(sh, own, now, key, sh.insertLocked(key, &c), true)
}

// Has reports whether key has a counter.
func (t *Table) Has(key Key) bool {
	sh := &t.shards[key.Shard(len(t.shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.mu.lru.Contains(key)
}

// Says returns from when to when (Unix ns) a Decision on limit i that was made at a time, and had this ResetAfter, says
// something of what is left of the limit: while the window lasts that was open then, or for a period where there are none; and until when
// nothing else can be said. An aligned window begins by this node's clock, and where that is a little behind the one of the node which has
// decided, the window ends, and is not over: nothing is left until it is over by this node's clock too.
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
