package bucket

import (
	"cmp"
	"slices"
	"time"
)

// A shard's counters may be lost while another, unreachable node still has them. Unknown
// consumption must not count as zero: requests with DenyLost are decided as if every limit of their
// key had been fully spent at the moment of the loss, or by the key's counter if that is stricter.
// No lost counter within its limits can have been stricter, and the two are equal once every window
// open then has ended and every level has drained. Slots count as held until the longest deadline
// that they may have had.

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
	sh := t.lock(shard)
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
		end = max(end, addSat(c.now, c.at(i).free(&l.plans[i], c.now)))
	}
	return end
}

// SetHeld sets how long reservations under limits with a Concurrency may last, by Limits.Sum;
// DefaultSettleWindow for others.
func (t *Table) SetHeld(longest map[uint64]time.Duration) { t.held.Store(&longest) }

// LostUntil returns when (Unix ns) counters of l that were lost at the given time count no more:
// those that were fully spent are free again, and slots that were held then have ended.
func (t *Table) LostUntil(l *Limits, at int64) int64 {
	return max(l.SpentUntil(at), t.heldUntil(l, at))
}

// heldUntil returns the latest deadline of slots under l that were held at the given time, never if
// l has none.
func (t *Table) heldUntil(l *Limits, at int64) int64 {
	if !l.slots {
		return never
	}
	longest := DefaultSettleWindow
	if m := t.held.Load(); m != nil {
		longest = cmp.Or((*m)[l.Sum()], longest)
	}
	return addSat(at, int64(longest))
}

// spentCounter returns a counter whose limits were fully spent at a time, soft margins included.
func spentCounter(l *Limits, at int64) counter {
	c := newCounter(l, at, new(more))
	for i := range l.plans {
		p, s := &l.plans[i], c.at(i)
		s.charge(p, at, p.capacity)
		if p.minInterval > 0 {
			s.last = at // also of a denial that blocks
		}
	}
	return c
}

// decideLostLocked answers r in d, which is zero, if the loss decides it, and reports whether it did. A Check that is admitted
// despite the loss first gets a counter that includes the loss, and is left for that to decide.
func (sh *shard) decideLostLocked(now int64, r *Request, verb Verb, cost int64, d *Decision) (o outcome, answered bool) {
	since := sh.atLocked(sh.mu.lost.since)
	if now >= sh.atLocked(sh.mu.lost.until) || verb != Check && verb != Read || r.Limits.stateless && !r.Limits.slots {
		return o, false
	}
	if now < sh.table.heldUntil(r.Limits, since) {
		return o, sh.denyHeldLocked(now, since, r, cost, d)
	}
	unknown := spentCounter(r.Limits, since)
	seen := newCounter(r.Limits, now, new(more))
	if c := sh.getLocked(now, r.Key); c != nil {
		seen = c.under(r.Limits, now, new(more))
		if unknown.now > now {
			seen.unshare() // it is moved to the time of the loss
		}
	}
	at := seen.settle(now)
	if unknown.free(at) {
		return o, false
	}
	var known Decision
	seen.read(r, at, cost, &known)
	if !known.Allowed || !seen.merge(&unknown, at) {
		return o, false // the counter is as strict
	}
	seen.read(r, at, cost, d)
	if d.Allowed && verb == Check {
		*d = Decision{}
		return sh.joinLostLocked(now, r, since), false
	}
	d.seenFrom(now, at)
	if !d.Allowed {
		sh.lostLocked(now, d)
	}
	return o, true
}

// lostLocked says in d, a denial, that it is because of the loss.
func (sh *shard) lostLocked(now int64, d *Decision) {
	d.Lost = true
	d.RetryAfter = min(d.RetryAfter, MaxLostRetry, time.Duration(subSat(sh.atLocked(sh.mu.lost.until), now)))
}

// denyHeldLocked denies r, since all slots may still be held by those who had them at since. It
// reports false if r is denied anyway.
func (sh *shard) denyHeldLocked(now, since int64, r *Request, cost int64, d *Decision) bool {
	seen := newCounter(r.Limits, now, new(more))
	if c := sh.getLocked(now, r.Key); c != nil {
		seen = c.under(r.Limits, now, new(more))
	}
	var known Decision
	if seen.read(r, seen.settle(now), cost, &known); !known.Allowed {
		return false
	}
	i := slices.IndexFunc(r.Limits.plans, func(p plan) bool { return p.kind == kindSlots })
	d.Index, d.Limit = uint8(i), r.Limits.plans[i].limit
	d.ResetAfter = time.Duration(subSat(sh.table.LostUntil(r.Limits, since), now))
	d.RetryAfter = d.ResetAfter
	sh.lostLocked(now, d)
	return true
}

// joinLostLocked gives r.Key a counter under r.Limits with everything spent at since.
func (sh *shard) joinLostLocked(now int64, r *Request, since int64) (o outcome) {
	if c := sh.getLocked(now, r.Key); c != nil {
		_, o = sh.underLocked(c, r.Limits, now)
	}
	unknown := spentCounter(r.Limits, since)
	unknown.settle(now)
	return o.and(sh.joinLocked(now, r.Key, &unknown, false))
}

// mayGrantAfterLoss reports whether l may be granted despite a loss: units that may have been spent are not granted.
func (sh *shard) mayGrantAfterLoss(now int64, l *LeaseRequest) bool {
	if sh.mu.lost.since == 0 || !l.DenyLost || now >= sh.atLocked(sh.mu.lost.until) {
		return true
	}
	unknown := spentCounter(l.Limits, sh.atLocked(sh.mu.lost.since))
	return now >= sh.table.heldUntil(l.Limits, unknown.now) && unknown.free(max(now, unknown.now))
}
