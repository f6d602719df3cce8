package bucket

import (
	"math"
	"time"
)

// Standing is how one limit of a key stands.
type Standing struct {
	// Limit, Remaining and ResetAfter are as in a Decision about this limit. Spent is what is charged of it at present, what is
	// lent among it; it may be above Limit, within a soft margin or in debt.
	Limit, Spent, Remaining int64
	ResetAfter              time.Duration
}

// Look returns how each of limits stands for key at now, in their order, and changes nothing. known says whether there
// is a counter; if not, everything is free.
func (t *Table) Look(now int64, key Key, limits *Limits) (list []Standing, known bool) {
	now = inRange(now)
	sh := &t.shards[key.Shard(len(t.shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now = sh.atLocked(now)
	c, known := sh.mu.lru.Peek(key)
	var seen counter
	if known {
		seen = c.copyTo(new(more))
		if c.limits != limits && !c.limits.Equal(limits) {
			seen = *seen.withLimits(limits, now)
		}
	} else {
		seen = newCounter(limits, now, new(more))
	}
	return seen.stand(now), known
}

// Recent calls f for the counters of the shard that were used last, at most so many: with their limits and how each of these stands
// at now.
func (t *Table) Recent(now int64, shard, most int, f func(Key, *Limits, []Standing)) {
	now = inRange(now)
	sh := &t.shards[shard]
	sh.mu.Lock()
	keys := sh.mu.lru.Keys()
	sh.mu.Unlock()
	for _, key := range keys[max(0, len(keys)-most):] {
		sh.mu.Lock()
		c, known := sh.mu.lru.Peek(key)
		var limits *Limits
		var list []Standing
		if known {
			seen := c.copyTo(new(more))
			limits, list = c.limits, seen.stand(sh.atLocked(now))
		}
		sh.mu.Unlock()
		if known {
			f(key, limits, list)
		}
	}
}

// stand settles c, a copy, to now and says how each of its limits stands.
func (c *counter) stand(now int64) []Standing {
	at := c.settle(now)
	list := make([]Standing, c.limits.Len())
	for i := range list {
		var d Decision
		c.describe(&d, i, at)
		d.seenFrom(now, at)
		s := Standing{Limit: d.Limit, Remaining: d.Remaining, ResetAfter: d.ResetAfter}
		if p := &c.plans()[i]; p.kind != kindUnlimited {
			held := c.limits.plans[i].limit - p.limit
			s.Spent = addSat(c.at(i).used(p, at), held)
		} else {
			s.Remaining = math.MaxInt64
		}
		list[i] = s
	}
	return list
}
