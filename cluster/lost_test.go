package cluster

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// losingTwo starts five nodes, spends half of what each of many keys has, and cuts two nodes off until the other three own all. Keys
// of even places deny what may have been spent.
func losingTwo(t *testing.T) (*fleet, []check.Request) {
	f := newFleet(t, "a", "b", "c", "d", "e")
	keys := requests(200, hourly(lostLimit))
	for i := range keys {
		keys[i].OnPartition, keys[i].DenyLost = rules.FailClosed, i%2 == 0
	}
	for range lostLimit / 2 {
		for i, a := range decide(t.Context(), f.nodes["c"].Node, keys...) {
			if !a.Allowed {
				t.Fatalf("key %d: %+v", i, a)
			}
		}
	}
	time.Sleep(100 * time.Millisecond) // replicas have it
	f.cut("ab", "cde")
	f.eventually(5*time.Second, "c, d and e own all", func() bool { return f.owned("c", "d", "e") == 31 })
	if lost := lostAt(f, "c", "d", "e"); lost == 0 {
		t.Fatal("no partition had both its owner and its replica on a and b")
	}
	return f, keys
}

const lostLimit = 8

// lostAt counts partitions whose counters are lost.
func lostAt(f *fleet, names ...string) (n int) {
	for _, name := range names {
		n += f.nodes[name].runner.lost()
	}
	return n
}

func (r *runner) lost() (n int) {
	if err := r.do(context.Background(), func(int64) { n = r.handoff.Stats().Lost }); err != nil {
		panic(err)
	}
	return n
}

// TestLostState: the majority takes over partitions whose owner and replica are both cut off. What was spent of their keys
// is not known, so those that deny it are denied, until the old state is back.
func TestLostState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, keys := losingTwo(t)
		denied, fresh := 0, 0
		for i, a := range decide(t.Context(), f.nodes["d"].Node, keys...) {
			switch {
			case a.Lost:
				denied++
				if a.Allowed || a.Remaining != 0 || a.RetryAfter == 0 || a.RetryAfter > bucket.MaxLostRetry || i%2 == 1 {
					t.Errorf("key %d: %+v", i, a)
				}
			case !a.Allowed:
				t.Errorf("key %d: %+v", i, a)
			case a.Remaining == lostLimit-1:
				fresh++
				if i%2 == 0 {
					t.Errorf("key %d began anew: %+v", i, a)
				}
			case a.Remaining != lostLimit/2-1:
				t.Errorf("key %d: %+v", i, a)
			}
		}
		if denied == 0 || fresh == 0 {
			t.Fatalf("%d keys were denied, and %d began anew", denied, fresh)
		}
		if n := f.sum(func(s Stats) int { return int(s.DeniedLost) }, "c", "d", "e"); n != denied {
			t.Errorf("%d denials are counted, %d were answered", n, denied)
		}
		if f.nodes["c"].runner.lost() > 0 {
			f.eventually(time.Second, "the log of c tells of it", func() bool {
				return strings.Contains(f.nodes["c"].log.String(), "taken over without their counters")
			})
		}
		f.cut()
		f.eventually(10*time.Second, "nothing is lost any more", func() bool { return lostAt(f, "a", "b", "c", "d", "e") == 0 })
		for i, a := range decide(t.Context(), f.nodes["a"].Node, keys...) {
			if a.Lost || !a.Allowed || i%2 == 0 && a.Remaining < lostLimit/2-2 {
				t.Errorf("healed, key %d: %+v", i, a)
			}
		}
	})
}

// TestAcceptLoss: when an operator accepts the loss at one node, keys begin anew at all.
func TestAcceptLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, keys := losingTwo(t)
		if _, told, err := f.nodes["d"].AcceptLoss(t.Context()); err != nil || len(told) != 2 {
			t.Fatalf("told %v: %v", told, err)
		}
		f.eventually(time.Second, "nothing is lost any more", func() bool { return lostAt(f, "c", "d", "e") == 0 })
		for i, a := range decide(t.Context(), f.nodes["e"].Node, keys...) {
			if !a.Allowed || a.Lost {
				t.Errorf("key %d: %+v", i, a)
			}
		}
	})
}

// TestLostLimits: a loss is over when the longest window of the rules that mind it has ended, and at once where none does.
func TestLostLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, _ := losingTwo(t)
		since := f.nodes["c"].clock()
		for _, c := range []struct {
			list []*bucket.Limits
			want int64
		}{
			{[]*bucket.Limits{limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Minute}), limitsOf(bucket.Limit{Algorithm: bucket.SlidingLog, Count: 1, Period: time.Second})}, since + int64(time.Minute)},
			{nil, since},
		} {
			f.nodes["c"].SetLostLimits(c.list)
			var got int64
			if err := f.nodes["c"].runner.do(t.Context(), func(int64) { got = f.nodes["c"].lostUntil(since) }); err != nil || got != c.want {
				t.Errorf("%d limits: %v, want %v: %v", len(c.list), time.Duration(got-since), time.Duration(c.want-since), err)
			}
		}
		f.nodes["d"].SetLostLimits(nil)
		f.nodes["e"].SetLostLimits(nil)
		f.eventually(time.Second, "nothing is lost any more", func() bool { return lostAt(f, "c", "d", "e") == 0 })
		if got := new(Node).lostUntil(since); got != math.MaxInt64 {
			t.Errorf("before the rules are known: %d", got)
		}
	})
}
