// Package shed decides which calls an overloaded node rejects, so that it answers the others soon. It bounds the calls in progress
// and how long runnable goroutines wait for a processor. How that wait is measured, what a rejection looks like, and which
// calls are never rejected is for others to decide.
//
// It starts no goroutine and reads no clock: the owner of a Gate calls Observe every Tick.
package shed

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// Config has the bounds of a node's load.
type Config struct {
	// MaxCalls is the most calls in progress, at least 1. A call counts once for each ChecksPerCall of its checks.
	MaxCalls int
	// MaxWait is how long goroutines may wait for a processor before calls are rejected, if many wait. 0 means no bound.
	MaxWait time.Duration
}

// ChecksPerCall is the most checks of a call that counts once.
const ChecksPerCall = 64

// Validate reports the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.MaxCalls < 1:
		return fmt.Errorf("shed: MaxCalls: %d; want at least 1", c.MaxCalls)
	case c.MaxWait < 0:
		return fmt.Errorf("shed: MaxWait: %v; want a time, or 0 for no bound", c.MaxWait)
	}
	return nil
}

// Gate admits or rejects calls. It must be created with New. It is safe for concurrent use, except for Observe.
type Gate struct {
	config    Config
	calls     atomic.Int64  // in progress
	places    atomic.Int64  // that they take
	done      atomic.Uint64 // calls that have given their place back
	asked     atomic.Uint32 // calls that came while a part of them was rejected
	rejecting atomic.Uint32 // this part, times whole
	wait      atomic.Int64
	waiting   atomic.Int64

	full, slow atomic.Uint64

	pressure pressure // of Observe, as are asked and done at its last call:
	asked0   uint32
	done0    uint64
}

// whole stands for all calls.
const whole = 1 << 16

// New returns a Gate that admits all calls at first.
func New(c Config) (*Gate, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Gate{config: c}, nil
}

// Admit reports whether a new call may go on: false for the part of calls that is currently rejected. Ask it once per call, before
// any work.
func (g *Gate) Admit() bool {
	part := g.rejecting.Load()
	if part == 0 {
		return true
	}
	// Multiples of an odd number modulo 2¹⁶ take every value once, which spreads rejections evenly without a shared source of
	// randomness.
	if g.asked.Add(1)*40503%whole >= part {
		return true
	}
	g.slow.Add(1)
	return false
}

// Enter takes the places of a call with so many checks, which Leave with as many gives back, and reports whether they were free.
// A call that is alone always gets in.
func (g *Gate) Enter(checks int) bool {
	n := placesOf(checks)
	if all := g.places.Add(n); all > int64(g.config.MaxCalls) && all > n {
		g.places.Add(-n)
		g.full.Add(1)
		return false
	}
	g.calls.Add(1)
	return true
}

// Leave gives back the places of an Enter that was true.
func (g *Gate) Leave(checks int) {
	g.places.Add(-placesOf(checks))
	g.calls.Add(-1)
	g.done.Add(1)
}

func placesOf(checks int) int64 { return max(1, int64(checks+ChecksPerCall-1)/ChecksPerCall) }

// Observe takes the load of the last Tick and reports whether calls are rejected now. While they are, it must be called every
// Tick. One caller at a time.
func (g *Gate) Observe(l Load) (rejects bool) {
	g.wait.Store(int64(l.Wait))
	g.waiting.Store(int64(l.Waiting))
	if g.config.MaxWait == 0 {
		return false
	}
	asked, done := g.asked.Load(), g.done.Load()
	part := uint32(math.Round(g.pressure.observe(l, uint64(asked-g.asked0), done-g.done0, g.config.MaxWait) * whole))
	g.asked0, g.done0 = asked, done
	g.rejecting.Store(part)
	return part > 0
}

// Stats has counts since New, except for Calls, Load and Rejecting.
type Stats struct {
	// Calls are in progress now; Load was observed last.
	Calls int64
	Load
	// Rejecting is the part of calls that is rejected now, 0 to 1.
	Rejecting float64
	// Full were rejected because of MaxCalls, Slow because of MaxWait.
	Full, Slow uint64
}

