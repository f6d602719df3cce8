package bucket

// Counters leave the table in three ways: Sweep removes those that are wholly free, an insert drops
// a few free ones that it finds at the old end of its list, and above a cap others go, free or not. Only the last can
// forget what was spent. It chooses
//
//   - a counter of the domain that has the most, or at least three quarters of that, so that no domain can push out the counters
//     of one that has much less than itself; or of a domain above its own cap;
//   - of a few of these, from the old end of the list, the first that is less than half spent and was not used again, else of those
//     that are not wholly spent, if there is one, that which was used longest ago. So keys that are half spent go after those that were used
//     once, and those that are denied last: on a node with their replica nobody uses them.
//
// What it spares goes to the young end of the list and is not looked at again soon. So a list is a clock, as that of
// S3-FIFO or 2Q, and the bit that they need is one of the counter's.

const (
	// glances is how many counters an insert looks at for free ones.
	glances = 2
	// maxEvictions bounds the counters that one decision evicts, and so its duration.
	maxEvictions = 64
	// maxLooks bounds the counters that one decision looks at to evict some.
	maxLooks = 64
	// choices is among how many counters that may go the one that does is chosen.
	choices = 8
	// slack is which part of a cap the table may be above it while all that was looked at is spared. In that time, looking
	// maxLooks at a time, every counter of a list has been looked at once.
	slack = maxLooks
	// sweepChunk is how many counters Sweep looks at under one hold of the lock.
	sweepChunk = 128
)

// accountLocked adds o to the table's counts and invalidates in sh, whose newest
// counter is the one that has grown.
func (t *Table) accountLocked(sh *shard, now int64, o outcome) {
	t.bytes.Add(o.grown)
	if o.has(removed) {
		t.entries.Add(-1)
		return
	}
	d := t.accountOf(o.counter.limits).domain
	d.bytes.Add(o.grown)
	if o.has(inserted) {
		t.entries.Add(1)
		t.inserted.Add(1)
		t.dropFreeLocked(sh, now)
	}
	if t.over() != nothing || d.crowded() {
		t.makeRoomLocked(sh, now, d, 1)
	}
}

// dropFreeLocked drops a few counters from the old end of sh's list if they are free.
func (t *Table) dropFreeLocked(sh *shard, now int64) {
	for range glances {
		key, c, _ := sh.mu.lru.GetOldest()
		if sh.mu.lru.Len() == 1 || !c.free(sh.atLocked(now)) {
			return
		}
		t.forgetLocked(sh, key, c)
		t.expired.Add(1)
	}
}

// makeRoomLocked evicts counters of sh, as far as they may go, until the table is within its caps, and so is crowd if it is
// not nil. The last keep counters stay. It returns how many it evicted and looked at.
func (t *Table) makeRoomLocked(sh *shard, now int64, crowd *domain, keep int) (evicted, looks int) {
	// Of fewer than there are choices, that may be the one which should go last.
	for evicted < maxEvictions && looks <= maxLooks-choices && sh.mu.lru.Len() > keep {
		over := t.over()
		if over == nothing && (crowd == nil || !crowd.crowded()) {
			break
		}
		key, c, n := t.chooseLocked(sh, now, over, min(maxLooks-looks, sh.mu.lru.Len()-keep))
		looks += n
		if c == nil {
			break
		}
		t.evictLocked(sh, now, key, c)
		evicted++
	}
	return evicted, looks
}

// chooseLocked returns the counter of sh that is to go, or nil if none of the looks oldest may, and how many it looked at. What is wholly
// spent, what other domains have, and what shares its set of limits where there are too many sets, may go only where the table is far above its
// caps.
func (t *Table) chooseLocked(sh *shard, now int64, over resource, looks int) (Key, *counter, int) {
	most, far, looked := t.largest(over), t.farOver(), 0
	var best, other, shared victim
	for candidates := 0; looked < looks && candidates < choices; looked++ {
		k, c, _ := sh.mu.lru.GetOldest()
		if may := t.mayGo(c, over, most); may || far {
			x := victim{k, c, c.worth(sh.atLocked(now))}
			switch {
			case !may && over == tooManySets && t.accountOf(c.limits).domain.has(over) >= most-most/4:
				shared = shared.or(x) // its set goes with the last counter that has it
			case !may:
				other = other.or(x)
			case x.worth == usedOnce:
				return k, c, looked + 1
			case x.worth == halfSpent:
				best = best.or(x)
				candidates++
			case far:
				best = best.or(x)
			}
		}
		c.cuts &^= flagAgain
		sh.mu.lru.Get(k) // spared, for now
	}
	for _, x := range []victim{shared, other} {
		if best.counter == nil {
			best = x
		}
	}
	return best.key, best.counter, looked
}

