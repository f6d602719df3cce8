package limiter

import (
	"cmp"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// learnFrom is the number of settlements of a rule among which its estimate is, learnLeast how many there must be.
	learnFrom  = 256
	learnLeast = 16
)

// usage is what the latest reservations of a rule have used, of those that were settled through this node.
type usage struct {
	mu struct {
		sync.Mutex
		latest, sorted [learnFrom]int64 // those of sorted in their order
		n              int              // of all
	}
	// p95 is the estimate, 0 until there have been learnLeast.
	p95 atomic.Int64
}

func (u *usage) add(units int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last := &u.mu.latest[u.mu.n%learnFrom]
	sorted := u.mu.sorted[:min(u.mu.n, learnFrom)]
	if len(sorted) == learnFrom {
		i, _ := slices.BinarySearch(sorted, *last)
		sorted = slices.Delete(sorted, i, i+1)
	}
	i, _ := slices.BinarySearch(sorted, units)
	sorted = slices.Insert(sorted, i, units) // there is room
	*last = units
	if u.mu.n++; u.mu.n >= learnLeast {
		u.p95.Store(max(1, sorted[(len(sorted)*95-1)/100]))
	}
}

// hash names a rule in the ticket of a reservation.
func (n ruleName) hash() uint64 {
	h := fnv.New64a()
	for _, part := range [...]string{n.domain, "\x00", n.name} {
		_, _ = h.Write([]byte(part)) // it never fails
	}
	return h.Sum64()
}

// estimate returns the units of a reservation that gives none: the estimate of the first check's rule or, where that has a
// max_units, what 95 % of its reservations used, or all of max_units until that is known. It is at most what all rules allow.
func (b *Batch) estimate(n *counts) int64 {
	bounds := b.reservable(b.places[0])
	units := cmp.Or(bounds.Estimate, bounds.MaxUnits)
	if n != nil && bounds.Estimate == 0 && units > 0 {
		if u := n.usage.Load(); u != nil {
			units = cmp.Or(u.p95.Load(), units)
		}
	}
	for _, i := range b.places {
		if r := &b.Results[i]; !r.shadow() {
			units = min(units, b.reservable(i).Most(r.Limits))
		}
	}
	return units
}

// learn takes what a reservation has used into the estimate of its rule. What Extend has added is not known here.
func (l *Limiter) learn(t *ticket, actual int64, s *Settlement) {
	c := l.rules.Load().counts.byHash[t.rule]
	if c == nil || s.Repeated {
		return
	}
	if !s.Late { // what was spent before is neither charged by the settlement nor returned
		actual = max(actual, t.units-s.Returned)
	}
	if c.usage.Load() == nil {
		c.usage.CompareAndSwap(nil, new(usage))
	}
	c.usage.Load().add(actual)
}
