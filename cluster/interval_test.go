package cluster

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestInterval: turns come every 20 ms while something goes on and for a second after, then 100 ms after the last turn or when
// a heartbeat is due, and as before when something goes on again.
func TestInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() int64 { return int64(time.Since(start)) }
		c := newInterval(now())
		defer c.tick.Stop()
		due := int64(math.MaxInt64)
		wait := func(want time.Duration) {
			t.Helper()
			before := now()
			<-c.tick.C
			if got := time.Duration(now() - before); got != want {
				t.Errorf("after %v: the next turn comes in %v, want %v", time.Duration(before), got, want)
			}
			c.turned(now(), due)
		}
		for range 50 {
			wait(20 * time.Millisecond)
		}
		wait(100 * time.Millisecond)
		time.Sleep(30 * time.Millisecond)
		c.turned(now(), due) // for a heartbeat
		wait(100 * time.Millisecond)
		due = now() + int64(130*time.Millisecond)
		wait(100 * time.Millisecond) // its end was set before that
		wait(30 * time.Millisecond)
		wait(time.Millisecond) // nobody has sent it
		due = math.MaxInt64
		wait(time.Millisecond)
		time.Sleep(95 * time.Millisecond)
		c.activate(now())
		for range 50 {
			wait(20 * time.Millisecond)
		}
		wait(100 * time.Millisecond)
	})
}

// TestChangeAtRest: what is decided on a node at rest is on its way to the copy within 20 ms, as on a busy one.
func TestChangeAtRest(t *testing.T) {
	running(t, "a b", func(t *testing.T, f *fleet) {
		transferBatches := make(chan time.Time, 100)
		f.mu.Lock()
		f.mu.lose = func(_, _ string, e message.Envelope) bool {
			if p, ok := e.Body.(*message.TransferBatch); ok && p.Image.Counters > 0 {
				transferBatches <- time.Now()
			}
			return false
		}
		f.mu.Unlock()
		keys := requests(7, hourly(100))
		for i := range keys {
			time.Sleep(3*time.Second + time.Duration(7*i)*time.Millisecond)
			asked := time.Now()
			decide(t.Context(), f.nodes["a"].Node, keys[i])
			if took := (<-transferBatches).Sub(asked); took > period+time.Millisecond {
				t.Errorf("key %d: its counter left after %v", i, took)
			}
		}
	})
}
