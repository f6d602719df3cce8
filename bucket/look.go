package bucket

import (
	"cmp"
	"slices"
	"time"
)

// Standing is the state of one limit of a key.
type Standing struct {
	// Limit, Remaining and ResetAfter are as in a Decision about this limit. Spent is the current charge including grants; it
	// may exceed Limit, within a soft margin or by debt.
	Limit, Spent, Remaining int64
	ResetAfter              time.Duration
}

// Look returns the state of each of limits for key at now, in order, and changes nothing. known is false if there is no
// counter; then everything is free.
func (t *Table) Look(now int64, key Key, limits *Limits) (list []Standing, known bool) {
	now = inRange(now)
	sh := t.lockKey(key)
	defer sh.mu.Unlock()
	now = sh.atLocked(now)
	c := sh.getLocked(now, key)
	if c == nil {
		free := newCounter(limits, now, new(more))
		return free.stand(now), false
	}
	seen := c.under(limits, now, new(more))
	return seen.stand(now), true
}

// Recent calls f for the most recently changed counters of the shard, at most most, with their limits and the state of each at
// now.
func (t *Table) Recent(now int64, shard, most int, f func(Key, *Limits, []Standing)) {
	now = inRange(now)
	sh := t.lock(shard)
	all := make([]record, 0, sh.mu.store.n)
	for slot := range sh.mu.store.n {
		if r := sh.mu.store.at(slot); r.flags()&flagGrant == 0 {
			all = append(all, *r)
		}
	}
	sh.mu.Unlock()
	slices.SortStableFunc(all, func(a, b record) int { return cmp.Compare(a.now, b.now) })
	for _, u := range all[max(0, len(all)-most):] {
		sh.mu.Lock()
		c := sh.getLocked(sh.atLocked(now), u.key)
		if c == nil {
			sh.mu.Unlock()
			continue
		}
		seen := c.copyTo(new(more))
		list := seen.stand(sh.atLocked(now))
		sh.mu.Unlock()
		f(u.key, seen.limits, list)
	}
}

// stand settles c, a copy, to now and returns the state of each of its limits.
func (c *counter) stand(now int64) []Standing {
	at := c.settle(now)
	list := make([]Standing, c.limits.Len())
	for i := range list {
		var d Decision
		c.describe(&d, i, at)
		d.seenFrom(now, at)
		list[i] = Standing{Limit: d.Limit, Remaining: d.Remaining, ResetAfter: d.ResetAfter}
		p := &c.plans()[i]
		held := c.limits.plans[i].limit - p.limit
		list[i].Spent = addSat(c.at(i).used(p, at), held)
	}
	return list
}

// A key that is decided in several places at once still has one counter. Each place repeatedly reports the total that it has
// admitted; the counter is charged the increase over the highest earlier report. That highest report is kept in a separate
// counter in the same shard with the same window, so it is transferred with the shard by replication, handoffs and snapshots.

// Counted is the result of Counts.
type Counted struct {
	// Decision is the state of the key's counter; it is always allowed.
	Decision Decision
	// Known is the highest sum reported under the tag in this window, including this one.
	Known int64
	// Added is what was charged now, Over the part beyond the limit.
	Added, Over int64
	// Ends is the end of the window (Unix ns) on the clock that windows are aligned to; see Correct.
	Ends int64
}

// Windowed reports whether l is one fixed window, aligned to the epoch or the calendar, with a count above 0 and without
// features that need individual decisions: soft margin, minimum interval, blocking or own cost. Counts requires such limits.
func (l *Limits) Windowed() bool {
	if len(l.list) != 1 {
		return false
	}
	one := &l.list[0]
	return one.Algorithm == FixedWindow && one.Align != AlignFirstHit && !one.Unlimited && one.Count > 0 &&
		one.Soft == 0 && one.MinInterval == 0 && one.BlockFor == 0 && one.Cost <= 1
}

// WindowEnd returns the end of the window that contains now (both Unix ns). l must be Windowed.
func (l *Limits) WindowEnd(now int64) int64 { return l.plans[0].windowEnd(inRange(now)) }

