//go:build linux

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// farther is what a way takes beyond the relay's delay, on a machine that runs all of this at once.
const farther = 10 * time.Millisecond

// TestEventualFar: eventual mode on real processes that are far apart, against the formula.
func TestEventualFar(t *testing.T) {
	process.OnlyLong(t)
	for _, n := range []int{2, 3, 5} {
		for _, delay := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond} {
			t.Run(fmt.Sprintf("%d nodes, %v", n, delay), func(t *testing.T) {
				f := far(t, n, delay, process.RulesOf(t, eventualRules))
				first := time.Now().Add(2 * time.Second).Truncate(eventualWindow).Add(eventualWindow)
				ctx, cancel := context.WithDeadline(t.Context(), first.Add(2*eventualWindow))
				defer cancel()
				time.Sleep(time.Until(first))
				r := askNearby(ctx, f.nodes, 32, 20*time.Millisecond)
				if r.failed != nil {
					t.Fatal(r.failed)
				}
				for i := range int64(2) {
					w := first.UnixNano()/int64(eventualWindow) + i
					rate := float64(r.asked[w]) / eventualWindow.Seconds() / float64(n)
					bound := int64(float64(n-1) * rate * (200*time.Millisecond + 3*(delay+farther)).Seconds())
					excess := r.admitted[w] - eventualLimit
					t.Logf("%d nodes, %v one way: %.0f/s at each, by themselves %d of %d, excess %d, formula %d, stalest %v",
						n, delay, rate, r.local[w], r.asked[w], excess, bound, r.stalest)
					if r.asked[w] < 2*eventualLimit {
						t.Errorf("asked for %d of %d", r.asked[w], eventualLimit)
					}
					if excess < -eventualLimit/20 || excess > bound {
						t.Errorf("%d admitted of %d", r.admitted[w], eventualLimit)
					}
				}
			})
		}
	}
}

// TestEventualCut: one of the nodes is cut off for 10 s, over the ends of windows.
func TestEventualCut(t *testing.T) {
	process.OnlyLong(t)
	const cut = 10 * time.Second
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			f := far(t, n, 0, process.RulesOf(t, eventualRules))
			first := time.Now().Add(2 * time.Second).Truncate(eventualWindow).Add(eventualWindow)
			windows := int64(5)
			ctx, cancel := context.WithDeadline(t.Context(), first.Add(time.Duration(windows)*eventualWindow))
			defer cancel()
			time.Sleep(time.Until(first))
			go func() {
				time.Sleep(3 * time.Second)
				f.isolate(n-1, true)
				time.Sleep(cut)
				f.isolate(n-1, false)
			}()
			r := askNearby(ctx, f.nodes, 32, 20*time.Millisecond)
			if r.failed != nil {
				t.Fatal(r.failed)
			}
			for i := range windows {
				w := first.UnixNano()/int64(eventualWindow) + i
				rate := float64(r.asked[w]) / eventualWindow.Seconds() / float64(n)
				near := (200*time.Millisecond + 3*farther).Seconds()
				// Who is cut off goes on with its part: the whole limit's at the beginning of a window, what was
				// left of it else, and in a window that it begins without an owner its share.
				part := float64(eventualLimit)/float64(n) + 1
				bound := int64(float64(n-1)*rate*near + part)
				excess := r.admitted[w] - eventualLimit
				t.Logf("%d nodes, window %d: %.0f/s at each, by themselves %d of %d, excess %d, formula %d", n, i, rate, r.local[w], r.asked[w], excess, bound)
				if excess > bound {
					t.Errorf("%d admitted of %d", r.admitted[w], eventualLimit)
				}
			}
		})
	}
}
