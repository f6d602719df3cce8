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

// first lets f decide about the first n calls; the rest is delivered.
func first(n int, f fate) func(string, string, []check.Record) fate {
	return func(string, string, []check.Record) fate {
		if n--; n >= 0 {
			return f
		}
		return delivered
	}
}

// TestLosses: what a loss does to each verb. A retry may charge twice; nothing is ever
// admitted twice, and no refund is made twice. With Once nothing is charged twice.
func TestLosses(t *testing.T) {
	for _, c := range []struct {
		name   string
		verb   bucket.Verb
		once   uint64
		fate   fate
		calls  int
		spent  int64 // of 5 that were spent before
		failed bool
	}{
		{"check, unsent", bucket.Check, 0, unsent, 2, 6, false},
		{"check, request lost", bucket.Check, 0, requestLost, 2, 6, false},
		{"check, reply lost", bucket.Check, 0, replyLost, 2, 7, false},
		{"read, reply lost", bucket.Read, 0, replyLost, 2, 5, false},
		{"charge, reply lost", bucket.Charge, 0, replyLost, 2, 7, false},
		{"refund, unsent", bucket.Refund, 0, unsent, 2, 4, false},
		{"refund, request lost", bucket.Refund, 0, requestLost, 1, 5, true},
		{"refund, reply lost", bucket.Refund, 0, replyLost, 1, 4, true},
		{"reset, reply lost", bucket.Reset, 0, replyLost, 2, 0, false},
		{"charge with Once, reply lost", bucket.Charge, 1, replyLost, 2, 6, false},
		{"refund with Once, reply lost", bucket.Refund, 1, replyLost, 2, 4, false},
		{"refund with Once, request lost", bucket.Refund, 1, requestLost, 2, 4, false},
	} {
		posedAs(t, c.name, "a b", func(t *testing.T, w *testCluster) {
			a, b := w.nodes["a"], w.nodes["b"]
			r := request(a, "b", 1, hourly(10))
			r.Cost = 5
			decide(t.Context(), b, r)
			w.decides(first(1, c.fate))
			r.Verb, r.Cost, r.Once = c.verb, 1, c.once
			answer := decide(t.Context(), a, r)[0]
			if c.failed {
				wantErr(t, "the answer", answer, check.ErrNoOwner)
			} else {
				wantAnswer(t, "the answer", answer, true, check.Forwarded, "b")
			}
			if n := len(w.callsSoFar()); n != c.calls {
				t.Errorf("%d calls, want %d", n, c.calls)
			}
			wantSpent(t, "the retry", b, r, c.spent)
		})
	}
}

// TestOverloaded: a full queue is an error of its own, at once, and admits nothing.
func TestOverloaded(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		w.decides(first(1, full))
		start := time.Now()
		answers := decide(t.Context(), a, request(a, "b", 1, hourly(10)), request(a, "a", 1, hourly(10)))
		wantErr(t, "to the full queue", answers[0], check.ErrOverloaded)
		wantAnswer(t, "its neighbour", answers[1], true, check.Owned, "a")
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
		if s := a.Stats(); s.Overloaded != 1 || s.Share != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestHalfAnswered: what came before an error stands, and is not asked and charged again.
func TestHalfAnswered(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		w.decides(first(1, halfFull))
		var requests []check.Request
		for i := range 10 {
			requests = append(requests, request(a, "b", i, hourly(10)))
		}
		for i, answer := range decide(t.Context(), a, requests...) {
			if i >= 5 {
				wantErr(t, "beyond the queue", answer, check.ErrOverloaded)
				continue
			}
			wantAnswer(t, "before it", answer, true, check.Forwarded, "b")
			wantSpent(t, fmt.Sprint("check ", i), w.nodes["b"], requests[i], 1)
		}
		if n := len(w.callsSoFar()); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

// lost is a Peers on which every node points to the next, and none holds anything.
type lost struct {
	wire
	next map[string]string
}

func (l lost) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	if err := l.wire.Call(ctx, addr, records, replies); err != nil {
		return err
	}
	for i := range replies {
		replies[i] = check.Reply{Status: check.NotOwner, Owner: l.next[addr[:1]]}
	}
	return nil
}

// TestThreeForwards: an attempt follows hints three times at most, and none that
// leads nowhere; the next attempt starts from the ring again.
func TestThreeForwards(t *testing.T) {
	for _, c := range []struct {
		name string
		next map[string]string
		want string // where the first attempt goes
	}{
		{"a chain", map[string]string{"b": "c", "c": "d", "d": "e"}, "bcd"},
		{"a ring", map[string]string{"b": "c", "c": "b"}, "bcb"},
		{"back to the requester", map[string]string{"b": "c", "c": "a"}, "bc"},
		{"to itself", map[string]string{"b": "b"}, "b"},
		{"no hint", nil, "b"},
		{"to an unauthenticated client", map[string]string{"b": "z"}, "b"},
	} {
		posedAs(t, c.name, "b c d e", func(t *testing.T, w *testCluster) {
			a := w.add("a", func(config *Config) { config.Peers = lost{wire{w, "a"}, c.next} })
			w.agree(2)
			decided := make(chan check.Answer)
			go func() { decided <- decide(t.Context(), a, request(a, "b", 1, hourly(10)))[0] }()
			time.Sleep(firstBackoff)
			synctest.Wait()
			path := func(calls []call) (s string) {
				for _, call := range calls {
					s += call.to
				}
				return s
			}
			calls := w.callsSoFar()
			if got := path(calls); got != c.want {
				t.Errorf("the first attempt went %s, want %s", got, c.want)
			}
			<-decided
			calls = w.callsSoFar()[len(calls):]
			if got := path(calls[:min(len(c.want), len(calls))]); got != c.want {
				t.Errorf("the second attempt went %s, want %s", got, c.want)
			}
			// Waits of 1, 2, 4, 8, 16, 32 and then 50 ms fit 34 times into 1.5 s.
			if n := a.Stats().Retries; n < 32 || n > 35 {
				t.Errorf("%d retries", n)
			}
		})
	}
}

// TestDisagreement: two nodes of which each takes the other for the owner decide
// nothing, until a view says who it is. Then exactly one has charged.
func TestDisagreement(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(10))
		pose(a, viewOf(2, "b"))
		pose(b, viewOf(2, "a"))
		start := time.Now()
		fromA, fromB := make(chan check.Answer), make(chan check.Answer)
		go func() { fromA <- decide(t.Context(), a, r)[0] }()
		go func() { fromB <- decide(t.Context(), b, r)[0] }()
		time.Sleep(203 * time.Millisecond)
		synctest.Wait()
		if sa, sb := a.Stats(), b.Stats(); sa.Served+sa.Owned+sb.Served+sb.Owned != 0 {
			t.Fatalf("somebody decided: %+v %+v", sa, sb)
		}
		w.agree(3)
		wantAnswer(t, "asked at a", <-fromA, true, check.Forwarded, "b")
		wantAnswer(t, "asked at b", <-fromB, true, check.Owned, "b")
		if took := time.Since(start); took != 203*time.Millisecond+2*latency {
			t.Errorf("it took %v: a view does not end the wait", took)
		}
		wantSpent(t, "by both", b, r, 2)
	})
}

