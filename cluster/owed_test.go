package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// TestSettle: what was admitted as a share is charged to the holder once, as far as it
// still counts.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits *bucket.Limits
		wait   time.Duration
		fate   fate // of the first two calls that charge
		spent  int64
		owed   int
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
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "a", "b", "c")
				a, b := w.nodes["a"], w.nodes["b"]
				r := request(a, "b", 1, c.limits)
				w.decides(func(string, string, []check.Record) fate { return unsent })
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
					decide(ctx, a, r)
					cancel()
				}
				w.decides(first(2, c.fate))
				time.Sleep(c.wait)
				a.settle(t.Context(), a.owed.take(10))
				if n := spent(b, r); n != c.spent {
					t.Errorf("the holder was charged %d, want %d", n, c.spent)
				}
				if n := a.Stats().Owed; n != c.owed {
					t.Errorf("%d keys are owed for, want %d", n, c.owed)
				}
				w.decides(nil)
				a.settle(t.Context(), a.owed.take(10))
				if n := spent(b, r); n != c.spent+int64(3*c.owed) {
					t.Errorf("settled again: %d", n)
				}
				if answer := decide(t.Context(), a, r)[0]; answer.Source != check.Forwarded {
					t.Errorf("%+v", answer)
				}
			})
		})
	}
}

// TestOwed: debts come back in the order in which they were made, and the oldest is
// forgotten when there are too many.
func TestOwed(t *testing.T) {
	o := newOwed(3)
	k := func(i int) bucket.Key { return bucket.Key{Lo: uint64(i)} }
	add := func(i int, cost int64) { o.add(&bucket.Request{Key: k(i), Cost: cost}) }
	for i := range 5 {
		add(i, 1)
	}
	add(2, 5)
	o.forgive(k(3), 1)
	o.forgive(k(9), 1)
	want := "[{{0 2} <nil> 6 false 0} {{0 3} <nil> 0 false 0}]"
	if got := fmt.Sprint(o.take(2)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	add(2, 1)
	want = "[{{0 4} <nil> 1 false 0} {{0 2} <nil> 1 false 0}]"
	if got := fmt.Sprint(o.take(9)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if keys, forgotten := o.count(); keys != 0 || forgotten != 2 {
		t.Errorf("%d left, %d forgotten", keys, forgotten)
	}
}

// TestOwedWhole: what a batch that failed had of a share is not owed.
func TestOwedWhole(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		away := func(string, string, []check.Record) fate { return unsent }
		denied, r := request(a, "a", 1, hourly(10)), request(a, "b", 2, hourly(10))
		denied.Cost = 99
		w.decides(away)
		decide(t.Context(), a, r)
		w.decides(nil)
		a.settle(t.Context(), a.owed.take(10))
		w.decides(away)
		decideAll(t.Context(), a, denied, r)
		a.returning.Wait()
		w.decides(nil)
		a.settle(t.Context(), a.owed.take(10))
		if n := spent(w.nodes["b"], r); n != 1 {
			t.Errorf("the holder was charged %d, want the 1 that was admitted", n)
		}
	})
}
