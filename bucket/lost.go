package bucket

import "time"

// A shard's counters may have been lost, while somebody still has them who cannot be asked. What is unknown is not unspent:
// requests with DenyLost are decided as if every limit of their key had been wholly spent at the moment of the loss, or
// by what the key's counter says, if that is stricter. No counter that was lost within its limits can have been stricter, and
// the two are equal as soon as every window that was open then has ended, and every level has drained.

// lost is the loss of a shard's counters; zero is none.
type lost struct {
	// since and until (Unix ns, on the callers' clock) are when they were lost, and from when on that no longer counts.
	since, until int64
}

// MaxLostRetry is the longest RetryAfter of a denial by what was lost: the old state may be back at any moment.
const MaxLostRetry = 10 * time.Second

// SetLost says that the shard's counters of before since (Unix ns) are lost, and that this counts until the given time; math.MaxInt64
// is for ever. A since of 0 ends it.
func (t *Table) SetLost(shard int, since, until int64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.lost = lost{since, until}
}

// SpentUntil returns when (Unix ns) a counter whose limits were wholly spent at the given time is as good as new.
func (l *Limits) SpentUntil(at int64) int64 {
	if l.stateless {
		return at
	}
	c := spentCounter(l, inRange(at))
	end := c.now
	for i := range l.plans {
		if p := &l.plans[i]; !p.stateless() {
			end = max(end, addSat(c.now, c.at(i).free(p, c.now)))
		}
	}
	return end
}

// spentCounter returns a counter all of whose limits were spent at a time, the soft margins too.
func spentCounter(l *Limits, at int64) counter {
	c := newCounter(l, at, new(more))
	for i := range l.plans {
		p, s := &l.plans[i], c.at(i)
		if p.stateless() {
			continue
		}
		s.charge(p, at, p.capacity)
		s.last = at
	}
	return c
}

// decideLostLocked answers r in d, which is zero, if the loss of the shard's counters is what decides, and reports whether it
// did. Where a Check is admitted in spite of the loss, it makes the key's counter one that knows of it, and leaves the answer to that.
func (sh *shard) decideLostLocked(now int64, r *Request, verb Verb, cost int64, d *Decision) (o outcome, answered bool) {
	since := sh.atLocked(sh.mu.lost.since)
	if now >= sh.atLocked(sh.mu.lost.until) || verb != Check && verb != Read || r.Limits.stateless {
		return o, false
	}
	unknown := spentCounter(r.Limits, since)
	c, there := sh.mu.lru.Peek(r.Key)
	seen := newCounter(r.Limits, now, new(more))
	if there {
		if seen = c.copyTo(new(more)); c.limits != r.Limits && !c.limits.Equal(r.Limits) {
			seen = *seen.withLimits(r.Limits, now)
		}
	}
	at := seen.settle(now)
	if unknown.free(at) {
		return o, false
	}
	var known Decision
	seen.readFor(r, at, cost, &known)
	if !known.Allowed || !seen.merge(&unknown, at) {
		return o, false // the counter is as strict
	}
	seen.readFor(r, at, cost, d)
	if d.Allowed && verb == Check {
		*d = Decision{}
		return sh.joinLostLocked(now, r, since), false
	}
	d.seenFrom(now, at)
	if !d.Allowed {
		d.Lost = true
		d.RetryAfter = min(d.RetryAfter, MaxLostRetry, time.Duration(subSat(sh.atLocked(sh.mu.lost.until), now)))
	}
	return o, true
}

// joinLostLocked makes r.Key's counter one under r.Limits of which all was spent at since.
func (sh *shard) joinLostLocked(now int64, r *Request, since int64) (o outcome) {
	if c, ok := sh.mu.lru.Get(r.Key); ok {
		before := c.bytes()
		c, o.did = sh.underLocked(r.Key, c, r.Limits, now, before)
		o.counter, o.grown = c, c.bytes()-before
		sh.mu.bytes += o.grown
	}
	unknown := spentCounter(r.Limits, since)
	unknown.settle(now)
	return o.and(sh.joinLocked(now, r.Key, &unknown))
}

// and returns what was done to one key by o and then by p.
func (o outcome) and(p outcome) outcome {
	counter := p.counter
	if counter == nil && p.did == 0 {
		counter = o.counter
	}
	return outcome{did: o.did | p.did, counter: counter, grown: o.grown + p.grown}
}

// lendsLost reports whether a loan of r's kind may be granted at now: nothing is lent of what may have been spent.
func (sh *shard) lendsLost(now int64, l *Loan) bool {
	if sh.mu.lost.since == 0 || !l.DenyLost || now >= sh.atLocked(sh.mu.lost.until) || l.Limits.stateless {
		return true
	}
	unknown := spentCounter(l.Limits, sh.atLocked(sh.mu.lost.since))
	return unknown.free(max(now, unknown.now))
}
