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
	t.ExportSome(now, shard, keys, im, Room{})
}

// Room bounds an image that is to travel in one message. 0 is no bound.
type Room struct {
	// Bytes is the length of Data at which the image takes no other counter.
	Bytes int
	// Sets is the most sets of limits that it refers to, at least MaxCounterSets.
	Sets int
	// Counter is the most bytes of one counter. A larger one is exported as if there were none.
	Counter int
}

// MaxCounterSets is the most sets of limits that one counter refers to: those in force, and former ones.
const MaxCounterSets = 1 + maxFormer

// MaxCounterBytes is more than the copy of any counter takes: an entry of a log takes some 20 bytes at most.
const MaxCounterBytes = 2 << 20

// Holds reports whether there is room in im for another counter.
func (r *Room) Holds(im *Image) bool {
	return (r.Bytes == 0 || len(im.Data) < r.Bytes) && (r.Sets == 0 || len(im.Limits)+MaxCounterSets <= r.Sets)
}

// ExportSome is Export for as many of keys as im has room for: the first n. large counts those that were too large, and seem to be missing.
func (t *Table) ExportSome(now int64, shard int, keys []Key, im *Image, room Room) (n, large int) {
	now = inRange(now)
	sh := &t.shards[shard]
	for n < len(keys) && room.Holds(im) {
		stretch := min(n+imageChunk, len(keys))
		im.Data = slices.Grow(im.Data, (stretch-n)*usualBytes)
		sh.mu.Lock()
		for ; n < stretch && room.Holds(im); n++ {
			c, _ := sh.mu.lru.Peek(keys[n])
			data, sets := len(im.Data), len(im.Limits)
			im.add(sh.atLocked(now), keys[n], c)
			if room.Counter > 0 && len(im.Data)-data > room.Counter {
				im.Data, im.Limits, im.Counters = im.Data[:data], im.Limits[:sets], im.Counters-1
				im.add(now, keys[n], nil)
				large++
			}
		}
		sh.mu.Unlock()
	}
	return n, large
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
