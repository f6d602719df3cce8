package bucket

// A key that is decided in several places at once has one counter all the same. Each place says, again and
// again, how much it has admitted in all; the counter is charged what that is more than the most it was
// told before. That most is kept in a counter of its own beside the key's, in the same shard and for the same
// window. So it goes wherever the shard goes, in copies, hand-offs and snapshots, and whoever holds the
// shard knows what it has been told already.

// Tallied answers Tally.
type Tallied struct {
	// Decision is what the key's counter says now; it is always allowed.
	Decision Decision
	// Known is the most that was told under the tag in this window, with this time.
	Known int64
	// Added is what was charged now, Over how much of it went beyond the limit.
	Added, Over int64
	// Ends is the end of the window (Unix ns) on the clock that windows are aligned to, see Correct.
	Ends int64
}

// Windowed reports whether l is one fixed window, aligned to the epoch or the calendar, with nothing that
// only the deciding of single checks can keep: no soft margin, minimum interval or cost of its own, and a count
// above 0. Such limits can be tallied.
func (l *Limits) Windowed() bool {
	if len(l.list) != 1 {
		return false
	}
	one := &l.list[0]
	return one.Algorithm == FixedWindow && one.Align != AlignFirstHit && !one.Unlimited && one.Count > 0 &&
		one.Soft == 0 && one.MinInterval == 0 && one.Cost <= 1
}

// WindowEnd returns the end of the window that now is in (both Unix ns). l must be Windowed.
func (l *Limits) WindowEnd(now int64) int64 { return l.plans[0].windowEnd(inRange(now)) }

// Tally charges r.Key's counter what r.Cost, the sum of all that was admitted under tag in the window that ends at ends, as Tallied says it, is more
// than the most that was tallied under tag in this window. If that is not the window of now, it only answers. Telling it again, late or in another order changes
// nothing. r.Limits must be Windowed; r.Verb is ignored. Only Decided counts. Both counters change under one lock, so no
// copy of the shard is told of one of them alone by the order of things; a copy that has only one of them, after a loss,
// has counted too much rather than too little, because the key's counter comes first.
func (t *Table) Tally(now int64, r *Request, tag uint64, ends int64) (x Tallied, v Verdict) {
	now = inRange(now)
	own := r.Key.Shard(len(t.shards))
	sh := &t.shards[own]
	sh.mu.Lock()
	if v = sh.verdictLocked(now, r.Transient); v != Decided {
		sh.mu.Unlock()
		return x, v
	}
	grown := t.tallyLocked(sh, own, now, r, tag, ends, &x)
	sh.mu.Unlock()
	if grown && t.over() != nothing {
		t.evictElsewhere(now, own)
	}
	return x, Decided
}

// tallyLocked reports whether the shard has grown.
func (t *Table) tallyLocked(sh *shard, own int, now int64, r *Request, tag uint64, ends int64, x *Tallied) (grown bool) {
	at, sum := sh.atLocked(now), *r
	sum.Limits = r.Limits.endless()
	sum.Key.Hi ^= tag // the shard follows from Lo
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
	t.followLocked(sh, own, now, r.Key, o, r.Transient)
	x.Over = min(x.Added, max(0, o.counter.at(0).spent-r.Limits.plans[0].limit))
	told = Decision{}
	p := sh.decideLocked(at, &sum, Charge, x.Added, nil, &told)
	p.counter.first.aux = end // which may be that of another clock
	t.followLocked(sh, own, now, sum.Key, p, r.Transient)
	x.Known = told.Limit - told.Remaining
	return o.grown > 0 || p.grown > 0
}

// windowLocked returns the end of the window of r.Key that at is in.
func (sh *shard) windowLocked(at int64, r *Request) int64 {
	s, p := newState(&r.Limits.plans[0]), &r.Limits.plans[0]
	if c, ok := sh.mu.lru.Peek(r.Key); ok && len(c.limits.plans) == 1 && c.limits.plans[0].shape == p.shape {
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
	e, err := NewLimitsIn(l.domain, one)
	if err != nil {
		panic("bucket: a window that was valid is not: " + err.Error())
	}
	l.window.Store(e)
	return e
}

// endlessCount is more than any sum that is told.
const endlessCount = 1<<62 - 1
