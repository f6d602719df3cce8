package bucket

import (
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// shard is one lock's part of a table.
type shard struct {
	mu struct {
		sync.Mutex
		lru *simplelru.LRU[Key, *counter]
		// bytes is the approximate memory of the shard's counters.
		bytes int64
		// spare is working space for counters that are not in the table.
		spare more
	}
}

// newLRU returns an empty list without a cap of its own: the caps are the table's.
func newLRU() *simplelru.LRU[Key, *counter] {
	lru, err := simplelru.NewLRU[Key, *counter](math.MaxInt, nil)
	if err != nil {
		panic("bucket: simplelru refuses its size: " + err.Error()) // positive, so it cannot
	}
	return lru
}

// outcome is what a decision did to its shard.
type outcome struct {
	charged, inserted, removed bool
	// grown is by how many bytes the shard has grown.
	grown int64
}

// decideLocked answers r, of which verb and cost are the normal forms, in d, which is zero.
// It fills rc, if not nil, when it charged.
func (sh *shard) decideLocked(now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) (o outcome) {
	c, ok := sh.mu.lru.Get(r.Key)
	switch {
	case !ok:
		return sh.firstLocked(now, r, verb, cost, rc, d)
	case verb == Read || verb == status:
		sh.readLocked(c, now, r, verb, cost, d)
		return o
	case verb == Reset:
		o = outcome{removed: true, grown: -sh.removeLocked(r.Key, c)}
		sh.firstLocked(now, r, status, 0, nil, d)
		return o
	}
	return sh.useLocked(c, now, r, verb, cost, rc, d)
}

// firstLocked answers for a key that has no counter, and inserts one if there is
// something to remember.
func (sh *shard) firstLocked(now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) (o outcome) {
	c := newCounter(r.Limits, now, &sh.mu.spare)
	if rc != nil {
		rc.before(&c, now)
	}
	kept := false
	switch verb {
	case Check:
		kept = c.check(now, cost, d)
	case Charge:
		c.charge(now, cost)
		c.status(now, d)
		kept = true
	case Read:
		c.read(now, cost, d)
	default:
		c.status(now, d)
	}
	if !kept || r.Limits.stateless {
		return o
	}
	made := c.clone()
	clear(sh.mu.spare.rest) // so that it keeps no log alive
	o = outcome{charged: d.Allowed, inserted: true, grown: made.bytes()}
	sh.mu.lru.Add(r.Key, made)
	sh.mu.bytes += o.grown
	if rc != nil && o.charged {
		rc.after(r.Key, made, cost)
	}
	return o
}

// readLocked answers for c and leaves it as it is.
func (sh *shard) readLocked(c *counter, now int64, r *Request, verb Verb, cost int64, d *Decision) {
	seen := c.copyTo(&sh.mu.spare)
	if c.limits != r.Limits && !c.limits.Equal(r.Limits) {
		seen = *seen.withLimits(r.Limits, now)
	}
	at := seen.settle(now)
	if verb == Read {
		seen.read(at, cost, d)
	} else {
		seen.status(at, d)
	}
	d.seenFrom(now, at)
	clear(sh.mu.spare.rest) // so that they keep no log alive
	clear(sh.mu.spare.shadows)
}

// useLocked answers a verb that may change c.
func (sh *shard) useLocked(c *counter, now int64, r *Request, verb Verb, cost int64, rc *Receipt, d *Decision) (o outcome) {
	before := c.bytes()
	if verb == Refund {
		// A copy, so that receipts from before no longer find their counter.
		c = c.clone()
		sh.mu.lru.Add(r.Key, c)
	}
	if c.limits != r.Limits {
		if c.limits.Equal(r.Limits) {
			c.limits = r.Limits // parsed again; next time the pointers are equal
		} else {
			c = c.withLimits(r.Limits, now)
			sh.mu.lru.Add(r.Key, c)
		}
	}
	at := c.settle(now)
	if rc != nil {
		rc.before(c, at)
	}
	switch verb {
	case Check:
		c.check(at, cost, d)
		o.charged = d.Allowed
	case Charge:
		c.charge(at, cost)
		c.status(at, d)
		o.charged = true
	case Refund:
		c.refund(cost)
		c.status(at, d)
	}
	if rc != nil && o.charged {
		rc.after(r.Key, c, cost)
	}
	o.grown = c.bytes() - before
	sh.mu.bytes += o.grown
	d.seenFrom(now, at)
	return o
}

// undoLocked undoes the charge in rc if its counter is still there.
func (sh *shard) undoLocked(now int64, rc *Receipt) {
	if c, ok := sh.mu.lru.Peek(rc.key); ok && c == rc.counter {
		c.undo(rc, c.settle(now))
	}
}

// removeLocked takes key's counter c out and returns its bytes.
func (sh *shard) removeLocked(key Key, c *counter) int64 {
	n := c.bytes()
	sh.mu.lru.Remove(key)
	sh.mu.bytes -= n
	return n
}

// seenFrom turns a decision made at the counter's time at into one for a caller whose clock
// shows now, which may be earlier: times until something are counted from there.
func (d *Decision) seenFrom(now, at int64) {
	if at == now {
		return
	}
	behind := saturate(elapsed(now, at))
	if d.RetryAfter > 0 {
		d.RetryAfter = time.Duration(addSat(int64(d.RetryAfter), behind))
	}
	if d.Delay > 0 {
		d.Delay = time.Duration(addSat(int64(d.Delay), behind))
	}
	if d.ResetAfter > 0 {
		d.ResetAfter = time.Duration(addSat(int64(d.ResetAfter), behind))
	}
}
