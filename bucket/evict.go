package bucket

import (
	"math"
	"slices"
)

// Counters leave the table in three ways: Sweep removes free ones; an insert drops free ones from the next few slots;
// and above a cap others are evicted, free or not. Only the last can lose spent units. Eviction chooses
//
//   - a counter of the domain that has the most, or at least three quarters of that, so that no domain can displace a much
//     smaller one; or of a domain above its own cap;
//   - among a few of these, in the order of their slots, the first that is less than half spent and was not used again;
//     otherwise, of those not fully spent, the least recently used one. So half-spent keys follow keys that were used once,
//     and denied keys come last: on a replica node they get no checks.
//
// A spared counter loses the bit that says that it was used again, so the slots are a clock, as in S3-FIFO or 2Q.

const (
	// glances is the number of counters that an insert checks for free ones.
	glances = 2
	// maxEvictions bounds the evictions of one decision, and so its duration.
	maxEvictions = 64
	// maxLooks bounds the counters that one decision inspects for eviction.
	maxLooks = 64
	// choices is the number of candidates that eviction chooses from.
	choices = 8
	// slack: the table may exceed a cap by this fraction while all inspected counters are spared. Until then, at maxLooks a
	// time, every counter of a list is inspected once.
	slack = maxLooks
	// sweepChunk is the number of counters that Sweep checks per lock.
	sweepChunk = 128
)

// accountLocked adds o to the table's counts and makes room in sh, whose newest counter is the one that has grown.
func (t *Table) accountLocked(sh *shard, now int64, o outcome) {
	t.bytes.Add(o.grown)
	if o.has(removed) {
		t.entries.Add(-1)
		return
	}
	d := t.account(o.counter.set).domain
	d.bytes.Add(o.grown)
	if o.has(inserted) {
		t.entries.Add(1)
		t.inserted.Add(1)
		t.dropFreeLocked(sh, now)
	}
	if t.over() != nothing || d.crowded() {
		t.makeRoomLocked(sh, now, d, true)
	}
}

// dropFreeLocked drops those of the next few counters of sh that are free.
func (t *Table) dropFreeLocked(sh *shard, now int64) {
	s := &sh.mu.store
	for range min(glances, s.n-1) {
		if s.glance >= s.n {
			s.glance = 0
		}
		if s.glance != sh.mu.work.slot {
			if c := sh.lookLocked(s.glance); c.free(sh.atLocked(now)) {
				t.forgetLocked(sh, c)
				t.expired.Add(1)
				continue
			}
		}
		s.glance++
	}
}

// makeRoomLocked evicts counters of sh until the table is within its caps, and so is crowd if not nil. With keep, the counter
// that sh is working on stays. It returns the numbers of evicted and inspected counters.
func (t *Table) makeRoomLocked(sh *shard, now int64, crowd *domain, keep bool) (evicted, looks int) {
	stays := 0
	if keep {
		stays = 1
	}
	// With fewer counters than choices, the choice may be the one that should be evicted last.
	for evicted < maxEvictions && looks <= maxLooks-choices && int(sh.mu.store.n) > stays {
		over := t.over()
		if over == nothing && (crowd == nil || !crowd.crowded()) {
			break
		}
		slot, found, n := t.chooseLocked(sh, now, over, min(maxLooks-looks, int(sh.mu.store.n)-stays), keep)
		looks += n
		if !found {
			break
		}
		t.evictLocked(sh, now, slot)
		evicted++
	}
	return evicted, looks
}

// chooseLocked returns the slot of the counter of sh to evict, if one of the next looks may be, and the number inspected. Fully
// spent counters, those of smaller domains, and those that share a set when there are too many sets, are evicted only if the
// table far exceeds a cap.
func (t *Table) chooseLocked(sh *shard, now int64, over resource, looks int, keep bool) (slot uint32, found bool, looked int) {
	s := &sh.mu.store
	most, far, stride := t.largest(over), t.farOver(), uint32(1)
	if far && s.n > 4*maxLooks {
		// Counters of one domain may lie side by side. So the looks are spread, by the golden ratio, and find those of the largest.
		stride = uint32(uint64(s.n)*0x9e3779b9>>32) | 1
	}
	var best, other, shared victim
	for candidates := 0; looked < looks && candidates < choices; looked++ {
		if s.hand >= s.n {
			s.hand %= s.n
		}
		if keep && s.hand == sh.mu.work.slot {
			s.hand = (s.hand + 1) % s.n
		}
		c := sh.lookLocked(s.hand)
		if c.granted() > 0 { // its grants go first
			s.hand += stride
			continue
		}
		if may := t.mayGo(c, over, most); may || far {
			x := victim{c.slot, c.now, c.worth(sh.atLocked(now)), true}
			switch {
			case !may && over == tooManySets && t.account(c.set).domain.has(over) >= most-most/4:
				shared = shared.or(x) // its set is freed with the last counter that has it
			case !may:
				other = other.or(x)
			case x.worth == usedOnce:
				s.hand++ // the last counter comes into its slot, and is not to be the next
				return c.slot, true, looked + 1
			case x.worth == halfSpent:
				best = best.or(x)
				candidates++
			case far:
				best = best.or(x)
			}
		}
		s.at(s.hand).meta &^= meta(flagAgain) // spared for now
		s.hand += stride
	}
	for _, x := range []victim{best, shared, other} {
		if x.found {
			return x.slot, true, looked
		}
	}
	return 0, false, looked
}