// TestHint: a node with an old view finds the owner by what it is told. If that one does not answer, this leaves no mark on the node that
// told of it.
func TestHint(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r, near := request(a, "c", 1, hourly(10)), request(a, "b", 1, hourly(10))
		old := viewOf(2, "b")
		old.Members = append(old.Members, viewOf(2, "c").Members...)
		old.Members[1].State = 0 // c, as a still sees it, is joining
		pose(a, old)
		wantAnswer(t, "by way of b", decide(t.Context(), a, r)[0], true, check.Forwarded, "c")
		if s := a.Stats(); s.Redirected != 1 || s.Forwards != 2 || s.Retries != 0 {
			t.Errorf("%+v", s)
		}
		w.decides(func(_, to string, _ []check.Record) fate {
			if to == "c" {
				return hung
			}
			return delivered
		})
		within(t, a, envoyTime, r)
		wantEarly(t, "a key of b", a, envoyTime, near, check.Forwarded, 0, 2*latency)
	})
}

// TestDeadline: CheckTimeout ends the wait, or the context's end less the margin if that is earlier.
func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		name    string
		timeout time.Duration // 0 for none
		fate    fate
		want    time.Duration
	}{
		{"no deadline", 0, unsent, 1500 * time.Millisecond},
		{"no deadline, hung", 0, hung, 1500 * time.Millisecond},
		{"a later one", time.Hour, hung, 1500 * time.Millisecond},
		{"later by less than the margin", 1505 * time.Millisecond, hung, 1494 * time.Millisecond},
		{"an earlier one", 60 * time.Millisecond, unsent, 49 * time.Millisecond},
		{"an earlier one, hung", 60 * time.Millisecond, hung, 49 * time.Millisecond},
		{"Envoy's", 20 * time.Millisecond, hung, 15 * time.Millisecond},
		{"ended", -time.Second, unsent, 0},
	} {
		posedAs(t, c.name, "a b", func(t *testing.T, w *testCluster) {
			a := w.nodes["a"]
			w.decides(func(string, string, []check.Record) fate { return c.fate })
			ctx := t.Context()
			if c.timeout != 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.timeout)
				defer cancel()
			}
			start := time.Now()
			answers := decide(ctx, a, request(a, "b", 1, hourly(10)), request(a, "a", 1, hourly(10)))
			if took := time.Since(start); took != c.want {
				t.Errorf("it took %v, want %v", took, c.want)
			}
			wantAnswer(t, "the one forwarded", answers[0], true, check.Share, "a")
			wantAnswer(t, "the one held", answers[1], true, check.Owned, "a")
		})
	}
}

// TestSpentAsItEnds: the reply to a spend is lost, and the deadline of the reservation passes before
// the retry. The caller hears that the reservation has ended, and the unit is spent all the same.
func TestSpentAsItEnds(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(10))
		about := func(verb bucket.Verb, units int64) bucket.Reserved {
			x := r
			x.Verb, x.Cost, x.Once = verb, units, 1
			x.Reservation = &bucket.Reservation{ID: 1, Least: 1, MaxOpen: 10, For: time.Minute, Release: true}
			decide(t.Context(), a, x)
			return x.Reservation.Reserved
		}
		if got := about(bucket.Reserve, 4); got.Units != 4 {
			t.Fatalf("reserved: %+v", got)
		}
		began := time.Now()
		time.Sleep(time.Minute - 10*time.Millisecond)
		calls := 0
		w.decides(func(string, string, []check.Record) fate {
			if calls++; calls == 1 {
				return replyLost
			}
			time.Sleep(time.Minute - time.Since(began) + time.Millisecond)
			return delivered
		})
		if got := about(bucket.Spend, 1); calls != 2 || !got.Unknown {
			t.Errorf("after %d calls: %+v", calls, got)
		}
		wantSpent(t, "the unit", b, r, 1)
	})
}