// victim is a counter that may be evicted.
type victim struct {
	key     Key
	counter *counter
	worth   worth
}

// or returns which of a, if it is one, and b is to go.
func (a victim) or(b victim) victim {
	if a.counter == nil || b.worth < a.worth || b.worth == a.worth && b.counter.now < a.counter.now {
		return b
	}
	return a
}

// mayGo reports whether c may be evicted where the table has too much of r, and the largest domain has most of it.
func (t *Table) mayGo(c *counter, r resource, most int64) bool {
	a := t.accountOf(c.limits)
	switch {
	case a.domain.crowded():
		return true
	case r == nothing, r == tooManySets && a.refs.Load() > 1:
		return false
	}
	return a.domain.has(r) >= most-most/4
}

// evictLocked evicts key's counter c of sh.
func (t *Table) evictLocked(sh *shard, now int64, key Key, c *counter) {
	if c.free(sh.atLocked(now)) {
		t.evictedExpired.Add(1)
	} else {
		t.evictedLive.Add(1)
		t.accountOf(c.limits).domain.evicted.Add(1)
	}
	t.forgetLocked(sh, key, c)
}

// worth is how much is lost with a counter.
type worth uint8

const (
	usedOnce  worth = iota // or it does not count any more
	halfSpent              // of one of its limits, at least; or it counts and was used again
	allSpent               // of one of its limits, or something is granted
)

// worth returns what is lost with c at now.
func (c *counter) worth(now int64) (w worth) {
	now = max(now, c.now)
	if c.ledger() != nil {
		return allSpent
	}
	for i := range c.limits.plans {
		p, s := &c.limits.plans[i], *c.at(i)
		if p.stateless() {
			continue
		}
		s.settle(p, c.now, now)
		used := s.used(p, now)
		switch {
		case used >= p.limit:
			return allSpent
		case used >= p.limit-p.limit/2, c.has(flagAgain) && (used > 0 || s.interval(p, now) > 0):
			w = halfSpent
		}
	}
	return w
}

// forgetLocked removes key's counter c from sh.
func (t *Table) forgetLocked(sh *shard, key Key, c *counter) {
	t.bytes.Add(-sh.removeLocked(key, c, c.bytes()))
	t.entries.Add(-1)
}

// evictElsewhere evicts from the shards in turn, own excepted, until the table is within
// its caps. No lock may be held.
func (t *Table) evictElsewhere(now int64, own int) {
	n := uint64(len(t.shards))
	evicted, looks := 0, 0
	for range n {
		i := t.next.Add(1) % n
		if i == uint64(own) {
			continue
		}
		sh := &t.shards[i]
		sh.mu.Lock()
		e, l := t.makeRoomLocked(sh, now, nil, 0)
		sh.mu.Unlock()
		evicted, looks = evicted+e, looks+l
		if evicted >= maxEvictions || t.over() == nothing || looks >= maxLooks && !t.farOver() {
			return
		}
	}
}

// Sweep removes the shard's counters that are wholly free again and returns how many.
// It holds the shard's lock for a short time at a stretch.
func (t *Table) Sweep(now int64, shard int) int {
	now = inRange(now)
	sh := &t.shards[shard]
	sh.mu.Lock()
	keys := sh.mu.lru.Keys()
	sh.mu.Unlock()
	removed := 0
	for len(keys) > 0 {
		n := min(sweepChunk, len(keys))
		removed += t.sweep(sh, now, keys[:n])
		keys = keys[n:]
	}
	return removed
}

// sweep removes those of keys whose counters are free and returns how many.
func (t *Table) sweep(sh *shard, now int64, keys []Key) (removed int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, key := range keys {
		if c, ok := sh.mu.lru.Peek(key); ok && c.free(sh.atLocked(now)) {
			t.forgetLocked(sh, key, c)
			removed++
		}
	}
	t.expired.Add(uint64(removed))
	return removed
}
