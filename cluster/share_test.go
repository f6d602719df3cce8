package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/rules"
)

// alone cuts name off from the others, and waits until it answers by itself, and they without it.
func (f *fleet) alone(name string) {
	f.t.Helper()
	time.Sleep(100 * time.Millisecond) // replicas have what was spent
	rest := ""
	for other := range f.nodes {
		if other != name {
			rest += other
		}
	}
	f.cut(rest, name)
	n := f.nodes[name]
	f.eventually(time.Second, name+" has lost quorum", func() bool { return !n.mayDecide(n.clock()) })
	f.eventually(10*time.Second, "the others hold all", func() bool { return f.owned()-f.owned(name) == 31 })
	time.Sleep(settles)
}

// heal ends the cut, and waits until all deferred charges are made.
func (f *fleet) heal() {
	f.t.Helper()
	f.cut()
	for name, n := range f.nodes {
		f.eventually(5*time.Second, name+" has quorum", func() bool { return n.mayDecide(n.clock()) })
		f.within(10*time.Second, name+" is settled", n.Settled)
		f.eventually(5*time.Second, name+" has charged all", func() bool { return n.Stats().Deferred == 0 })
	}
}

// askAll asks each node so often for one unit of each key, and returns how many were admitted of each.
func (f *fleet) askAll(keys []check.Request, times int, admitted []int64, names ...string) {
	f.t.Helper()
	for range times {
		for _, name := range names {
			for i, a := range decide(f.t.Context(), f.nodes[name].Node, keys...) {
				if a.Err != nil {
					f.t.Fatalf("%s, key %d: %v", name, i, a.Err)
				}
				if a.Allowed {
					admitted[i]++
				}
			}
		}
	}
}

// TestSharesOfKeysBeingSpent: keys are spent while one node after the other is cut off, each twice, and then all from each other, and asked
// for more than there is: the excess of a key is at most what was left when the first was cut off, and nothing of a spent key.
func TestSharesOfKeysBeingSpent(t *testing.T) {
	for _, before := range []int64{0, 5, 15, 29, 30} {
		running(t, "a b c", func(t *testing.T, f *fleet) {
			const limit = 30
			keys := requests(90, hourly(limit))
			admitted := make([]int64, len(keys))
			for i := range before {
				f.askAll(keys, 1, admitted, []string{"a", "b", "c"}[i%3])
			}
			for range 2 {
				for _, name := range []string{"a", "b", "c"} {
					f.alone(name)
					f.askAll(keys, 4, admitted, "a", "b", "c")
					f.heal()
				}
			}
			f.askAll(keys, limit, admitted, "a", "b", "c")
			f.cut("a", "b", "c")
			time.Sleep(2 * time.Second)
			f.askAll(keys, 3, admitted, "a", "b", "c")
			if f.sum(func(s Stats) int { return int(s.MinorityShare) }) == 0 {
				t.Error("nobody has answered by its share")
			}
			least, most := admitted[0], int64(0)
			for i, n := range admitted {
				if least, most = min(least, n), max(most, n); n > limit+(limit-before) {
					t.Errorf("%d spent before: key %d: %d admitted of %d, want an excess of at most the %d that were left", before, i, n, limit, limit-before)
				}
			}
			if least < limit {
				t.Errorf("%d spent before: only %d of %d admitted of some key", before, least, limit)
			}
			t.Logf("%d spent before: %d to %d admitted of %d", before, least, most, limit)
		})
	}
}

// TestShareOfUnheardKey: of a key that it has not asked for a node gives a part of the limit, or nothing, as its rule says. A
// window that begins while it is cut off gives it a part of the limit, once.
func TestShareOfUnheardKey(t *testing.T) {
	for policy, want := range map[rules.UnknownShare]int64{rules.UnknownLimit: 3, rules.UnknownNone: 0} {
		running(t, "a b c", func(t *testing.T, f *fleet) {
			c := f.nodes["c"]
			limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 9, Period: time.Minute})
			var keys []check.Request
			for _, r := range requests(200, limits) {
				// Of the others' partitions that c has no replica of: there it has a counter.
				if r.UnknownShare = policy; !c.routing.Load().owns(r.Key) && !f.hasState("c", r.Key) {
					keys = append(keys, r)
				}
			}
			if len(keys) < 10 {
				t.Fatalf("only %d keys", len(keys))
			}
			time.Sleep(time.Minute - time.Duration(c.clock()%int64(time.Minute)) + time.Second)
			f.spend(f.nodes["a"].Node, keys)
			f.alone("c")
			for window := range 3 {
				admitted := make([]int64, len(keys))
				f.askAll(keys, 5, admitted, "c")
				for i, n := range admitted {
					if n != want {
						t.Fatalf("%v, window %d, key %d: %d admitted, want %d", policy, window, i, n, want)
					}
				}
				want = 3 // of each window from now on
				time.Sleep(time.Minute)
			}
			if s := c.Stats(); s.SharesUnknown == 0 {
				t.Error("no share without an answer is counted")
			}
		})
	}
}

