// Package timing counts how long things took, in buckets that are the same everywhere, so that
// histograms of several places can be added. It reads no clock and starts no goroutine.
package timing

import (
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of the buckets. What is longer goes to one more bucket without a bound.
var bounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// Snapshot is a histogram at one moment.
type Snapshot struct {
	// Bounds are the buckets' upper bounds, inclusive and rising.
	Bounds []time.Duration
	// Counts are the things within each bound and not within the one before it;
	// the last, one more than there are bounds, is of the longer ones.
	Counts []uint64
	// Sum is the time of all together.
	Sum time.Duration
}

// Count returns how many things were counted.
func (s Snapshot) Count() uint64 {
	var n uint64
	for _, c := range s.Counts {
		n += c
	}
	return n
}

// Add adds what other has counted. The zero Snapshot has counted nothing.
func (s *Snapshot) Add(other Snapshot) {
	if s.Counts == nil {
		s.Bounds, s.Counts = bounds[:], make([]uint64, len(bounds)+1)
	}
	for i, n := range other.Counts {
		s.Counts[i] += n
	}
	s.Sum += other.Sum
}

// Histogram counts durations. Its zero value is empty. It is safe for concurrent use.
type Histogram struct {
	counts [len(bounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

// Observe counts d; below 0, as 0.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// Snapshot returns what has been counted.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Bounds: bounds[:], Counts: make([]uint64, len(h.counts)), Sum: time.Duration(h.sum.Load())}
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
	}
	return s
}
