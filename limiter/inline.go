package limiter

import (
	"hash/maphash"
	"strconv"
	"sync"
	"weak"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluice-project/sluice/bucket"
)

// interner returns the same validated *bucket.Limits for equal limits of checks of one domain, so that the node can compare them
// by pointer, as it does a rule's. It is a bounded LRU of weak pointers. Safe for concurrent use.
type interner struct {
	seed    maphash.Seed
	entries int                      // that the limits of a check may keep
	full    func(domain string) bool // the domain may bring no more sets; nil is never
	mu      struct {
		sync.Mutex
		// lru is keyed by a hash of the domain and the limits. The entry has the limits themselves to compare.
		lru *simplelru.LRU[uint64, weak.Pointer[bucket.Limits]]
	}
}

func newInterner(size, entries int, full func(domain string) bool) (*interner, error) {
	lru, err := simplelru.NewLRU[uint64, weak.Pointer[bucket.Limits]](size, nil)
	if err != nil {
		return nil, err
	}
	n := &interner{seed: maphash.MakeSeed(), entries: entries, full: full}
	n.mu.lru = lru
	return n, nil
}

// errSetsFull is the error of a check with new limits while the node has too many.
var errSetsFull = &Error{
	Code: Overloaded, Field: "limits",
	Message: "this node keeps as many different sets of limits as it can (" + strconv.Itoa(bucket.DefaultMaxSets) +
		" in all, and a domain as many as are left for others); " +
		"nothing was charged; use fewer different sets, or put the limits into a rule file",
}

// limits returns the set for list. The error is errSetsFull or a *bucket.FieldError.
func (n *interner) limits(domain string, list []bucket.Limit) (*bucket.Limits, error) {
	if len(list) > bucket.MaxLimits {
		return bucket.NewLimits(list...)
	}
	if n.full != nil && n.full(domain) && n.known(n.sum(domain, list), domain, list) == nil {
		return nil, errSetsFull
	}
	return n.intern(domain, list)
}

// sum is equal for equal sets.
func (n *interner) sum(domain string, list []bucket.Limit) uint64 {
	sum := maphash.String(n.seed, domain)
	for i := range list {
		sum = sum*31 + maphash.Comparable(n.seed, list[i])
	}
	return sum
}

// intern is limits without errSetsFull.
func (n *interner) intern(domain string, list []bucket.Limit) (*bucket.Limits, error) {
	sum := n.sum(domain, list)
	if l := n.known(sum, domain, list); l != nil {
		return l, nil
	}
	// Validated outside the lock: it may have to load a time zone.
	limits, err := bucket.NewLimitsIn(domain, list...)
	if err != nil {
		return nil, err
	}
	if err := limits.Within(n.entries); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.knownLocked(sum, domain, list); l != nil {
		return l, nil
	}
	n.mu.lru.Add(sum, weak.Make(limits))
	return limits, nil
}

// known returns the set of list, or nil.
func (n *interner) known(sum uint64, domain string, list []bucket.Limit) *bucket.Limits {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.knownLocked(sum, domain, list)
}

func (n *interner) knownLocked(sum uint64, domain string, list []bucket.Limit) *bucket.Limits {
	found, _ := n.mu.lru.Get(sum)
	if l := found.Value(); l != nil && l.Is(domain, list) {
		return l
	}
	return nil
}
