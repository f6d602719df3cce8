package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// cuts lets these regions, and no others, reach and be reached by nobody.
func (w *world) cuts(regions ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.cut)
	for _, r := range regions {
		w.cut[r] = true
	}
}

// spends asks a node so often for one unit, and returns how many were admitted.
func (w *world) spends(node string, r check.Request, times int) (admitted int64) {
	for range times {
		if decide(w.t.Context(), w.nodes[node], r)[0].Allowed {
			admitted++
		}
	}
	return admitted
}

// TestRegionShares: two regions that are cut off from the home, and from each other, admit their weights of what was left, each node its
// part of that, while the home admits all of it. The home is charged once when they are linked again, though answers get lost.
func TestRegionShares(t *testing.T) {
	for name, limit := range map[string]bucket.Limit{
		"window": {Algorithm: bucket.FixedWindow, Count: 1200, Period: time.Hour},
		"bucket": {Algorithm: bucket.TokenBucket, Count: 1200, Period: 100 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, 60*time.Millisecond)
				r := request(w.nodes["us1"], "us2", 1, global(limit))
				r.OnPartition, r.OnFailure = rules.FailShare, rules.FailClosed
				const before = int64(400)
				q := r
				q.Verb, q.Cost = bucket.Charge, before
				decide(t.Context(), w.nodes["us1"], q)
				q = r
				q.Verb = bucket.Read
				for name := range w.nodes {
					if a := decide(t.Context(), w.nodes[name], q)[0]; a.Remaining != 800 {
						t.Fatalf("%s: %+v, want 800 left", name, a)
					}
				}
				w.cuts("us", "ap")
				all := before
				for _, node := range []string{"us1", "us2", "ap1", "ap2"} {
					n := w.spends(node, r, 500)
					if n != 100 { // an eighth: a quarter for two nodes
						t.Errorf("%s: %d admitted of 800 left", node, n)
					}
					all += n
				}
				home := w.spends("eu2", r, 200)
				if home != 200 {
					t.Errorf("the home has admitted %d", home)
				}
				all += home
				lost := 0
				w.decides(func(from, to string, records []check.Record) fate {
					if from[:2] != to[:2] && records[0].Verb == bucket.Charge && lost < 20 {
						lost++
						return replyLost
					}
					return delivered
				})
				w.cuts()
				for range 10 {
					for _, n := range w.nodes {
						n.sendDeferred(t.Context(), 100)
					}
				}
				a := decide(t.Context(), w.nodes["eu1"], q)[0]
				if lost != 20 || a.Remaining != limit.Count-all {
					t.Errorf("the home has %d left of %d after %d, want %d; %d answers lost", a.Remaining, limit.Count, all, limit.Count-all, lost)
				}
				for name, n := range w.nodes {
					decide(t.Context(), n, q)
					if left, _ := n.shares.Charges.Count(); left > 0 {
						t.Errorf("%s has %d charges left", name, left)
					}
				}
				w.cuts("us", "ap")
				if n := w.spends("us1", r, 100); n != (limit.Count-all)/8 {
					t.Errorf("%d admitted in the second cut, of %d left", n, limit.Count-all)
				}
			})
		})
	}
}

// TestRegionsOtherRules: where the home has the key's rule with another home, on_failure decides, the check is counted, and nothing is
// charged anywhere.
func TestRegionsOtherRules(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 60*time.Millisecond)
		r := request(w.nodes["us1"], "us2", 1, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Hour}))
		w.decides(func(from, to string, records []check.Record) fate {
			if from[:2] == "us" && to[:2] == "eu" { // as if us had another home in its rule
				for i := range records {
					l, err := bucket.NewLimitsAt("d", "ap", records[i].Limits.List()...)
					if err != nil {
						panic(err)
					}
					records[i].Limits = l
				}
			}
			return delivered
		})
		for policy, want := range map[rules.OnFailure]check.Source{rules.FailShare: check.Closed, rules.FailClosed: check.Closed, rules.FailOpen: check.Open} {
			before := w.nodes["us1"].Stats().HomeRejected
			r.OnFailure, r.OnPartition = policy, rules.FailClosed
			wantAnswer(t, policy.String(), decide(t.Context(), w.nodes["us1"], r)[0], policy == rules.FailOpen, want, "us1")
			if n := w.nodes["us1"].Stats().HomeRejected - before; n != 1 {
				t.Errorf("%v: %d rejected checks are counted", policy, n)
			}
		}
		for name, n := range w.nodes {
			if k := n.table.Stats().Entries; k != 0 {
				t.Errorf("%s has %d counters", name, k)
			}
		}
	})
}

// TestRegionsOwnShares: where a region's own node that owns a key does not answer, on_failure decides as in a cluster without regions,
// whatever a lease could not answer.
func TestRegionsOwnShares(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 60*time.Millisecond)
		r := request(w.nodes["us1"], "us2", 1, limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1200, Period: time.Hour}))
		r.OnPartition, r.OnFailure = rules.FailClosed, rules.FailShare
		w.decides(func(_, to string, _ []check.Record) fate {
			if to == "us2" {
				return requestLost
			}
			return delivered
		})
		plain, read, prompt, uncached := r, r, r, r
		read.Verb, prompt.NoDelay, uncached.NoDenialCache = bucket.Read, true, true
		for i, a := range append(decide(t.Context(), w.nodes["us1"], plain, read, prompt, uncached), decideAll(t.Context(), w.nodes["us1"], plain, plain)...) {
			if !a.Allowed || a.Source != check.Share {
				t.Errorf("%d: %+v", i, a)
			}
		}
	})
}
