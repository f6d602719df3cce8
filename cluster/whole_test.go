package cluster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestWhole: both or neither, wherever the keys are held.
func TestWhole(t *testing.T) {
	for _, owners := range []string{"aa", "ab", "ba", "bc", "bb", "abc", "bcacba"} {
		posedAs(t, owners, "a b c", func(t *testing.T, w *testCluster) {
			a := w.nodes["a"]
			var requests []check.Request
			for i, owner := range owners {
				requests = append(requests, request(a, string(owner), i, hourly(3)))
			}
			each := func(what string, want func(last bool) int64) {
				t.Helper()
				for i, r := range requests {
					if n, want := spent(w.nodes[string(owners[i])], r), want(i == len(requests)-1); n != want {
						t.Errorf("%s: key %d at %c has spent %d, want %d", what, i, owners[i], n, want)
					}
				}
			}
			for i, answer := range decideAll(t.Context(), a, requests...) {
				if answer.Err != nil || !answer.Allowed {
					t.Errorf("all fit: check %d: %+v", i, answer)
				}
			}
			each("all fit", func(bool) int64 { return 1 })
			// The last key is synced up by somebody else.
			last := requests[len(requests)-1]
			last.Cost = 2
			decide(t.Context(), w.nodes["b"], last)
			start := time.Now()
			for i, answer := range decideAll(t.Context(), a, requests...) {
				if answer.Err != nil || answer.Allowed || answer.RetryAfter < 59*time.Minute {
					t.Errorf("one does not fit: check %d: %+v, want denied for an hour", i, answer)
				}
			}
			if took := time.Since(start); took > 4*latency {
				t.Errorf("the denial took %v", took)
			}
			each("one does not fit", func(last bool) int64 {
				if last {
					return 3
				}
				return 1
			})
		})
	}
}

// TestWholeSameKey: two checks of one key in a batch are both charged or neither.
func TestWholeSameKey(t *testing.T) {
	for _, owner := range []string{"a", "b"} {
		posed(t, "a b", func(t *testing.T, w *testCluster) {
			r := request(w.nodes["a"], owner, 1, hourly(3))
			for _, want := range []string{"yy", "nn"} {
				got := told(decideAll(t.Context(), w.nodes["a"], r, r))
				if n := spent(w.nodes[owner], r); got != want || n != 2 {
					t.Errorf("held by %s: answers %s, want %s; %d spent, want 2", owner, got, want, n)
				}
			}
		})
	}
}

// TestWholeMixed: what fails a batch and what does not, and what becomes of the rest.
func TestWholeMixed(t *testing.T) {
	verb := func(v bucket.Verb) func(*check.Request) { return func(r *check.Request) { r.Verb = v } }
	cost := func(n int64) func(*check.Request) { return func(r *check.Request) { r.Cost = n } }
	shadow := func(r *check.Request) { r.Shadow = true }
	for _, c := range []struct {
		name    string
		change  []func(*check.Request) // of the check beside the one of cost 1
		allowed bool                   // the one of cost 1
		beside  bool                   // the one beside it
		spent   int64                  // on the first key
		other   int64                  // on the other
	}{
		{"both fit", nil, true, true, 1, 1},
		{"too much", []func(*check.Request){cost(99)}, false, false, 0, 0},
		{"too much in shadow", []func(*check.Request){cost(99), shadow}, true, false, 1, 0},
		{"a read is no check", []func(*check.Request){cost(99), verb(bucket.Read)}, true, false, 1, 0},
		{"a charge cannot fail", []func(*check.Request){cost(3), verb(bucket.Charge)}, true, true, 1, 3},
		{"cost 0 only reads", []func(*check.Request){cost(0)}, true, true, 1, 0},
	} {
		for _, owner := range []string{"a", "b"} {
			posedAs(t, c.name+" at "+owner, "a b", func(t *testing.T, w *testCluster) {
				a := w.nodes["a"]
				one, other := request(a, "b", 1, hourly(10)), request(a, owner, 2, hourly(10))
				for _, change := range c.change {
					change(&other)
				}
				answers := decideAll(t.Context(), a, one, other)
				if answers[0].Allowed != c.allowed || answers[1].Allowed != c.beside {
					t.Errorf("allowed %v and %v, want %v and %v", answers[0].Allowed, answers[1].Allowed, c.allowed, c.beside)
				}
				other.Verb, other.Cost = bucket.Check, 1
				if n, m := spent(w.nodes["b"], one), spent(w.nodes[owner], other); n != c.spent || m != c.other {
					t.Errorf("spent %d and %d, want %d and %d", n, m, c.spent, c.other)
				}
			})
		}
	}
}

// TestWholeShadow: a shadow rule is charged with the batch and given back with it,
// and its answer is its own.
func TestWholeShadow(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		shadow, r := request(a, "b", 1, hourly(10)), request(a, "a", 2, hourly(1))
		shadow.Shadow = true
		for i, allowed := range []bool{true, false} {
			answers := decideAll(t.Context(), a, shadow, r)
			if !answers[0].Allowed || answers[1].Allowed != allowed {
				t.Errorf("batch %d: %+v", i, answers)
			}
			wantSpent(t, fmt.Sprint("the shadow, batch ", i), w.nodes["b"], shadow, 1)
		}
	})
}

// TestWholeLosses: whatever gets lost, a failed batch leaves no charge, and one that
// succeeds has charged everything once.
func TestWholeLosses(t *testing.T) {
	for _, f := range []fate{delivered, unsent, requestLost, replyLost, full} {
		for _, lost := range []int{0, 1, 2, 3} { // which calls
			for _, denied := range []bool{false, true} {
				posedAs(t, fmt.Sprintf("fate %d of call %d, denied=%v", f, lost, denied), "a b c", func(t *testing.T, w *testCluster) {
					a := w.nodes["a"]
					requests := []check.Request{
						request(a, "a", 1, hourly(10)), request(a, "b", 2, hourly(10)),
						request(a, "c", 3, hourly(10)), request(a, "b", 4, hourly(10)),
					}
					if denied {
						requests[2].Cost = 99
					}
					n := -1
					w.decides(func(string, string, []check.Record) fate {
						if n++; n == lost {
							return f
						}
						return delivered
					})
					answers := decideAll(t.Context(), a, requests...)
					failed := denied || f == full && lost < 2
					for i, answer := range answers {
						if answer.Allowed == failed {
							t.Errorf("check %d: %+v", i, answer)
						}
					}
					synctest.Wait()
					want := int64(1)
					if failed {
						want = 0
					}
					for i, r := range requests {
						wantSpent(t, fmt.Sprint("key ", i), w.nodes[string("abcb"[i])], r, want)
					}
				})
			}
		}
	}
}

// TestWholeShare: shares that were spent by a batch which failed are free again.
func TestWholeShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, _, denied, r := failing(t, hourly(2))
		w.decides(always(unsent))
		for range 3 {
			decideAll(t.Context(), a, denied, r)
		}
		a.background.Wait()
		wantAnswer(t, "the share of 1", decide(t.Context(), a, r)[0], true, check.Share, "a")
		wantAnswer(t, "after it", decide(t.Context(), a, r)[0], false, check.Share, "a")
	})
}
