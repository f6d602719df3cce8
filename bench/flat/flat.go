package main

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/sluice-project/sluice/bucket"
)

// flatTable has in each shard one array of slots: open addressing with linear
// probing, deletion by shifting back (Knuth, TAOCP 6.4, algorithm R), and nothing
// that the collector would have to look at.
type flatTable struct {
	shards [shards]flatShard
	evict  func(*flatShard)
}

// slot is a key and its counter in one cache line.
type slot struct {
	key bucket.Key
	state
	used bool
	// seen is set by each use, for the clock.
	seen bool
}

// flatShard is one lock's part.
type flatShard struct {
	mu    sync.Mutex
	slots []slot
	n     int
	// most is the cap on n.
	most int
	// hand is where the clock stands.
	hand int
	// random is the state of a generator (xorshift).
	random uint64
}

const (
	firstSlots = 8
	// Slots are full to three quarters at most, and grow by a quarter, so that between
	// 0.6 and 0.75 of them are used.
	fullNumerator, fullDenominator = 3, 4
)

func newFlatTable(perShard int, evict func(*flatShard)) *flatTable {
	t := &flatTable{evict: evict}
	for i := range t.shards {
		t.shards[i] = flatShard{slots: make([]slot, firstSlots), most: perShard, random: uint64(i)*2 + 1}
	}
	return t
}

func (t *flatTable) take(now int64, k bucket.Key) (allowed, known bool) {
	sh := &t.shards[k.Shard(shards)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i, known := sh.find(k)
	if !known {
		if sh.n >= sh.most {
			t.evict(sh)
			i, _ = sh.find(k)
		} else if (sh.n+1)*fullDenominator > len(sh.slots)*fullNumerator {
			sh.grow()
			i, _ = sh.find(k)
		}
		sh.slots[i] = slot{key: k, used: true}
		sh.n++
	}
	s := &sh.slots[i]
	s.seen = true
	return s.take(now), known
}

// home is the slot where k would be if it had the shard to itself. Keys are
// hashes, so their high bits do.
func (sh *flatShard) home(k bucket.Key) int {
	high, _ := bits.Mul64(k.Hi, uint64(len(sh.slots)))
	return int(high)
}

// find returns the slot of k, or the empty one where it belongs.
func (sh *flatShard) find(k bucket.Key) (i int, known bool) {
	for i = sh.home(k); sh.slots[i].used; i = sh.after(i) {
		if sh.slots[i].key == k {
			return i, true
		}
	}
	return i, false
}

func (sh *flatShard) after(i int) int {
	if i++; i < len(sh.slots) {
		return i
	}
	return 0
}

func (sh *flatShard) grow() {
	old := sh.slots
	sh.slots = make([]slot, len(old)+max(len(old)/4, 4))
	for j := range old {
		if old[j].used {
			i, _ := sh.find(old[j].key)
			sh.slots[i] = old[j]
		}
	}
}

// remove empties slot i and shifts back those that were pushed past it.
func (sh *flatShard) remove(i int) {
	size := len(sh.slots)
	for j := sh.after(i); sh.slots[j].used; j = sh.after(j) {
		// How far j is from its home, and from the gap.
		pushed := (j - sh.home(sh.slots[j].key) + size) % size
		if gap := (j - i + size) % size; pushed >= gap {
			sh.slots[i] = sh.slots[j]
			i = j
		}
	}
	sh.slots[i] = slot{}
	sh.n--
}

// evictClock removes the first counter from the hand on that was not used since the hand
// last passed it.
func evictClock(sh *flatShard) {
	for {
		s := &sh.slots[sh.hand]
		if s.used && !s.seen {
			// The next one may be shifted here, so the hand stays.
			sh.remove(sh.hand)
			return
		}
		s.seen = false
		sh.hand = sh.after(sh.hand)
	}
}

// samples is how many counters evictSampled looks at.
const samples = 8

// evictSampled removes the longest unused of some neighbours. Neighbours in a
// table of hashes have nothing else in common.
func evictSampled(sh *flatShard) {
	sh.random ^= sh.random << 13
	sh.random ^= sh.random >> 7
	sh.random ^= sh.random << 17
	high, _ := bits.Mul64(sh.random, uint64(len(sh.slots)))
	i, oldest := int(high), -1
	for left := min(samples, sh.n); left > 0; i = sh.after(i) {
		if !sh.slots[i].used {
			continue
		}
		left--
		if oldest < 0 || sh.slots[i].now < sh.slots[oldest].now {
			oldest = i
		}
	}
	sh.remove(oldest)
}

// shards are as many as a cluster has partitions.
const shards = 1021

// table is what is compared. It is safe for concurrent use.
type table interface {
	// take decides one check of cost 1 at now and reports whether the key was known.
	take(now int64, k bucket.Key) (allowed, known bool)
}

func newTable(kind string, size int) (table, error) {
	perShard := size/shards + 1
	switch kind {
	case "bucket":
		return newBucketTable(size)
	case "lru":
		return newLRUTable(perShard)
	case "clock":
		return newFlatTable(perShard, evictClock), nil
	case "sampled":
		return newFlatTable(perShard, evictSampled), nil
	}
	return nil, fmt.Errorf("no table is called %q", kind)
}

// The toy limit: burst a million, a token each second. interval × burst must
// not overflow.
const (
	interval = int64(time.Second)
	burst    = 1_000_000
)

// state is a counter of 64 bytes less its key, of which the toy uses two words.
type state struct {
	// now is when it was last used, full when the bucket would be full again.
	now, full int64
	// Room for what bucket's counters have besides.
	_ [3]int64
}

// take is the generic cell rate algorithm: one token of cost, see ITU-T I.371.
func (s *state) take(now int64) bool {
	s.now = now
	full := max(s.full, now) + interval
	if full-now > burst*interval {
		return false
	}
	s.full = full
	return true
}

// bucketTable is the product.
type bucketTable struct {
	table  *bucket.Table
	limits *bucket.Limits
}

func newBucketTable(size int) (*bucketTable, error) {
	t, err := bucket.NewTable(bucket.Config{Shards: shards, MaxEntries: size})
	if err != nil {
		return nil, err
	}
	l, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Duration(interval), Burst: burst})
	return &bucketTable{t, l}, err
}

// take knows a key by what it has spent: a new bucket lacks one token after the
// first. In this experiment no bucket gets full again.
func (t *bucketTable) take(now int64, k bucket.Key) (allowed, known bool) {
	d := t.table.Do(now, &bucket.Request{Key: k, Limits: t.limits, Cost: 1})
	return d.Allowed, d.Remaining < burst-1
}

// lruTable has bucket's layout: in each shard a map and a list of entries that
// point to counters.
type lruTable struct{ shards [shards]lruShard }

type lruShard struct {
	mu  sync.Mutex
	lru *simplelru.LRU[bucket.Key, *counter]
}

// counter has 64 bytes, as bucket's has.
type counter struct {
	state
	_ [3]*counter
}

func newLRUTable(perShard int) (*lruTable, error) {
	t := &lruTable{}
	for i := range t.shards {
		l, err := simplelru.NewLRU[bucket.Key, *counter](perShard, nil)
		if err != nil {
			return nil, err
		}
		t.shards[i].lru = l
	}
	return t, nil
}

func (t *lruTable) take(now int64, k bucket.Key) (allowed, known bool) {
	sh := &t.shards[k.Shard(shards)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c, known := sh.lru.Get(k)
	if !known {
		c = &counter{}
		sh.lru.Add(k, c)
	}
	return c.take(now), known
}
