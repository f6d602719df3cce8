package bucket

import (
	"math"
	"time"
)

// A node's table has one shard per partition. A shard is open while the node owns the partition, otherwise sealed. A sealed
// shard has a replica: only Import writes it and only Export reads it; nothing is decided there.

// Verdict says whether Try decided.
type Verdict uint8

const (
	// Decided: the decision counts.
	Decided Verdict = iota
	// Sealed: the shard is sealed. Nothing was read or charged.
	Sealed
	// Behind: the oldest unconfirmed change of the shard's journal is too old. Nothing was charged.
	Behind
)

// Seal closes the shard: until Open, Try decides nothing there and receipts give nothing back. When Seal returns, no decision
// is in progress. New tables are open.
func (t *Table) Seal(shard int) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.sealed = true
}

// Open ends Seal. The shard's changes are numbered from seq.
func (t *Table) Open(shard int, seq uint64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.sealed, sh.mu.seq = false, seq
}

// Try is Do, and DoHeld if rc is not nil, unless the shard is sealed or its journal is behind; then d is zero and rc is empty.
// Limits that can neither deny nor count are never behind. seq is the number of the shard's last change, r's included. now is
// Unix time in ns.
//
// Do and DoHeld ignore seal and gate, but their changes are counted and recorded.
func (t *Table) Try(now int64, r *Request, rc *Receipt) (d Decision, seq uint64, v Verdict) {
	if rc != nil {
		rc.charged = false
	}
	seq, v = t.try(now, r, rc, &d)
	return d, seq, v
}

// try is Try with its result in d, which is zero; rc is empty or nil.
func (t *Table) try(now int64, r *Request, rc *Receipt, d *Decision) (seq uint64, v Verdict) {
	verb, cost := r.normal()
	now = inRange(now)
	own := r.Key.Shard(len(t.shards))
	sh := &t.shards[own]
	idle := r.Limits.unlimited && verb != Reset
	sh.mu.Lock()
	if v = sh.verdictLocked(now, r.Transient || idle); v != Decided || idle {
		seq = sh.mu.seq
		sh.mu.Unlock()
		if v == Decided {
			*d = unlimitedDecision()
		}
		return seq, v
	}
	o := sh.decideLocked(sh.atLocked(now), r, verb, cost, rc, d)
	t.followLocked(sh, own, now, r.Key, o, r.Transient && verb != Reset)
	seq = sh.mu.seq
	sh.mu.Unlock()
	if d.Lost {
		t.deniedLost.Add(1)
	}
	if o.grown > 0 && t.over() != nothing {
		t.evictElsewhere(now, own)
	}
	return seq, Decided
}

// verdictLocked reports whether the shard may decide at now. ungated requests ignore the gate.
func (sh *shard) verdictLocked(now int64, ungated bool) Verdict {
	switch {
	case sh.mu.sealed:
		return Sealed
	case !ungated && sh.mu.journal.behind(now):
		return Behind
	}
	return Decided
}

// A shard's counters may be lost while another, unreachable node still has them. Unknown consumption must not count as zero:
// requests with DenyLost are decided as if every limit of their key had been fully spent at the moment of the loss, or by the
// key's counter if that is stricter. No lost counter within its limits can have been stricter, and the two are equal once every
// window open then has ended and every level has drained.

// lost is a loss of a shard's counters; zero means none.
type lost struct {
	// since is when (Unix ns, callers' clock) they were lost, until when that stops counting.
	since, until int64
}

// MaxLostRetry is the longest RetryAfter of a denial by a loss: the old state may be back at any moment.
const MaxLostRetry = 10 * time.Second

// SetLost declares the shard's counters of before since (Unix ns) as lost, which counts until the given time; math.MaxInt64
// means forever. A since of 0 ends it.
func (t *Table) SetLost(shard int, since, until int64) {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.mu.lost = lost{since, until}
}

// SpentUntil returns when (Unix ns) a counter whose limits were fully spent at the given time is free again.
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

// spentCounter returns a counter whose limits were fully spent at a time, soft margins included.
func spentCounter(l *Limits, at int64) counter {
	c := newCounter(l, at, new(more))
	for i := range l.plans {
		p, s := &l.plans[i], c.at(i)
		if p.stateless() {
			continue
		}
		s.charge(p, at, p.capacity)
		s.admit(p, at)
	}
	return c
}

// decideLostLocked answers r in d, which is zero, if the loss decides it, and reports whether it did. A Check that is admitted
// despite the loss first gets a counter that includes the loss, and is left for that to decide.
func (sh *shard) decideLostLocked(now int64, r *Request, verb Verb, cost int64, d *Decision) (o outcome, answered bool) {
	since := sh.atLocked(sh.mu.lost.since)
	if now >= sh.atLocked(sh.mu.lost.until) || verb != Check && verb != Read || r.Limits.stateless {
		return o, false
	}
	unknown := spentCounter(r.Limits, since)
	c := sh.getLocked(r.Key)
	seen := newCounter(r.Limits, now, new(more))
	if c != nil {
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

// joinLostLocked gives r.Key a counter under r.Limits with everything spent at since.
func (sh *shard) joinLostLocked(now int64, r *Request, since int64) (o outcome) {
	if c := sh.getLocked(r.Key); c != nil {
		before := c.bytes()
		c, o.did = sh.underLocked(c, r.Limits, now, before)
		o = sh.keepLocked(c, before, o.did)
	}
	unknown := spentCounter(r.Limits, since)
	unknown.settle(now)
	return o.and(sh.joinLocked(now, r.Key, &unknown))
}

// and combines the outcomes o and then p for one key.
func (o outcome) and(p outcome) outcome {
	counter := p.counter
	if counter == nil && p.did == 0 {
		counter = o.counter
	}
	return outcome{did: o.did | p.did, counter: counter, grown: o.grown + p.grown}
}

// mayGrantAfterLoss reports whether l may be granted despite a loss: units that may have been spent are not granted.
func (sh *shard) mayGrantAfterLoss(now int64, l *LeaseRequest) bool {
	if sh.mu.lost.since == 0 || !l.DenyLost || now >= sh.atLocked(sh.mu.lost.until) || l.Limits.stateless {
		return true
	}
	unknown := spentCounter(l.Limits, sh.atLocked(sh.mu.lost.since))
	return unknown.free(max(now, unknown.now))
}

// Leave sets key's counter so that left[i] units of limit i are left at now (Unix ns); left has limits.Len() values. If left[i]
// is 0 or less, the soft margin is spent too; if it is the full limit or more, nothing is spent.
func (t *Table) Leave(now int64, key Key, limits *Limits, left []int64) {
	now = inRange(now)
	own := key.Shard(len(t.shards))
	sh := &t.shards[own]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.getLocked(key); c != nil {
		t.forgetLocked(sh, c)
	}
	at := sh.atLocked(now)
	c := newCounter(limits, at, &sh.mu.spare)
	defer sh.mu.spare.release()
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
			s.admit(p, at)
		}
	}
	t.followLocked(sh, own, now, key, sh.insertLocked(key, &c), true)
}

// Has reports whether key has a counter.
func (t *Table) Has(key Key) bool {
	sh := &t.shards[key.Shard(len(t.shards))]
	sh.mu.Lock()
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
