package transport

import (
	"sync/atomic"
	"time"
)

// latencyBounds are the upper bounds of the latency histogram's buckets. What is
// longer goes to one more bucket without a bound.
var latencyBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// Latency is a histogram of how long calls took.
type Latency struct {
	// Bounds are the buckets' upper bounds, inclusive and rising.
	Bounds []time.Duration
	// Counts are the calls within each bound and not within the one before it;
	// the last, one more than there are bounds, is of the longer ones.
	Counts []uint64
	// Sum is the time of all calls together.
	Sum time.Duration
}

// Count returns the number of calls.
func (l Latency) Count() uint64 {
	var n uint64
	for _, c := range l.Counts {
		n += c
	}
	return n
}

// latency counts into the histogram. It is safe for concurrent use.
type latency struct {
	counts [len(latencyBounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

func (l *latency) observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	l.counts[i].Add(1)
	l.sum.Add(int64(d))
}

func (l *latency) snapshot() Latency {
	s := Latency{Bounds: latencyBounds[:], Counts: make([]uint64, len(l.counts)), Sum: time.Duration(l.sum.Load())}
	for i := range l.counts {
		s.Counts[i] = l.counts[i].Load()
	}
	return s
}
