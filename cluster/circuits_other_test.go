package cluster

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestCircuitOfHasty: callers that wait for too short a time, and ask for too much at once, keep
// nobody from the owner.
func TestCircuitOfHasty(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		w.delay = func(string, string) time.Duration { return 3 * time.Millisecond }
		w.decides(func(_, _ string, records []check.Record) fate {
			if len(records) > 1000 {
				return hung // as an owner that has not decided them all in time
			}
			return delivered
		})
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(1000))
		for _, hasty := range []time.Duration{-time.Second, time.Nanosecond, time.Millisecond, 7 * time.Millisecond} {
			for range 3 {
				within(t, a, hasty, r)
				wantEarly(t, "beside one who waits "+hasty.String(), a, envoyTime, r, check.Forwarded, 0, 6*time.Millisecond)
			}
		}
		large := make([]check.Request, 2000)
		for i := range large {
			large[i] = r
		}
		within(t, a, envoyTime, large...)
		wantEarly(t, "beside one who asks much", a, envoyTime, r, check.Forwarded, 0, 6*time.Millisecond)

		// While a circuit is open, they do not take the probes of others.
		hangs := true
		w.decides(func(string, string, []check.Record) fate {
			if hangs {
				return hung
			}
			return delivered
		})
		within(t, a, envoyTime, r)
		hangs = false
		time.Sleep(100 * time.Millisecond)
		within(t, a, time.Millisecond, r)
		wantEarly(t, "after the probe of one who waits 1ms", a, envoyTime, r, check.Forwarded, 0, 6*time.Millisecond)
	})
}

// TestCircuitOfLate: an owner that is asked late, or has answered meanwhile, has not let a check
// wait for all of its time.
func TestCircuitOfLate(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(1000))
		start, shard := time.Now(), r.Key.Shard(b.cfg.Ring.Partitions)
		b.table.Seal(shard)
		w.decides(func(string, string, []check.Record) fate {
			if time.Since(start) > 12*time.Millisecond {
				return hung
			}
			return delivered
		})
		wantEarly(t, "in a handoff, then hung", a, envoyTime, r, check.Share, check.AtMargin, envoyWait)
		w.decides(nil)
		b.table.Open(shard, 0)
		wantEarly(t, "after it", a, envoyTime, r, check.Forwarded, 0, 2*latency)
	})
}

// TestCircuitOfFormerOwner: a circuit of a process that has lost its keys while a check waited for
// it does not stay open.
func TestCircuitOfFormerOwner(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(10))
		w.decides(always(hung))
		time.AfterFunc(10*time.Millisecond, func() { pose(a, viewOf(2, "a", "c")) })
		within(t, a, envoyTime, r)
		if a.circuits.Open() {
			t.Error("a circuit of a process that owns nothing")
		}
	})
}

// TestCircuitOfDenials: a check of a sync rule that is denied needs no replica, and does not take
// the probes of others for ever.
func TestCircuitOfDenials(t *testing.T) {
	running(t, "a b", func(t *testing.T, f *fleet) {
		time.Sleep(2 * time.Second)
		a := f.nodes["a"].Node
		var back atomic.Bool
		r := request(a, "a", 1, hourly(1))
		r.Sync = true
		f.loses(func(_, _ string, e message.Envelope) bool {
			_, receipt := e.Body.(*message.Receipt)
			return receipt && !back.Load()
		})
		within(t, a, envoyTime, r)
		if !a.circuits.Open() {
			t.Error("no circuit is open")
		}
		back.Store(true)
		time.Sleep(100 * time.Millisecond)
		answers, _ := within(t, a, envoyTime, r)
		wantAnswer(t, "a denial", answers[0], false, check.Owned, "a")
		if a.circuits.Open() {
			t.Error("a circuit is open although the owner decides")
		}
	})
}

// TestDetached: a detached batch is decided after its caller's deadline, and the caller does not
// wait for that.
func TestDetached(t *testing.T) {
	for _, timeout := range []time.Duration{0, envoyTime, time.Hour} {
		posed(t, "a b", func(t *testing.T, w *testCluster) {
			a, b, back := w.nodes["a"], w.nodes["b"], time.Now().Add(100*time.Millisecond)
			w.decides(func(string, string, []check.Record) fate {
				if time.Now().Before(back) {
					return unsent
				}
				return delivered
			})
			r := request(a, "b", 1, hourly(10))
			r.Verb = bucket.Charge
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			start := time.Now()
			a.Decide(ctx, &check.Batch{Requests: []check.Request{r}, Answers: make([]check.Answer, 1), Detached: true})
			if took, most := time.Since(start), max(0, timeout-min(maxMargin, timeout/marginPart)); took > min(most, 200*time.Millisecond) {
				t.Errorf("%v: Decide took %v", timeout, took)
			}
			a.background.Wait()
			wantSpent(t, timeout.String(), b, r, 1)
		})
	}
}

// TestCircuitOfSync: an owner that answers no check of a sync rule leaves those of its other
// partitions waiting no more, unless it answers others: then it is the replica of a partition that
// is silent.
func TestCircuitOfSync(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		var keys []check.Request // of different partitions
		parts := map[int]bool{}
		for i := 0; len(keys) < 3; i++ {
			r := request(a, "b", i, hourly(1000))
			if part := r.Key.Shard(a.cfg.Ring.Partitions); !parts[part] {
				parts[part], r.Sync = true, true
				keys = append(keys, r)
			}
		}
		other := keys[0]
		other.Sync = false
		var alive atomic.Bool
		w.decides(func(_, _ string, records []check.Record) fate {
			if alive.Load() && (!records[0].Sync || records[0].Key == keys[2].Key) {
				return delivered
			}
			return hung
		})
		wantEarly(t, "the first", a, envoyTime, keys[0], check.Share, check.AtMargin, envoyWait)
		wantEarly(t, "of another partition", a, envoyTime, keys[1], check.Share, check.NotAsked, 0)

		alive.Store(true)
		wantEarly(t, "of no sync rule", a, envoyTime, other, check.Forwarded, 0, 2*latency)
		time.AfterFunc(time.Millisecond, func() { within(t, a, envoyTime, other) })
		wantEarly(t, "of another replica that is silent", a, envoyTime, keys[1], check.Share, check.AtMargin, envoyWait)
		wantEarly(t, "of a replica that answers", a, envoyTime, keys[2], check.Forwarded, 0, 2*latency)
	})
}