// hasState reports whether a node has the partition of k, its own or a copy.
func (f *fleet) hasState(name string, k bucket.Key) (has bool) {
	n := f.nodes[name]
	_, has, err := n.state(f.t.Context(), k.Shard(31))
	must(f.t, err)
	return has
}

// TestShareOfFormerOwner: a node that has handed a partition off, and has not asked for it since, knows what it left.
func TestShareOfFormerOwner(t *testing.T) {
	running(t, "a", func(t *testing.T, f *fleet) {
		keys := requests(90, hourly(20))
		f.spend(f.nodes["a"].Node, keys)
		for _, name := range []string{"b", "c", "d", "e"} {
			f.join(name)
		}
		time.Sleep(time.Second)
		f.alone("a")
		admitted := make([]int64, len(keys))
		f.askAll(keys, 2, admitted, "a")
		for i, n := range admitted {
			if n > 0 {
				t.Errorf("key %d: %d admitted", i, n)
			}
		}
	})
}

// TestShareRefills: what flows comes back to the share at its part of the rate, from what was left when quorum was lost.
func TestShareRefills(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		c := f.nodes["c"]
		keys := requests(60, limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 36, Period: 3 * time.Minute})) // 12 for each
		f.spend(c.Node, keys)
		f.alone("c")
		lost := c.shares.When.AsOf(c.clock(), false)
		admitted := make([]int64, len(keys))
		for period := range 3 {
			for range 36 {
				time.Sleep(5 * time.Second)
				f.askAll(keys, 1, admitted, "c")
			}
			for i, n := range admitted {
				want := 12 * (c.clock() - lost) / int64(3*time.Minute)
				if n < want-1 || n > want {
					t.Fatalf("period %d, key %d: %d admitted, want %d", period, i, n, want)
				}
			}
		}
	})
}

// TestShareWithQuorum: where the owner alone cannot be reached, the share is one of what it said last, and what the node has
// admitted counts against the next one until the owner has acknowledged it.
func TestShareWithQuorum(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		away := always(unsent)
		r := request(a, "b", 1, hourly(30))
		step := func(what string, admits int, times int) {
			t.Helper()
			got := 0
			for range times {
				if decide(t.Context(), a, r)[0].Allowed {
					got++
				}
			}
			if got != admits {
				t.Errorf("%s: %d admitted, want %d", what, got, admits)
			}
		}
		step("the owner is there", 9, 9)
		w.decides(away)
		step("a third of 21", 7, 9)
		w.decides(nil)
		step("the owner is back, and has not heard of it", 3, 3)
		w.decides(away)
		step("a third of 18, less 7", 0, 3)
		w.decides(nil)
		a.sendDeferred(t.Context(), 10)
		w.decides(away)
		step("a third of 11: it has acknowledged the 7", 3, 9)
	})
}

// TestSharesWhenNobodyHasQuorum: where no node has quorum, though all are there, together they admit no more than was left.
func TestSharesWhenNobodyHasQuorum(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		keys := requests(60, hourly(30))
		admitted := make([]int64, len(keys))
		f.askAll(keys, 4, admitted, "a", "b", "c")
		f.loses(losing[*message.Ack])
		time.Sleep(3 * time.Second)
		f.askAll(keys, 20, admitted, "a", "b", "c")
		for i, n := range admitted {
			if n > 30 {
				t.Errorf("key %d: %d admitted of 30", i, n)
			}
		}
		if n := f.nodes["a"].Stats().MinorityShare; n == 0 {
			t.Error("nobody has answered by its share")
		}
	})
}