// Stats returns the gate's counts.
func (g *Gate) Stats() Stats {
	return Stats{
		Calls: g.calls.Load(), Load: Load{Wait: time.Duration(g.wait.Load()), Waiting: int(g.waiting.Load())},
		Rejecting: float64(g.rejecting.Load()) / whole,
		Full:      g.full.Load(), Slow: g.slow.Load(),
	}
}

// Tick is the interval of Observe.
const Tick = 50 * time.Millisecond

const (
	// patience is how many ticks in a row must be late before calls are rejected: bursts pass by themselves.
	patience = 3
	// crowd is how many goroutines must wait for a processor before a tick is late while all calls are admitted. Clients that
	// each wait for their response make a queue of one goroutine each, which never grows: rejecting calls does not shorten it.
	// 64 such clients must not be rejected.
	crowd = 96
	// first is the part that is rejected at first, while the rate of calls is unknown.
	first = 0.5
	// most is the largest part that is rejected. The admitted calls show when the overload is over.
	most = 0.95
	// least is the part below which no call is rejected.
	least = 0.01
	// decay multiplies the part after a tick that needed less.
	decay = 0.9
	// memory is the number of ticks for which a long wait counts: the runtime measures one goroutine in eight.
	memory = 10
	// probeEvery is after how many ticks of rejecting all calls are admitted again, to see whether a crowd comes back: if only few
	// clients are left, nothing else shows it.
	probeEvery = int(time.Minute / Tick)
	// probe is the number of ticks after that in which a crowd needs no patience.
	probe = 20
)

// Load is the scheduler's load in a tick.
type Load struct {
	// Wait is the p90 of the time that runnable goroutines waited for a processor.
	Wait time.Duration
	// Waiting is how many wait now.
	Waiting int
}

// pressure turns loads into the part of calls to reject. As in CoDel (RFC 8289) the signal is the queueing time; a queue that is
// long for a moment, or short but slow, is no overload. As in PIE (RFC 8033) the queueing time is that of a call that comes now:
// the length of the queue divided by the calls done in a tick. The part is chosen so that half of the excess queue is gone after
// the next tick; it falls slowly. The zero value rejects nothing.
type pressure struct {
	part       float64
	came, done float64 // calls a tick, a moving average; came is known while calls are rejected
	late       int     // ticks in a row that were late
	slow       int     // ticks until the last long wait is forgotten
	busy       int     // ticks since part was 0; below 0 during a probe
}

// observe takes the load of a tick, in which so many calls came and were done, and returns the part of calls to reject in the next,
// 0 to most.
func (p *pressure) observe(l Load, came, done uint64, target time.Duration) float64 {
	if p.came == 0 {
		p.came = float64(came)
	}
	p.came += (float64(came) - p.came) / 4
	p.done += (float64(done) - p.done) / 4
	if p.slow = max(0, p.slow-1); l.Wait > target || p.part > 0 && l.Wait > target/4 {
		p.slow = memory
	}
	// room is the longest queue in which no call waits longer than the target.
	room := p.done * float64(target) / float64(Tick)
	late := p.slow > 0 && float64(l.Waiting) > room
	switch {
	case p.part > 0:
		need := 0.0
		if p.slow > 0 && l.Waiting > 0 {
			need = 1 - (p.done+(room-float64(l.Waiting))/2)/max(1, p.came)
		}
		if p.part *= decay; p.part < least {
			p.part = 0
		}
		p.part = min(most, max(need, p.part))
	case !late || l.Waiting <= crowd:
		p.late = 0
	default:
		if p.late++; p.late >= patience || p.busy < 0 {
			p.part, p.came = first, 0
		}
	}
	if p.busy++; p.part == 0 {
		p.busy = min(p.busy, 0)
	}
	if p.busy == probeEvery {
		p.part, p.busy = 0, -probe
	}
	return p.part
}