type victim struct {
	slot  uint32
	now   int64 // of its last change
	worth worth
	found bool
}

// or returns which of a, if set, and b to evict.
func (a victim) or(b victim) victim {
	if !a.found || b.worth < a.worth || b.worth == a.worth && b.now < a.now {
		return b
	}
	return a
}

// mayGo reports whether c may be evicted if there is too much of r, and the largest domain has most of it.
func (t *Table) mayGo(c *counter, r resource, most int64) bool {
	a := t.account(c.set)
	switch {
	case a.domain.crowded():
		return true
	case r == nothing, r == tooManySets && !t.freesSet(c):
		return false
	}
	return a.domain.has(r) >= most-most/4
}

// freesSet reports whether c is the last counter of one of its sets of limits, former ones included.
func (t *Table) freesSet(c *counter) bool {
	last := func(x shadow) bool { return t.account(x.set).refs.Load() == 1 }
	return t.account(c.set).refs.Load() == 1 || slices.ContainsFunc(c.shadows(), last)
}

// evictLocked evicts key's counter c of sh.
func (t *Table) evictLocked(sh *shard, now int64, slot uint32) {
	c := sh.lookLocked(slot)
	if c.free(sh.atLocked(now)) {
		t.evictedExpired.Add(1)
	} else {
		t.evictedLive.Add(1)
		t.account(c.set).domain.evicted.Add(1)
	}
	t.forgetLocked(sh, c)
}

// worth is how much is lost with a counter.
type worth uint8

const (
	usedOnce  worth = iota // or nothing of it counts any more
	halfSpent              // at least half of one of its limits; or something counts and it was used again
	allSpent               // all of one of its limits, or it is a grant
)

// worth returns what is lost with c at now.
func (c *counter) worth(now int64) (w worth) {
	now = max(now, c.now)
	if c.has(flagGrant) {
		if c.ending() == open {
			return allSpent
		}
		return halfSpent
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
func (t *Table) forgetLocked(sh *shard, c *counter) {
	t.bytes.Add(-sh.removeLocked(c))
	t.entries.Add(-1)
}

// evictElsewhere evicts from the other shards in turn until the table is within its caps. No lock may be held.
func (sh *shard) evictElsewhere(now int64) {
	t := sh.table
	n := uint64(len(t.shards))
	evicted, looks := 0, 0
	for range n {
		i := t.next.Add(1) % n
		if i == uint64(sh.number) {
			continue
		}
		sh := t.lock(int(i))
		e, l := t.makeRoomLocked(sh, now, nil, false)
		sh.mu.Unlock()
		evicted, looks = evicted+e, looks+l
		if evicted >= maxEvictions || t.over() == nothing || looks >= maxLooks && !t.farOver() {
			return
		}
	}
}

// Sweep removes the shard's free counters, returns their number, and moves others out of nearly empty pages. It holds the shard's lock only for short times.
func (t *Table) Sweep(now int64, shard int) int {
	now = inRange(now)
	sh := &t.shards[shard]
	removed := 0
	// From the last slot on: a removal puts a counter into its slot that was seen already.
	for slot := uint32(math.MaxUint32); slot > 0; {
		sh.mu.Lock()
		slot = min(slot, sh.mu.store.n)
		for n := 0; n < sweepChunk && slot > 0; n++ {
			slot--
			at := sh.atLocked(now)
			if r := sh.mu.store.at(slot); r.isOpen() && r.now <= at && !sh.mu.sealed {
				sh.lapseGrantLocked(at, r)
				break // others may have moved
			}
			if c := sh.lookLocked(slot); c.free(sh.atLocked(now)) {
				t.forgetLocked(sh, c)
				removed++
			} else {
				sh.mu.store.compact(sh.mu.store.at(slot))
			}
		}
		sh.mu.Unlock()
	}
	t.expired.Add(uint64(removed))
	return removed
}
