package bucket

import "slices"

// Image holds portable copies of counters: what one table exports and another
// imports, whatever the clocks of their nodes show: it carries nothing but durations (move.go).
//
// The form of Data is described in wire.go. It goes with the limits: an image means
// something only together with the sets that it was made with, or equal ones.
type Image struct {
	// Limits are the sets that Data refers to, by place. Whoever receives an image and does not
	// know a set puts nil in its place; what was counted under it is then left out.
	Limits []*Limits
	// Data holds Counters copies, one after the other.
	Data []byte
	// Counters is their number, those that tell of a missing counter included.
	Counters int
}

// imageChunk is how many counters are exported or imported under one hold of a shard's lock.
const imageChunk = 64

// Keys appends the keys of the shard's counters to keys, the least recently used first: imported
// in this order, they are evicted in this order.
func (t *Table) Keys(shard int, keys []Key) []Key {
	sh := &t.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return append(keys, sh.mu.lru.Keys()...)
}

// Export appends the counters of keys, which must belong to the shard, as of now (Unix ns), to im. A key
// without a counter is exported as such, so that importing it removes the counter. The table stays as
// it is. The lock is held for a few keys at a stretch: each counter is as it was at some
// moment during the call.
func (t *Table) Export(now int64, shard int, keys []Key, im *Image) {
	now = inRange(now)
	sh := &t.shards[shard]
	for len(keys) > 0 {
		n := min(imageChunk, len(keys))
		im.Data = slices.Grow(im.Data, n*usualBytes)
		sh.mu.Lock()
		for _, key := range keys[:n] {
			c, _ := sh.mu.lru.Peek(key)
			im.add(sh.atLocked(now), key, c)
		}
		sh.mu.Unlock()
		keys = keys[n:]
	}
}

// usualBytes is what most counters need at most in an image.
const usualBytes = 48

// place returns the place of l among the sets of im, and puts it in if it is new.
func (im *Image) place(l *Limits) uint64 {
	// Neighbours often share their limits, and the last set is the likeliest.
	for i := len(im.Limits) - 1; i >= 0; i-- {
		if im.Limits[i] == l {
			return uint64(i)
		}
	}
	im.Limits = append(im.Limits, l)
	return uint64(len(im.Limits) - 1)
}
