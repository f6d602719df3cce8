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
	config   Config
	calls    atomic.Int64  // in progress
	places   atomic.Int64  // that they take
	done     atomic.Uint64 // calls that have given their place back
	asked    atomic.Uint32 // calls that came while part of them was rejected
	refusing atomic.Uint32 // of whole calls
	wait     atomic.Int64
	waiting  atomic.Int64

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
// refused for the time being. It is meant to be asked once for a call, before anything is done for it.
func (g *Gate) Admit() bool {
	part := g.refusing.Load()
	if part == 0 {
		return true
	}
	// Multiples of an odd number modulo 2¹⁶ come to every value once: refusals are spread evenly, without
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
	g.refusing.Store(part)
	return part > 0
}

// Stats counts since New, except for Calls, Wait and Refusing.
type Stats struct {
	// Calls are in progress now, and Load was observed last.
	Calls int64
	Load
	// Refusing is the part of calls that is refused now, 0 to 1.
	Refusing float64
	// Full were refused because of MaxCalls, Slow because of MaxWait.
	Full, Slow uint64
}

// Stats returns the gate's counts.
func (g *Gate) Stats() Stats {
	return Stats{
		Calls: g.calls.Load(), Load: Load{Wait: time.Duration(g.wait.Load()), Waiting: int(g.waiting.Load())},
		Refusing: float64(g.refusing.Load()) / whole,
		Full:     g.full.Load(), Slow: g.slow.Load(),
	}
}
