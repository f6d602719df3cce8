package bucket

// MaxTimes is the most often that TryTimes decides a request.
const MaxTimes = 1024

// Series answers a request that was asked several times at one instant.
type Series struct {
	// Granted is how many of them were admitted: the first ones, as all are alike.
	Granted int64
	// Last answers the last one that was admitted, Denial the first one that was not, and with it all
	// behind it. Either is zero if there is none.
	Last, Denial Decision
}

// Repeatable reports whether checks of equal cost under these limits can be decided as one that is
// repeated: a denial changes nothing and so is that of all behind it, and what was granted differs in
// nothing but what remains. That is not so where a denied check counts, where an admitted one
// may have to wait, and where a soft margin marks some of them.
func (l *Limits) Repeatable() bool {
	for i := range l.plans {
		if p := &l.plans[i]; p.countDenied || p.queue || p.limit < p.capacity {
			return false
		}
	}
	return true
}

// TryTimes is Try of r, times times (1 to MaxTimes) at one instant and without anything in between,
// up to the first denial. r is a Check with a cost above 0 and without Drain, under limits that are Repeatable. charged
// reports whether anything was spent, and seq is the number of the shard's last change.
func (t *Table) TryTimes(now int64, r *Request, times int64) (s Series, charged bool, seq uint64, v Verdict) {
	now = inRange(now)
	own := r.Key.Shard(len(t.shards))
	sh := &t.shards[own]
	sh.mu.Lock()
	v = sh.verdictLocked(now, r.Transient || r.Limits.unlimited)
	if v == Decided {
		charged = t.timesLocked(sh, own, now, r, min(times, MaxTimes), &s)
	}
	seq = sh.mu.seq
	sh.mu.Unlock()
	if charged && t.over() != nothing {
		t.evictElsewhere(now, own)
	}
	return s, charged, seq, v
}

// timesLocked decides r until it is denied, at most times times.
func (t *Table) timesLocked(sh *shard, own int, now int64, r *Request, times int64, s *Series) (spent bool) {
	if r.Limits.unlimited {
		s.Granted, s.Last = times, unlimitedDecision()
		return false
	}
	for s.Granted < times {
		var d Decision
		o := sh.decideLocked(sh.atLocked(now), r, Check, r.Cost, nil, &d)
		t.followLocked(sh, own, now, r.Key, o, r.Transient)
		spent = spent || o.has(charged)
		if !d.Allowed {
			if s.Denial = d; d.Lost {
				t.deniedLost.Add(uint64(times - s.Granted))
			}
			return spent
		}
		s.Granted, s.Last = s.Granted+1, d
	}
	return spent
}
