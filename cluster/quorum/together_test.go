package quorum_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestBeatTogether starts nine processes at odd times. Soon they all beat within a few milliseconds of each other, ten times a
// second, and are quiet between; so they do again after one has been away.
func TestBeatTogether(t *testing.T) {
	w := newTestCluster(t, 1)
	var beats []int64 // when heartbeats were sent
	w.lost = func(e message.Envelope) bool {
		if _, ok := e.Body.(*message.Heartbeat); ok {
			beats = append(beats, w.now)
		}
		return false
	}
	w.config.Expect = 9
	for i := range 9 {
		w.boot(fmt.Sprintf("p%d", i), 100*ms, message.Set{})
		w.run(time.Duration(7+11*i) * time.Millisecond)
	}
	steady := func(what string) {
		t.Helper()
		beats = beats[:0]
		w.run(2 * time.Second)
		bursts, longest := 0, int64(0)
		for i, from := 0, 0; i < len(beats); i++ {
			longest = max(longest, beats[i]-beats[from])
			if i+1 == len(beats) || beats[i+1]-beats[i] > 40*ms {
				bursts, from = bursts+1, i+1
			}
		}
		// Nine beat to eight others, once in a period of 100 ms and what is left of a tick of 25 ms.
		if len(beats) > 21*9*8 || bursts < 16 || bursts > 21 || longest > 5*ms {
			t.Errorf("%s: %d heartbeats in %d bursts of up to %v", what, len(beats), bursts, time.Duration(longest))
		}
	}
	w.until(10*time.Second, "all are counted", w.agreed)
	w.run(3 * time.Second)
	steady("from the start")
	w.split("p8", "p0 p1 p2 p3 p4 p5 p6 p7")
	w.run(2 * time.Second)
	w.heal()
	w.run(time.Second)
	steady("after one was away")
}
