package cluster

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// failing returns nodes of which a is to decide a batch of two checks: one that it owns and denies, and r, of which b owns the key.
func failing(t *testing.T, limits *bucket.Limits) (w *testCluster, a, b *Node, denied, r check.Request) {
	w = newTestCluster(t, "a", "b")
	a, b = w.nodes["a"], w.nodes["b"]
	denied, r = request(a, "a", 1, hourly(10)), request(a, "b", 2, limits)
	denied.Cost = 99
	return w, a, b, denied, r
}

// TestGiveBackAfterContext: the charges go back although nobody waits any more, as
// often as it takes.
func TestGiveBackAfterContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, b, denied, r := failing(t, hourly(10))
		ctx, cancel := context.WithTimeout(t.Context(), latency*3/2)
		defer cancel()
		n := 0
		w.decides(func(string, string, []check.Record) fate {
			n++
			switch {
			case n == 1:
				return delivered
			case n < 5:
				return unsent
			case n == 5:
				return replyLost
			}
			return delivered
		})
		start := time.Now()
		if answers := decideAll(ctx, a, denied, r); answers[0].Allowed || answers[1].Allowed {
			t.Errorf("%+v", answers)
		}
		if took := time.Since(start); took != latency*3/2*3/4 {
			t.Errorf("Decide took %v, want it to end before its context by the margin", took)
		}
		wantSpent(t, "before the give-back got through", b, r, 1)
		a.background.Wait()
		wantSpent(t, "after it", b, r, 0)
		// Once there, and once the share that a had answered with meanwhile.
		if s := a.Stats(); s.Refunds != 2 || s.RefundsLost != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestGiveBackOfChecksAlone: of a failed batch only charges of verb Check go back. Those of other verbs stand, and their owner
// holds no receipt of them, whether its reply came or was lost.
func TestGiveBackOfChecksAlone(t *testing.T) {
	for _, verb := range []bucket.Verb{bucket.Read, bucket.Charge, bucket.Refund, bucket.Reset} {
		for name, reply := range map[string]fate{"replied": delivered, "reply lost": replyLost} {
			bubbleAs(t, fmt.Sprintf("verb %d, %s", verb, name), func(t *testing.T) {
				w, a, _, denied, other := failing(t, hourly(10))
				other.Verb = verb
				calls := 0
				w.decides(func(_, _ string, records []check.Record) fate {
					if calls++; records[0].GiveBack || records[0].Undoable {
						t.Errorf("call %d: %+v", calls, records[0])
					}
					if calls == 1 {
						return reply
					}
					return delivered
				})
				decideAll(t.Context(), a, denied, other)
				a.background.Wait()
				if calls == 0 {
					t.Error("nothing was sent: the test shows nothing")
				}
				if s := a.Stats(); s.Refunds != 0 || s.RefundsLost != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestGiveBackLost: a peer that stays away is given up, and counted. Run does not return before.
func TestGiveBackLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, _, denied, r := failing(t, hourly(10))
		w.decides(func(_, _ string, records []check.Record) fate {
			if records[0].GiveBack {
				return hung
			}
			return delivered
		})
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		decideAll(ctx, a, denied, r)
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < giveBackTimeout || took > giveBackTimeout+time.Second {
			t.Errorf("it was tried for %v, want %v", took, giveBackTimeout)
		}
		if s := a.Stats(); s.RefundsLost != 1 || s.Refunds != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestGiveBackOvertakes: a request that was held up on the way and arrives after its
// give-back charges nothing.
func TestGiveBackOvertakes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, b, denied, r := failing(t, hourly(10))
		w.decides(func(_, _ string, records []check.Record) fate {
			if records[0].Undoable {
				return late
			}
			return delivered
		})
		decideAll(t.Context(), a, denied, r)
		a.background.Wait()
		w.late.Wait()
		if s := b.Stats(); s.Served == 0 {
			t.Fatal("nothing arrived: the test shows nothing")
		}
		wantSpent(t, "after the request has arrived", b, r, 0)
	})
}

// noGiveBacks keeps give-backs from leaving.
func noGiveBacks(_, _ string, records []check.Record) fate {
	if records[0].GiveBack {
		return unsent
	}
	return delivered
}

// TestGiveBackWindow: a charge that comes back after its window has ended makes no room
// in the next one.
func TestGiveBackWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, b, denied, r := failing(t, limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 3, Period: time.Second}))
		w.decides(noGiveBacks)
		time.Sleep(900 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		decideAll(ctx, a, denied, r)
		cancel()
		if n := spent(b, r); n != 1 {
			t.Fatalf("%d spent, want 1", n)
		}
		time.Sleep(200 * time.Millisecond) // a new window
		decide(t.Context(), b, r)
		decide(t.Context(), b, r)
		w.decides(nil)
		a.background.Wait()
		wantSpent(t, "in the new window", b, r, 2)
		if s := a.Stats(); s.Refunds != 1 {
			t.Errorf("nothing was given back: the test shows nothing: %+v", s)
		}
	})
}

// TestGiveBackMoved: a charge to a partition that has gone is not given back, and not
// either when it comes back, on the counters that it has then.
func TestGiveBackMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, b, denied, r := failing(t, hourly(10))
		w.decides(noGiveBacks)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		decideAll(ctx, a, denied, r)
		cancel()
		pose(b, viewOf(2, "a"))
		b.table.DropShard(r.Key.Shard(31))
		pose(b, viewOf(3, "a", "b"))
		decide(t.Context(), b, r)
		w.decides(nil)
		a.background.Wait()
		wantSpent(t, "by what came after", b, r, 1)
	})
}

// TestGiveBackLate: a charge whose partition is held elsewhere by now stands there, and
// is counted where it was made.
func TestGiveBackLate(t *testing.T) {
	for _, owner := range []string{"a", "b"} {
		posed(t, "a b c", func(t *testing.T, w *testCluster) {
			a, n := w.nodes["a"], w.nodes[owner]
			denied, r := request(a, "c", 1, hourly(10)), request(a, owner, 2, hourly(10))
			denied.Cost = 99
			w.decides(func(_, to string, records []check.Record) fate {
				if to == "c" && !records[0].GiveBack {
					synctest.Wait() // the other charge has been made
					pose(n, viewOf(2, "c"))
				}
				return delivered
			})
			if owner == "b" {
				w.decides(noGiveBacks)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			decideAll(ctx, a, denied, r)
			cancel()
			pose(n, viewOf(3, "c"))
			w.decides(nil)
			a.background.Wait()
			if s := n.Stats(); s.RefundsLost != 1 {
				t.Errorf("held by %s: %d lost, want 1", owner, s.RefundsLost)
			}
		})
	}
}
