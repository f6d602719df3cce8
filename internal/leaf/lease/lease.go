// Package lease has units of a counter that a client may spend by itself.
package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// Lease is units that may be spent until a moment. It is safe for concurrent use.
type Lease struct {
	// ID names it at the nodes, Units is how many it began with.
	ID    string
	Units int64
	// Until is when nothing may be spent any more, as Now, and Life how long before it began.
	Until, Life time.Duration
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

// Margin is how many parts a lease's time has, one of which is left unused, because a clock may be slow by as much.
const Margin = 128

// Deadline returns the Until of a lease that lasts for a time from when it was requested.
func Deadline(sent, last time.Duration) time.Duration {
	if guard.On(guard.LeaseMargin) {
		last -= last / Margin
	}
	return sent + last
}

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
		if Now() < l.Until || !guard.On(guard.LeaseDeadline) {
			return true
		}
		l.left.Add(n)
		return false
	}
}

// Left returns how many units are left, of l or of no lease.
func (l *Lease) Left() int64 {
	if l == nil {
		return 0
	}
	return max(0, l.left.Load())
}

// Spent returns how many units were spent, of l or of no lease.
func (l *Lease) Spent() int64 {
	if l == nil {
		return 0
	}
	return l.Units - l.Left()
}

// End ends l, and returns how many units were spent.
func (l *Lease) End() int64 {
	if !guard.On(guard.LeaseEnd) {
		return l.Spent()
	}
	return l.Units - max(0, l.left.Swap(ended))
}

// Line is the leases of one counter: one that is spent, and a next one that is spent where the first has too little. The zero Line has
// none. One goroutine changes it.
type Line struct{ current, next atomic.Pointer[Lease] }

// Leases returns the leases, nil for none.
func (l *Line) Leases() (current, next *Lease) { return l.current.Load(), l.next.Load() }

// Unseen returns how many units of the leases were spent, and not by TakeSeen.
func (l *Line) Unseen() (n int64) {
	for _, at := range []*atomic.Pointer[Lease]{&l.current, &l.next} {
		if x := at.Load(); x != nil {
			if left := x.left.Load(); left >= 0 { // it has not ended
				n += max(0, x.Units-left-x.Seen.Load())
			}
		}
	}
	return n
}

// Add makes x the next lease, or the current one if there is none.
func (l *Line) Add(x *Lease) {
	if l.current.Load() == nil {
		l.current.Store(x)
	} else {
		l.next.Store(x)
	}
}

// Advance makes the next lease the current one, and returns the one before.
func (l *Line) Advance() *Lease { return l.current.Swap(l.next.Swap(nil)) }

// take spends n units, above 0, and returns their lease; nil if they are not left.
func (l *Line) take(n int64) *Lease {
	x := l.current.Load()
	if x == nil || x.take(n) {
		return x
	}
	if x = l.next.Load(); x != nil && x.take(n) {
		return x
	}
	return nil
}

// TakeSeen spends n units, above 0, for a check that is counted apart from the units, and returns their lease; nil if they are not
// left.
func (l *Line) TakeSeen(n int64) *Lease {
	x := l.take(n)
	if x != nil {
		x.Seen.Add(n)
	}
	return x
}

// Cell is where a key finds its line. The zero Cell has none.
type Cell struct{ Line atomic.Pointer[Line] }

// Take spends n units, above 0, if they are left. c may be nil.
func (c *Cell) Take(n int64) bool {
	if c == nil {
		return false
	}
	l := c.Line.Load()
	return l != nil && l.take(n) != nil
}
