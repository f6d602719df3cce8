package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/rules"
)

// envoyTime is Envoy's time for a check, and envoyWait what is left of it before the margin.
const envoyTime, envoyWait = 20 * time.Millisecond, 15 * time.Millisecond

// within has n decide requests with a deadline, and returns the answers and how long it took.
func within(t *testing.T, n *Node, timeout time.Duration, requests ...check.Request) ([]check.Answer, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	start := time.Now()
	answers := decide(ctx, n, requests...)
	return answers, time.Since(start)
}

// wantEarly has n decide r with a deadline, fails unless it is answered by a source, for a reason, after a time, and returns the answer.
func wantEarly(t *testing.T, what string, n *Node, timeout time.Duration, r check.Request, s check.Source, early check.Early, want time.Duration) check.Answer {
	t.Helper()
	answers, took := within(t, n, timeout, r)
	a := answers[0]
	if a.Source != s || a.Early != early || took != want {
		t.Errorf("%s: by %q, early by %q, after %v, want %q, %q, %v; error %v", what, a.Source, a.Early, took, s, early, want, a.Err)
	}
	return a
}

// TestCircuit: once a check has waited in vain for an owner, those with short deadlines are
// answered at once, except for a probe each 100 ms, until the owner answers.
func TestCircuit(t *testing.T) {
	for _, c := range []struct {
		policy rules.OnFailure
		source check.Source
	}{{rules.FailShare, check.Share}, {rules.FailClosed, check.Closed}, {rules.FailOpen, check.Open}} {
		posed(t, "a b c", func(t *testing.T, w *testCluster) {
			a := w.nodes["a"]
			r, other, far := request(a, "b", 1, hourly(1000)), request(a, "b", 2, hourly(1000)), request(a, "c", 1, hourly(1000))
			r.OnFailure, other.OnFailure = c.policy, c.policy
			hangs := true
			w.decides(func(_, to string, _ []check.Record) fate {
				if hangs && to == "b" {
					return hung
				}
				return delivered
			})
			expect := func(what string, r check.Request, source check.Source, early check.Early, want time.Duration) {
				t.Helper()
				wantEarly(t, c.source.String()+": "+what, a, envoyTime, r, source, early, want)
			}
			expect("the first", r, c.source, check.AtMargin, envoyWait)
			began := time.Now()
			expect("the next", r, c.source, check.NotAsked, 0)
			expect("another key of that owner", other, c.source, check.NotAsked, 0)
			expect("another owner's key", far, check.Forwarded, 0, 2*latency)
			time.Sleep(100*time.Millisecond - time.Since(began))
			expect("a probe", r, c.source, check.AtMargin, envoyWait)
			expect("after the probe", r, c.source, check.NotAsked, 0)
			wantEarly(t, c.source.String()+": a check with more time", a, 100*time.Millisecond, r, c.source, check.AtMargin, 89*time.Millisecond)

			hangs = false
			wantEarly(t, c.source.String()+": the owner is back", a, 200*time.Millisecond, r, check.Forwarded, 0, 2*latency)
			expect("and the others are sent again", other, check.Forwarded, 0, 2*latency)
		})
	}
}

// TestCircuitOfOthers: what does not open a circuit, and who is not kept from waiting.
func TestCircuitOfOthers(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(1000))
		w.decides(always(hung))

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		decide(ctx, a, r)
		if a.circuits.Open() {
			t.Error("a caller that has gone opened a circuit")
		}
		within(t, a, envoyTime, r)
		charge := r
		charge.Verb = bucket.Charge
		answer := wantEarly(t, "a charge", a, envoyTime, charge, 0, check.NotAsked, 0)
		wantErr(t, "a charge", answer, check.ErrNoOwner)
		start := time.Now()
		if answer := decide(t.Context(), a, r)[0]; answer.Early != 0 || time.Since(start) != a.cfg.CheckTimeout {
			t.Errorf("a caller without a deadline: %+v after %v", answer, time.Since(start))
		}
	})
}

