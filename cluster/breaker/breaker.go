// Package breaker decides which checks are not sent to an owner that has just let one wait in vain:
// a circuit breaker (M. Nygard, Release It!, 2007) whose threshold is the time that a check has.
// Its caller sends checks, and answers those that are not sent by their rules' on_failure.
package breaker

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// ProbeEvery is the time between two checks that are sent although a circuit is open.
const ProbeEvery = 100 * time.Millisecond

// forgetAfter is how long a circuit stays open that no check asks for. Open circuits cost all
// checks with short deadlines.
const forgetAfter = 10 * time.Second

// Values of Target.Partition that stand for all partitions of the owner.
const (
	AllPartitions  = -1
	SyncPartitions = -2 // for checks that wait for a replica; an owner that answers any check closes it
)

// Target is what can fail to answer: an owner, or, for checks that wait for a replica, one or all
// of its partitions.
type Target struct {
	Owner     message.Peer
	Partition int
}

// Breaker has one circuit for each Target that did not answer in time. Without any, a check costs
// one atomic load. The zero value is ready. Safe for concurrent use.
type Breaker struct {
	open atomic.Int32
	mu   struct {
		sync.Mutex
		circuits map[Target]*circuit
		heard    map[message.Peer]int64 // when owners have last answered, as far as circuits were open
		swept    int64                  // when circuits were last forgotten
	}
}

// circuit is open from its first Fail until OK.
type circuit struct {
	waited time.Duration // the longest that a check has waited in vain
	next   int64         // when it lets the next probe through
	probed int64         // when it let the last one through
	probe  time.Duration // the most time that a probe has had of the present ProbeEvery
}

// Open reports whether any circuit is open.
func (b *Breaker) Open() bool { return b.open.Load() > 0 }

// Allow reports whether a check with so much time left may be sent to all targets at now, in ns. An
// open circuit lets a check through that has more than twice the time of those that waited in vain,
// and the checks of one moment in each ProbeEvery: again for a check with more than twice the time
// of that probe, because callers with little time must not take the probes of others.
func (b *Breaker) Allow(now int64, left time.Duration, targets ...Target) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range targets {
		if c := b.mu.circuits[t]; c != nil && !c.allows(now, left) {
			return false
		}
	}
	for _, t := range targets {
		if c := b.mu.circuits[t]; c != nil {
			c.pass(now, left)
		}
	}
	return true
}

func (c *circuit) allows(now int64, left time.Duration) bool {
	return left > 2*c.waited || now == c.probed || now >= c.next || left > 2*c.probe
}

// pass notes that a check goes through, which is a probe unless it has enough time.
func (c *circuit) pass(now int64, left time.Duration) {
	if left > 2*c.waited || now == c.probed {
		return
	}
	if now >= c.next {
		c.next, c.probe = now+int64(ProbeEvery), 0
	}
	c.probed, c.probe = now, max(c.probe, left)
}

// Fail opens the circuit of t at now, in ns: a check that was sent has waited for so long without
// an answer.
func (b *Breaker) Fail(now int64, waited time.Duration, t Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.mu.circuits[t]
	if c == nil {
		if b.mu.circuits == nil {
			b.mu.circuits = map[Target]*circuit{}
		}
		c = &circuit{probed: math.MinInt64, next: now + int64(ProbeEvery), probe: math.MaxInt64 / 2}
		b.mu.circuits[t] = c
		b.countLocked()
	}
	c.waited = max(c.waited, waited)
}

// OK closes the circuits of targets, which have answered at now, in ns.
func (b *Breaker) OK(now int64, targets ...Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range targets {
		if b.mu.heard == nil {
			b.mu.heard = map[message.Peer]int64{}
		}
		b.mu.heard[t.Owner] = now
		delete(b.mu.circuits, t)
		delete(b.mu.circuits, Target{t.Owner, SyncPartitions})
	}
	if now-b.mu.swept > int64(time.Second) {
		b.mu.swept = now
		maps.DeleteFunc(b.mu.circuits, func(_ Target, c *circuit) bool { return now-c.next > int64(forgetAfter) })
	}
	b.countLocked()
}

// Silent reports that owner has answered nothing since a time in ns, as far as is known.
func (b *Breaker) Silent(owner message.Peer, since int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known := b.mu.heard[owner]
	return !known || at < since
}

// countLocked sets open, and forgets what is only of use while circuits are open.
func (b *Breaker) countLocked() {
	if len(b.mu.circuits) == 0 {
		b.mu.heard = nil
	}
	b.open.Store(int32(len(b.mu.circuits)))
}

// Retain closes the circuits of all targets but those that keep reports: the others own nothing any
// more.
func (b *Breaker) Retain(keep func(Target) bool) {
	if !b.Open() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for t := range b.mu.circuits {
		if !keep(t) {
			delete(b.mu.circuits, t)
		}
	}
	b.countLocked()
}
