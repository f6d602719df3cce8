package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestRemembered: what an owner has denied is answered from memory, for at most 100 ms, in the owner's name and
// with times that run down. What else there is asks the owner.
func TestRemembered(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(10))
		r.Cost = 8
		decide(t.Context(), a, r)
		first := decide(t.Context(), a, r)[0]
		asked := len(w.callsSoFar())
		for _, wait := range []time.Duration{0, 50 * time.Millisecond, 49 * time.Millisecond} {
			time.Sleep(wait)
			answer := decide(t.Context(), a, r)[0]
			wantAnswer(t, "from memory", answer, false, check.Forwarded, "b")
			if first.RetryAfter -= wait; answer.RetryAfter != first.RetryAfter || answer.Remaining != 2 || answer.Age < wait {
				t.Errorf("%v later: %+v; want to come again in %v", wait, answer, first.RetryAfter)
			}
		}
		if n := len(w.callsSoFar()); n != asked {
			t.Errorf("b was asked %d times more", n-asked)
		}
		if s := a.Stats(); s.Remembered != 3 {
			t.Errorf("%+v", s)
		}
		small, fresh, read, drain, other := r, r, r, r, r
		small.Cost, fresh.NoDenialCache, read.Verb, drain.Drain, other.Limits = 3, true, bucket.Read, true, hourly(11)
		for name, q := range map[string]check.Request{"a lower cost": small, "others make room": fresh, "a read": read, "draining": drain, "other limits": other} {
			before := len(w.callsSoFar())
			decide(t.Context(), a, q)
			if len(w.callsSoFar()) != before+1 {
				t.Errorf("%s is answered from memory", name)
			}
		}
		time.Sleep(100 * time.Millisecond)
		before := len(w.callsSoFar())
		if decide(t.Context(), a, r); len(w.callsSoFar()) != before+1 {
			t.Error("a denial is remembered for more than 100 ms")
		}
	})
}

// TestRememberedAge: the time counts from the sending: an answer that took longer on its way is good for less.
func TestRememberedAge(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(0))
		started := time.Now()
		w.decides(func(string, string, []check.Record) fate {
			if time.Since(started) == 0 {
				time.Sleep(60 * time.Millisecond)
			}
			return delivered
		})
		decide(t.Context(), a, r)
		time.Sleep(39 * time.Millisecond)
		decide(t.Context(), a, r)
		if n := len(w.callsSoFar()); n != 1 {
			t.Errorf("b was asked %d times after 99 ms, want once", n)
		}
		time.Sleep(time.Millisecond)
		decide(t.Context(), a, r)
		if n := len(w.callsSoFar()); n != 2 {
			t.Errorf("b was asked %d times after 100 ms, want twice", n)
		}
	})
}

// TestRoomHere: a refund or reset through the same node counts at once, in the batch as after it.
func TestRoomHere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, verb := range []bucket.Verb{bucket.Refund, bucket.Reset} {
			w := newTestCluster(t, "a", "b")
			a := w.nodes["a"]
			r := request(a, "b", 1, hourly(1))
			back := r
			back.Verb = verb
			decide(t.Context(), a, r)
			if decide(t.Context(), a, r)[0].Allowed {
				t.Fatal("two of one")
			}
			answers := decide(t.Context(), a, r, back, r, r)
			for i, allowed := range []bool{false, true, true, false} {
				if answers[i].Allowed != allowed {
					t.Errorf("%s: check %d: %+v", verb, i, answers[i])
				}
			}
			decide(t.Context(), a, back)
			if !decide(t.Context(), a, r)[0].Allowed {
				t.Errorf("after a %s it is denied from memory", verb)
			}
		}
	})
}

// TestNoMemoryOfWholes: a denial that a batch has brought about itself, and whose cause is given back with it, is
// not remembered.
func TestNoMemoryOfWholes(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(1))
		if answers := decideAll(t.Context(), a, r, r); answers[0].Allowed || answers[1].Allowed {
			t.Fatalf("%+v", answers)
		}
		wantAnswer(t, "alone", decide(t.Context(), a, r)[0], true, check.Forwarded, "b")
	})
}

// TestRoomElsewhere: a refund or reset through another node, or at the owner, invalidates the cached denial as soon as the
// owner's invalidation is here; and the owner writes only where it has denied something just before.
func TestRoomElsewhere(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		a := f.nodes["a"]
		for i, at := range []string{"a", "b", "c"} {
			for _, verb := range []bucket.Verb{bucket.Refund, bucket.Reset} {
				r := request(a.Node, "c", 10*i+int(verb), hourly(1))
				back := r
				back.Verb = verb
				decide(t.Context(), a.Node, r)
				if decide(t.Context(), a.Node, r)[0].Allowed {
					t.Fatal("two of one")
				}
				before := a.Stats().Remembered
				if decide(t.Context(), a.Node, r); a.Stats().Remembered != before+1 {
					t.Fatal("it is not remembered")
				}
				decide(t.Context(), f.nodes[at].Node, back)
				time.Sleep(2 * latency) // of the invalidation
				if !decide(t.Context(), a.Node, r)[0].Allowed {
					t.Errorf("a %s at %s is not seen", verb, at)
				}
			}
		}
	})
}

// TestRoomQuiet: who was denied nothing is told nothing.
func TestRoomQuiet(t *testing.T) {
	var r deniedToPeers
	k, other := bucket.Key{Lo: 7}, bucket.Key{Lo: 8}
	r.denied(1, k)
	if r.take(2, other) || r.take(1+int64(check.MaxDenied), k) {
		t.Error("an invalidation that no node needs")
	}
	r.denied(1, k)
	if !r.take(int64(check.MaxDenied), k) || r.take(int64(check.MaxDenied), k) {
		t.Error("one denial, and no invalidation")
	}
}
