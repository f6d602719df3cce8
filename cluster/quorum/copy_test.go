package quorum_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// While the first connections stall for seconds, copies keep quorum and all members alive; copies end when responses arrive
// again.
func TestCopiesStandIn(t *testing.T) {
	for _, copies := range []bool{true, false} {
		w := settle(t, "a b c")
		sent := 0
		count := func(e message.Envelope) bool {
			if e.Copy {
				sent++
			}
			return false
		}
		w.lost = count
		w.run(10 * time.Second)
		if sent > 0 {
			w.failf("%d copies, and every heartbeat is answered", sent)
		}
		w.lost = func(e message.Envelope) bool { return !e.Copy || !copies }
		kept := time.Duration(0)
		for kept < 10*time.Second && w.withQuorum("a", "b", "c")() && w.all["a"].m.Lives(w.all["a"].clock(), w.all["b"].id) {
			w.run(50 * time.Millisecond)
			kept += 50 * time.Millisecond
		}
		if copies != (kept == 10*time.Second) {
			w.failf("copies %v: all have quorum for %v", copies, kept)
		}
		w.lost = count
		w.until(3*time.Second, "quorum is back", w.withQuorum("a", "b", "c"))
		w.run(time.Second)
		sent = 0
		if w.run(10 * time.Second); sent > 0 {
			w.failf("%d copies afterwards", sent)
		}
	}
}
