package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestDeferredSurvive: what a node has admitted without owners is charged to them after a crash of that node, if it
// was written, as far as it still counts; and it counts against the node's shares until then.
func TestDeferredSurvive(t *testing.T) {
	for name, c := range map[string]struct {
		limits  *bucket.Limits
		down    time.Duration
		charged int64
	}{
		"at once":           {hourly(30), 0, 10},
		"later":             {hourly(30), 5 * time.Minute, 10},
		"in another window": {limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 30, Period: 5 * time.Minute}), 5 * time.Minute, 0},
		"several limits": {limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 30, Period: time.Hour},
			bucket.Limit{Algorithm: bucket.TokenBucket, Count: 90, Period: time.Hour, Cost: 2}), 0, 10},
	} {
		bubbleAs(t, name, func(t *testing.T) {
			f := newFleetWithDisks(t, "a", "b", "c")
			keys := requests(60, c.limits)
			f.alone("c")
			admitted := make([]int64, len(keys))
			f.askAll(keys, 30, admitted, "c")
			select {
			case <-f.nodes["c"].DeferredChanged():
			default:
				t.Error("nobody says that deferred charges have changed")
			}
			if n := f.saveDeferred("c"); n != len(keys) {
				t.Errorf("deferred charges of %d keys are written, want %d", n, len(keys))
			}
			f.crash("c")
			time.Sleep(c.down)
			f.cut()
			n := f.start("c")
			if deferred := n.Stats().Deferred; deferred != len(keys) {
				t.Errorf("deferred charges of %d keys are read, want %d", deferred, len(keys))
			}
			f.serve(n)
			f.within(30*time.Second, "c is settled", n.Settled)
			f.eventually(5*time.Second, "all is charged", func() bool { return n.Stats().Deferred == 0 })
			for i, r := range keys {
				if admitted[i] != 10 {
					t.Errorf("key %d: %d admitted, want 10", i, admitted[i])
				}
				r.Verb = bucket.Read
				a := decide(t.Context(), f.nodes["a"].Node, r)[0]
				if spent := 30 - a.Remaining; a.Index == 0 && spent != c.charged {
					t.Errorf("key %d: %+v, want %d charged", i, a, c.charged)
				}
			}
			if n := f.saveDeferred("c"); n != 0 {
				t.Errorf("deferred charges of %d keys are written when all are charged", n)
			}
		})
	}
}

// TestDeferredCountAgainstShares: a node that was restarted and is cut off again before it has charged anything gives no second share.
func TestDeferredCountAgainstShares(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetWithDisks(t, "a", "b", "c")
		keys := requests(60, hourly(30))
		f.alone("c")
		admitted := make([]int64, len(keys))
		f.askAll(keys, 30, admitted, "c")
		f.saveDeferred("c")
		f.kill("c")
		n := f.start("c")
		time.Sleep(time.Second)
		// As if it had quorum for a moment.
		if err := n.runner.do(t.Context(), func(now int64) {
			n.shares.When.Turn(now, now+1)
			n.shares.When.NoteSettled(0, true)
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.askAll(keys, 30, admitted, "c")
		for i, got := range admitted {
			if got != 10 {
				t.Errorf("key %d: %d admitted, want 10 in both runs together", i, got)
			}
		}
	})
}