// Counts charges r.Key's counter the increase of r.Cost, the total admitted under tag in the window that ends at ends, over the
// highest earlier report; see Counted. If that is not the current window, it only answers. Repeated, late or reordered reports
// change nothing. r.Limits must be Windowed; r.Verb is ignored. The result is valid only with Decided. Both counters change
// under one lock; the key's counter is sent first, so a copy that loses one of them has counted too much rather than too
// little.
func (t *Table) Counts(now int64, r *Request, tag uint64, ends int64) (x Counted, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(r.Key)
	grown := false
	if v = sh.verdictLocked(now, r.Unreplicated); v == Decided {
		grown = sh.countsLocked(now, r, tag, ends, &x)
	}
	sh.unlock(now, grown)
	return x, v
}

// countsLocked is Counts under the lock, and reports whether the shard has grown.
func (sh *shard) countsLocked(now int64, r *Request, tag uint64, ends int64, x *Counted) (grown bool) {
	at, sum := sh.atLocked(now), *r
	sum.Limits = r.Limits.endless()
	sum.Key.Hi ^= tag // the shard depends on Lo only
	var told Decision
	sh.decideLocked(at, &sum, status, 0, nil, &told)
	x.Known = told.Limit - told.Remaining
	end := sh.windowLocked(at, r)
	if x.Ends = end; x.Ends == ends {
		x.Added = max(0, r.Cost-x.Known)
	}
	if x.Added == 0 {
		sh.decideLocked(at, r, status, 0, nil, &x.Decision)
		return false
	}
	o := sh.decideLocked(at, r, Charge, x.Added, nil, &x.Decision)
	sh.followLocked(now, r.Key, o, r.Unreplicated)
	x.Over = min(x.Added, max(0, o.counter.at(0).spent-r.Limits.plans[0].limit))
	told = Decision{}
	p := sh.decideLocked(at, &sum, Charge, x.Added, nil, &told)
	p.counter.first.aux = end // it may be that of another clock
	sh.mu.store.save(p.counter)
	sh.followLocked(now, sum.Key, p, r.Unreplicated)
	x.Known = told.Limit - told.Remaining
	return o.grown > 0 || p.grown > 0
}

// windowLocked returns the end of the window of r.Key that contains at.
func (sh *shard) windowLocked(at int64, r *Request) int64 {
	s, p := newState(&r.Limits.plans[0]), &r.Limits.plans[0]
	if c := sh.getLocked(at, r.Key); c != nil && len(c.limits.plans) == 1 && c.limits.plans[0].shape == p.shape {
		s = c.first
		s.settle(p, c.now, max(at, c.now))
	}
	return p.boundary(&s, at)
}

// endless returns the window of l without its count.
func (l *Limits) endless() *Limits {
	if e := l.window.Load(); e != nil {
		return e
	}
	one := l.list[0]
	one.Count, one.CountDenied = endlessCount, false
	e, err := NewLimitsAt(l.domain, l.home, one)
	if err != nil {
		panic("bucket: a window that was valid is not: " + err.Error())
	}
	l.window.Store(e)
	return e
}

// endlessCount exceeds any reported sum.
const endlessCount = 1<<62 - 1

// Meter returns limits that count as l does, but never deny and are never full, so that all that was spent stays spent when
// another meter replaces them.
func (l *Limits) Meter() *Limits {
	if m := l.meter.Load(); m != nil {
		return m
	}
	list := slices.Clone(l.list)
	for i := range list {
		switch one := &list[i]; {
		case one.Unlimited || one.Count == 0 || one.Algorithm == Concurrency:
		case one.Algorithm <= LeakyQueue:
			one.Burst, one.Soft = endlessCount, 0
		default:
			one.Count, one.Soft = endlessCount, 0
		}
	}
	m, err := NewLimitsAt(l.domain, l.home, list...)
	if err != nil {
		panic("bucket: limits that were valid are not as a meter: " + err.Error())
	}
	l.meter.Store(m)
	return m
}

// Granted units still count after their lease has ended, so times depend on the leases too.