// TestCircuitOfHandoff: an owner that answers, and does not decide yet, opens no circuit.
func TestCircuitOfHandoff(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(1000))
		b.table.Seal(r.Key.Shard(b.cfg.Ring.Partitions))
		wantEarly(t, "in a handoff", a, envoyTime, r, check.Share, check.AtMargin, envoyWait)
		if a.circuits.Open() {
			t.Error("a circuit is open")
		}
	})
}

// TestCircuitOfReplica: a replica that does not confirm opens the circuit for checks of sync rules
// of its partition alone. The charge that is not confirmed stands.
func TestCircuitOfReplica(t *testing.T) {
	for _, from := range []string{"a", "b"} {
		running(t, "a b", func(t *testing.T, f *fleet) {
			time.Sleep(2 * time.Second) // they have settled, and give shares
			r := request(f.nodes["a"].Node, "a", 1, hourly(1000))
			r.Sync = true
			f.loses(losing[*message.Receipt])
			n := f.nodes[from].Node
			first := wantEarly(t, from+": the first", n, envoyTime, r, check.Share, check.AtMargin, envoyWait)
			if !first.Allowed || first.Owner != from || spent(f.nodes["a"].Node, r) != 1 {
				t.Errorf("%s: %+v, %d spent, want 1", from, first, spent(f.nodes["a"].Node, r))
			}
			wantEarly(t, from+": the next", n, envoyTime, r, check.Share, check.NotAsked, 0)
			r.Sync = false
			answers, _ := within(t, n, envoyTime, r)
			if s := answers[0].Source; s != check.Owned && s != check.Forwarded {
				t.Errorf("%s: a check of a rule that is not sync: %v", from, s)
			}
		})
	}
}

// TestCircuitOfAtomic: an atomic batch ends by the margin too, and not by the margin of the margin.
func TestCircuitOfAtomic(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		w.decides(always(hung))
		r := request(a, "b", 1, hourly(1000))
		r.OnFailure = rules.FailClosed
		ctx, cancel := context.WithTimeout(t.Context(), envoyTime)
		defer cancel()
		start := time.Now()
		answers := decideAll(ctx, a, r, request(a, "a", 1, hourly(10)))
		if a, took := answers[0], time.Since(start); a.Source != check.Closed || a.Early != check.AtMargin || took != envoyWait {
			t.Errorf("%+v after %v", a, took)
		}
		if answers[1].Allowed || !answers[1].GivenBack {
			t.Errorf("%+v", answers[1])
		}
		a.background.Wait()
	})
}

// TestCircuitThroughTakeover: callers with 20 ms get shares at once while a node has died, and the
// new owners' answers as soon as this node knows them.
func TestCircuitThroughTakeover(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		time.Sleep(2 * time.Second)
		a := f.nodes["a"]
		var keys []check.Request
		for i := range 20 {
			keys = append(keys, request(a.Node, "b", i, hourly(100_000)))
		}
		f.kill("b")
		killed, asked, waited, last := time.Now(), 0, 0, time.Duration(0)
		for time.Since(killed) < 3*time.Second {
			answers, took := within(t, a.Node, envoyTime, keys[asked%len(keys)])
			if took > envoyWait {
				t.Fatalf("an answer after %v", took)
			}
			if answers[0].Err != nil {
				t.Fatal(answers[0].Err)
			}
			if took > time.Millisecond {
				waited++
			}
			if answers[0].Early != 0 {
				last = time.Since(killed)
			}
			asked++
			time.Sleep(time.Millisecond)
		}
		// A probe each 100 ms, and the first one.
		if most := int(last/(100*time.Millisecond)) + 2; waited > most || last > 1300*time.Millisecond {
			t.Errorf("%d of %d checks waited for more than a millisecond, want at most %d; the last early answer after %v", waited, asked, most, last)
		}
		t.Logf("%d checks, %d waited, the last early answer %v after the crash", asked, waited, last)
		if a.circuits.Open() {
			t.Error("a circuit is open after the takeover")
		}
	})
}
