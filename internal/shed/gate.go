// Package shed decides which calls a node rejects because it has too much to do, so that those it
// takes are still answered soon. There are two bounds: how many calls are in progress, and for how long goroutines
// that could run wait for a processor. It leaves to others how that wait is measured, what a rejection looks like,
// and which calls are never rejected.
//
// It starts no goroutine and reads no clock: whoever owns a Gate calls Observe every Tick.
package shed

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// Config bounds what a node takes on.
type Config struct {
	// MaxCalls is the most calls in progress, at least 1. One with many checks counts as one for each ChecksPerCall of them.
	MaxCalls int
	// MaxWait is how long goroutines may wait for a processor before calls are rejected, if many wait. 0 means for ever.
	MaxWait time.Duration
}

// ChecksPerCall is how many checks a call has that counts as one.
const ChecksPerCall = 64

// Validate says which field is wrong.
func (c Config) Validate() error {
	switch {
	case c.MaxCalls < 1:
		return fmt.Errorf("shed: MaxCalls: %d; want at least 1", c.MaxCalls)
	case c.MaxWait < 0:
		return fmt.Errorf("shed: MaxWait: %v; want a time, or 0 for no bound", c.MaxWait)
	}
	return nil
}

// Gate lets calls in, or not. Make it with New. It is safe for concurrent use.
type Gate struct {
	config    Config
	calls     atomic.Int64  // in progress
	places    atomic.Int64  // that they take
	done      atomic.Uint64 // calls that have given their place back
	asked     atomic.Uint32 // calls that came while part of them was rejected
	rejecting atomic.Uint32 // of whole calls
	wait      atomic.Int64
	waiting   atomic.Int64

	full, slow atomic.Uint64

	pressure pressure // of Observe, as is what follows: the counts at the last one
	asked0   uint32
	done0    uint64
}

// whole is the part of all calls.
const whole = 1 << 16

// New returns a Gate that lets everything in.
func New(c Config) (*Gate, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Gate{config: c}, nil
}

// Admit reports whether a call that has just come may go on: false for the part of calls that is to be
// rejected for the time being. It is meant to be asked once for a call, before anything is done for it.
func (g *Gate) Admit() bool {
	part := g.rejecting.Load()
	if part == 0 {
		return true
	}
	// Multiples of an odd number modulo 2¹⁶ come to every value once: rejections are spread evenly, without
	// a source of randomness that all calls share.
	if g.asked.Add(1)*40503%whole >= part {
		return true
	}
	g.slow.Add(1)
	return false
}

// Enter takes the places of a call with so many checks, which Leave with as many gives back, and reports whether they were there. A call
// that is alone gets in, however many it has.
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

// Observe takes the load of the last Tick. It reports whether calls are rejected now: as long as they are, the next Tick decides
// when that ends. One caller at a time.
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

// Stats counts since New, except for Calls, Wait and Rejecting.
type Stats struct {
	// Calls are in progress now, and Load was observed last.
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

// Tick is how often a load is to be observed.
const Tick = 50 * time.Millisecond

const (
	// patience is for how many ticks in a row work must be late before anything is rejected:
	// bursts pass by themselves.
	patience = 3
	// crowd is how many goroutines must wait for a processor before work counts as late while everything is admitted.
	// Callers that each wait for their response make a queue that never empties and never grows, of one goroutine for each:
	// however long that takes, to reject them cures nothing. 64 such callers must fit in.
	crowd = 96
	// first is the part that is rejected first, before it is known how many calls come.
	first = 0.5
	// most is the largest part that is rejected. What is admitted shows when the overload is over.
	most = 0.95
	// least is the part below which nothing is rejected any more.
	least = 0.01
	// decay is what is left of the part after a tick in which less was needed.
	decay = 0.9
	// memory is for how many ticks a long wait of a goroutine counts: the runtime measures one in eight.
	memory = 10
	// probeEvery is after how many ticks of rejecting everything is admitted again, to see whether a crowd comes back: if
	// only few callers are left, nothing else shows it.
	probeEvery = int(time.Minute / Tick)
	// probe is for how many ticks a crowd that comes back needs no patience.
	probe = 20
)

// Load is what the runtime shows of a tick.
type Load struct {
	// Wait is how long goroutines that could run have waited for a processor: 90 % not longer than this.
	Wait time.Duration
	// Waiting is how many wait now.
	Waiting int
}

// pressure turns loads into the part of calls to reject. As in CoDel (RFC 8289) the signal is the queueing time, a queue that
// is long for a moment is no overload, and neither is one that holds little, however slowly it moves. As in PIE (RFC 8033) the
// queueing time is that of a call that comes now: what waits divided by what is done in a tick. The part is chosen so that
// half of what waits too much is gone after the next tick; it falls slowly. The zero value rejects nothing.
type pressure struct {
	part       float64
	came, done float64 // calls a tick, on average of late; came is known while calls are rejected
	late       int     // ticks in a row that were late
	slow       int     // ticks until the last long wait is forgotten
	busy       int     // ticks since part was 0; below 0 during a probe
}

// observe takes the load of a tick, in which so many calls came and were done, and returns the part of calls to reject in the
// next, 0 to most.
func (p *pressure) observe(l Load, came, done uint64, target time.Duration) float64 {
	if p.came == 0 {
		p.came = float64(came)
	}
	p.came += (float64(came) - p.came) / 4
	p.done += (float64(done) - p.done) / 4
	if p.slow = max(0, p.slow-1); l.Wait > target || p.part > 0 && l.Wait > target/4 {
		p.slow = memory
	}
	// room is how many may wait so that none waits longer than the target.
	room := p.done * float64(target) / float64(Tick)
	late := p.slow > 0 && float64(l.Waiting) > room
	switch {
	case p.part > 0:
		need := 0.0
		if p.slow > 0 && l.Waiting > 0 {
			need = 1 - (p.done+(room-float64(l.Waiting))/2)/max(1, p.came)
		}
		p.part = min(most, max(need, shrink(p.part)))
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

// shrink is a part after a tick in which less was needed.
func shrink(part float64) float64 {
	if part *= decay; part < least {
		return 0
	}
	return part
}