// retry returns the time (ns) from now until limit i has room for units > 0, or Never.
func (c *counter) retry(i int, now, units int64) int64 {
	p := &c.limits.plans[i]
	if p.kind == kindUnlimited {
		return 0
	}
	if units > p.capacity {
		return int64(Never)
	}
	return max(c.until(i, now, p.capacity-units), c.interval(i, now))
}

// interval is state.interval for limit i, including grants, which may be spent until their deadlines. Limits with an interval do not
// grant, but may come into force while there are grants.
func (c *counter) interval(i int, now int64) int64 {
	p := &c.limits.plans[i]
	if c.held(p) > 0 && p.minInterval > 0 && !p.blocks {
		return addSat(max(0, subSat(c.lastDeadline()-1, now)), p.minInterval)
	}
	return c.at(i).interval(p, now)
}

// lastDeadline returns the latest deadline of the open grants of c, or a later one that it had.
func (c *counter) lastDeadline() int64 {
	if g := c.firstGrants(); len(g) > 0 && len(g) == c.granted() {
		return g[len(g)-1].end
	}
	return c.more.ledger.last
}

// until is state.until for limit i, including grants: the time (ns) from now until at most target ≥ 0 units count, if nothing
// is charged or settled. With more than fewGrants grants it may be shorter.
func (c *counter) until(i int, now, target int64) int64 {
	p, s := &c.limits.plans[i], c.at(i)
	switch {
	case c.held(p) == 0:
		return s.until(p, now, target)
	case s.fits(p, len(c.firstGrants())) && !slices.ContainsFunc(c.firstGrants(), func(g grant) bool { return g.releases }):
		return c.untilLog(i, now, target)
	}
	return c.untilLapsed(i, now, target, c.firstGrants())
}

// untilFree is until for no units at all. With more than fewGrants grants it may be longer.
func (c *counter) untilFree(i int, now int64) int64 {
	if c.held(&c.limits.plans[i]) > 0 && (c.granted() > fewGrants || len(c.firstGrants()) < c.granted()) {
		return c.untilLapsed(i, now, 0, []grant{{end: c.more.ledger.last, units: c.more.ledger.units(), limits: c.limits}})
	}
	return c.until(i, now, 0)
}

// untilLapsed is until for what the grants of list do at their deadlines.
func (c *counter) untilLapsed(i int, now, target int64, list []grant) int64 {
	p, t, at, rest := &c.limits.plans[i], *c.at(i), now, c.more.ledger.units()
	t.log = t.log.clone()
	for _, g := range list {
		last := max(at, g.end-1)
		if g.releases {
			last = max(at, g.end)
		}
		if held := mulSat(rest, p.cost); held <= target {
			if wait := t.until(p, at, target-held); wait <= subSat(last, at) {
				return addSat(subSat(at, now), wait)
			}
		}
		rest -= min(rest, g.units)
		t.settle(p, at, last)
		if at = last; !g.releases {
			c.chargeLate(&t, p, at, g.units, g.limits)
		}
	}
	if mulSat(rest, p.cost) > target {
		return subSat(at, now)
	}
	return addSat(subSat(at, now), t.until(p, at, target-mulSat(rest, p.cost)))
}

// fits reports whether s is a log that can take n more entries without merging old ones.
func (s *state) fits(p *plan, n int) bool {
	return (p.kind == kindLog || p.kind == kindBins) && int(s.span().n)+n <= p.maxEntries
}

// untilLog is until for a log that fits, whose entries all expire before those that grants will make.
func (c *counter) untilLog(i int, now, target int64) int64 {
	p, s, rest := &c.limits.plans[i], c.at(i), c.more.ledger.units()
	if held := mulSat(rest, p.cost); held <= target {
		return s.until(p, now, target-held)
	}
	last := now
	for _, g := range c.firstGrants() {
		rest, last = rest-min(rest, g.units), max(now, g.end-1)
		if mulSat(rest, p.cost) <= target {
			break
		}
	}
	return addSat(subSat(last, now), p.expiry(p.dateOf(last), last))
}
