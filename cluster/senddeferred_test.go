package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestSendDeferred: what was admitted as a share is charged to the owner once, as far as it
// still counts.
func TestSendDeferred(t *testing.T) {
	for _, c := range []struct {
		name     string
		limits   *bucket.Limits
		wait     time.Duration
		fate     fate // of the first two calls that charge
		spent    int64
		deferred int
	}{
		{"at once", hourly(9), 0, delivered, 3, 0},
		{"unsent", hourly(9), 0, unsent, 3, 0},
		{"the answer is lost", hourly(9), 0, replyLost, 3, 0},
		{"the queue is full", hourly(9), 0, full, 0, 1},
		{"another window", limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 9, Period: time.Second}), 2 * time.Second, delivered, 0, 0},
		{"half refilled", limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 12, Period: 12 * time.Second}), 6 * time.Second, delivered, 2, 0},
		{
			"two limits, one refilled", limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 9, Period: time.Second},
				bucket.Limit{Algorithm: bucket.FixedWindow, Count: 30, Period: time.Hour, Cost: 2}), 2 * time.Second, delivered, 5, 0,
		},
	} {
		posedAs(t, c.name, "a b c", func(t *testing.T, w *testCluster) {
			a, b := w.nodes["a"], w.nodes["b"]
			r := request(a, "b", 1, c.limits)
			w.decides(always(unsent))
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				decide(ctx, a, r)
				<-ctx.Done() // so that windows end meanwhile
				cancel()
			}
			w.decides(first(2, c.fate))
			time.Sleep(c.wait)
			a.sendDeferred(t.Context(), 10)
			wantSpent(t, "at the owner", b, r, c.spent)
			if n := a.Stats().Deferred; n != c.deferred {
				t.Errorf("%d keys are deferred for, want %d", n, c.deferred)
			}
			w.decides(nil)
			a.sendDeferred(t.Context(), 10)
			wantSpent(t, "settled again", b, r, c.spent+int64(3*c.deferred))
			if answer := decide(t.Context(), a, r)[0]; answer.Source != check.Forwarded {
				t.Errorf("%+v", answer)
			}
		})
	}
}

// TestDeferredWhole: what a batch that failed had of a share is not deferred.
func TestDeferredWhole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, _, denied, r := failing(t, hourly(10))
		away := always(unsent)
		w.decides(away)
		decide(t.Context(), a, r)
		w.decides(nil)
		a.sendDeferred(t.Context(), 10)
		w.decides(away)
		decideAll(t.Context(), a, denied, r)
		a.background.Wait()
		w.decides(nil)
		a.sendDeferred(t.Context(), 10)
		wantSpent(t, "by what was admitted", w.nodes["b"], r, 1)
	})
}
