package cluster

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// told is what became of each answer: allowed, denied, or an error.
func told(answers []check.Answer) string {
	s := ""
	for _, a := range answers {
		switch {
		case a.Err != nil:
			s += "e"
		case a.Allowed:
			s += "y"
		default:
			s += "n"
		}
	}
	return s
}

// TestOrder: the checks of one key are decided in the order in which they stand in a batch, a
// reset among them, wherever they are held and whatever the first calls meet.
func TestOrder(t *testing.T) {
	for name, f := range map[string]fate{"delivered": delivered, "unsent": unsent, "request lost": requestLost} {
		posedAs(t, name, "a b c", func(t *testing.T, w *testCluster) {
			a := w.nodes["a"]
			var batch []check.Request
			for _, verb := range []bucket.Verb{bucket.Check, bucket.Check, bucket.Reset, bucket.Check, bucket.Check, bucket.Reset} {
				for i, owner := range []string{"a", "b", "c"} {
					r := request(a, owner, i, hourly(3))
					r.Verb, r.Cost = verb, 3
					batch = append(batch, r)
				}
			}
			w.decides(first(2, f))
			if got := told(decide(t.Context(), a, batch...)); got != "yyynnnyyyyyynnnyyy" {
				t.Errorf("answers %s", got)
			}
			for i, owner := range []string{"a", "b", "c"} {
				wantSpent(t, "after the last reset, at "+owner, w.nodes[owner], request(a, owner, i, hourly(3)), 0)
			}
		})
	}
}

// TestOrderBehind: a check that the gate holds up is decided as soon as the replica has caught up, and one that could
// be decided waits behind one of its key that cannot, here and at a distance.
func TestOrderBehind(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		for _, owner := range []string{"a", "b"} {
			deciding := w.nodes[owner]
			full := request(a, owner, 1, hourly(3))
			full.Cost = 3
			p := full.Key.Shard(31)
			deciding.table.Record(p, bucket.RecordLasting, 50*time.Millisecond)
			decide(t.Context(), a, full)
			deciding.table.Drain(p, nil)
			time.Sleep(60 * time.Millisecond)
			reset, next := full, full
			reset.Verb = bucket.Reset
			next.Unreplicated = true // the gate would let it through
			start, answers := time.Now(), make(chan []check.Answer)
			go func() { answers <- decide(t.Context(), a, reset, next, next) }()
			time.Sleep(70 * time.Millisecond)
			deciding.table.Confirm(p, deciding.cfg.Clock())
			deciding.confirms.notify()
			if got := told(<-answers); got != "yyn" {
				t.Errorf("held by %s: answers %s, want a reset, a check, and one that is denied", owner, got)
			}
			if took := time.Since(start); owner == "a" && took != 70*time.Millisecond {
				t.Errorf("it took %v, want it at once after the confirmation", took)
			}
		}
	})
}

// TestDrainApart: what a share is drained of was not admitted, so no owner is charged for it.
func TestDrainApart(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(9))
		over := r
		over.Cost, over.Drain = 3, true
		w.decides(always(unsent))
		for i, c := range []struct {
			ask  check.Request
			want bool
		}{{r, true}, {over, false}, {r, false}} {
			got := decide(t.Context(), a, c.ask)[0]
			wantAnswer(t, "apart", got, c.want, check.Share, "a")
			if i > 0 && got.Remaining != 0 {
				t.Errorf("check %d: %d remain of the share", i, got.Remaining)
			}
		}
		w.decides(nil)
		a.sendDeferred(t.Context(), 10)
		wantSpent(t, "by what was admitted", b, r, 1)
	})
}
