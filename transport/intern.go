package transport

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluice-project/sluice/bucket"
)

// interner gives equal limits that come with checks one validated *bucket.Limits,
// so that the node compares and sends them as it does a rule's. It is bounded:
// the least recently asked for are forgotten and made anew when they return.
// It is safe for concurrent use.
type interner struct {
	seed maphash.Seed
	mu   struct {
		sync.Mutex
		// lru is keyed by a hash of the limits; the entry settles whether it is
		// the same ones.
		lru *simplelru.LRU[uint64, interned]
	}
}

// interned keeps the limits as they were asked for, because a bucket.Limits may
// have filled in defaults.
type interned struct {
	list   []bucket.Limit
	limits *bucket.Limits
}

func newInterner(size int) (*interner, error) {
	lru, err := simplelru.NewLRU[uint64, interned](size, nil)
	if err != nil {
		return nil, err
	}
	n := &interner{seed: maphash.MakeSeed()}
	n.mu.lru = lru
	return n, nil
}

// limits returns the set for list, which it does not keep. The error is that of
// bucket.NewLimits.
func (n *interner) limits(list []bucket.Limit) (*bucket.Limits, error) {
	if len(list) > bucket.MaxLimits {
		return bucket.NewLimits(list...)
	}
	var h maphash.Hash
	h.SetSeed(n.seed)
	for i := range list {
		maphash.WriteComparable(&h, list[i])
	}
	sum := h.Sum64()

	n.mu.Lock()
	found, ok := n.mu.lru.Get(sum)
	n.mu.Unlock()
	if ok && slices.Equal(found.list, list) {
		return found.limits, nil
	}

	// Validated outside the lock: it may have to load a time zone.
	own := slices.Clone(list)
	limits, err := bucket.NewLimits(own...)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if found, ok := n.mu.lru.Get(sum); ok && slices.Equal(found.list, list) {
		return found.limits, nil
	}
	n.mu.lru.Add(sum, interned{list: own, limits: limits})
	return limits, nil
}
