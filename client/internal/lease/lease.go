// Package lease has units of a counter that a client may spend by itself.
package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// Lease is units that may be spent until a moment. It is safe for concurrent use.
type Lease struct {
	// ID names it at the nodes, Units is how many it began with.
	ID    string
	Units int64
	// Until is when nothing may be spent any more, as Now.
	Until time.Duration
	// Low is how many units are left when Wake is told, once.
	Low  int64
	Wake chan<- struct{}
	// About is the caller's.
	About any
	// Seen are those of the spent units that TakeSeen has taken.
	Seen atomic.Int64
	left atomic.Int64
}

var began = time.Now()

// Now returns the time since a fixed moment, by the monotonic clock.
func Now() time.Duration { return time.Since(began) }

// ended is what is left of a lease that has ended.
const ended = math.MinInt64

// Open makes l, whose fields are set, one with units units.
func (l *Lease) Open() { l.left.Store(l.Units) }

// take spends n units, above 0, if they are left and the time has not come. The clock is read last, so that a process that was
// stopped meanwhile spends nothing.
func (l *Lease) take(n int64) bool {
	for {
		left := l.left.Load()
		switch {
		case left < n:
			return false
		case !l.left.CompareAndSwap(left, left-n):
			continue
		case left > l.Low && left-n <= l.Low:
			select {
			case l.Wake <- struct{}{}:
			default:
			}
		}
		if Now() < l.Until {
			return true
		}
		l.left.Add(n)
		return false
	}
}

// Left returns how many units are left.
func (l *Lease) Left() int64 { return max(0, l.left.Load()) }

// End ends l, and returns how many units were spent.
func (l *Lease) End() int64 { return l.Units - max(0, l.left.Swap(ended)) }

// Line is the leases of one counter, one after the other. The zero Line has none.
type Line struct{ current atomic.Pointer[Lease] }

// Current returns the lease that is spent now, or nil.
func (l *Line) Current() *Lease { return l.current.Load() }

// Replace makes next, or nil, the current lease, and returns the one before.
func (l *Line) Replace(next *Lease) *Lease { return l.current.Swap(next) }

// TakeSeen spends n units, above 0, for a check that is counted apart from the units, and returns the lease; nil if they are not
// left.
func (l *Line) TakeSeen(n int64) *Lease {
	now := l.current.Load()
	if now == nil || !now.take(n) {
		return nil
	}
	now.Seen.Add(n)
	return now
}

// Cell is where a key finds its line. The zero Cell has none.
type Cell struct{ Line atomic.Pointer[Line] }

// Take spends n units, above 0, if they are left. c may be nil.
func (c *Cell) Take(n int64) bool {
	if c == nil {
		return false
	}
	line := c.Line.Load()
	if line == nil {
		return false
	}
	now := line.current.Load()
	return now != nil && now.take(n)
}
