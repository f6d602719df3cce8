package bucket

// Counters leave the table in three ways: Sweep removes those that are wholly free, an insert drops
// a few free ones that it finds at the old end of its list, and above a cap the least
// recently used go, free or not. Only the last can forget what was spent.

const (
	// glances is how many counters an insert looks at for free ones.
	glances = 2
	// maxEvictions bounds the counters that one decision evicts, and so its duration.
	maxEvictions = 64
	// sweepChunk is how many counters Sweep looks at under one hold of the lock.
	sweepChunk = 128
)

// over reports whether the table is above a cap.
func (t *Table) over() bool {
	return t.entries.Load() > t.maxEntries || t.bytes.Load() > t.maxBytes
}

// accountLocked adds o to the table's counts and makes room in sh, whose newest
// counter is the one that has grown.
func (t *Table) accountLocked(sh *shard, now int64, o outcome) {
	t.bytes.Add(o.grown)
	switch {
	case o.has(removed):
		t.entries.Add(-1)
		return
	case o.has(inserted):
		t.entries.Add(1)
		t.inserted.Add(1)
		t.dropFreeLocked(sh, now)
	}
	for i := 0; i < maxEvictions && t.over() && sh.mu.lru.Len() > 1; i++ {
		t.evictLocked(sh, now)
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

// evictLocked evicts the least recently used counter of sh, which must not be empty.
func (t *Table) evictLocked(sh *shard, now int64) {
	key, c, _ := sh.mu.lru.GetOldest()
	if c.free(sh.atLocked(now)) {
		t.evictedExpired.Add(1)
	} else {
		t.evictedLive.Add(1)
	}
	t.forgetLocked(sh, key, c)
}

// forgetLocked removes key's counter c from sh.
func (t *Table) forgetLocked(sh *shard, key Key, c *counter) {
	t.bytes.Add(-sh.removeLocked(key, c))
	t.entries.Add(-1)
}

// evictElsewhere evicts from the shards in turn, own excepted, until the table is within
// its caps. No lock may be held.
func (t *Table) evictElsewhere(now int64, own int) {
	n := uint64(len(t.shards))
	evicted := 0
	for range n {
		i := t.next.Add(1) % n
		if i == uint64(own) {
			continue
		}
		sh := &t.shards[i]
		sh.mu.Lock()
		if sh.mu.lru.Len() > 0 && t.over() {
			t.evictLocked(sh, now)
			evicted++
		}
		sh.mu.Unlock()
		if evicted == maxEvictions || !t.over() {
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
