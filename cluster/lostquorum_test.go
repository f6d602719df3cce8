package cluster

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// slowed has each reading of the clock of a take so long, until again is called.
func slowed(a *Node, each time.Duration) (again func()) {
	clock, slow := a.cfg.Clock, int64(0)
	a.cfg.Clock = func() int64 {
		slow += int64(each)
		return clock() + slow
	}
	return func() { a.cfg.Clock = clock }
}

// TestBatchRunsOutOfTime: a large batch that takes too long is decided as far as time allows, and the rest is answered as checks that ran
// out of time are.
func TestBatchRunsOutOfTime(t *testing.T) {
	const n = 10 * clockEvery
	requests := func(a *Node, sync bool) (list []check.Request) {
		for i := range n {
			r := request(a, "a", i, hourly(10))
			r.OnFailure, r.Sync = rules.FailClosed, sync
			list = append(list, r)
		}
		return list
	}
	verify := func(t *testing.T, a *Node, list []check.Request, answers []check.Answer, decided int) {
		t.Helper()
		for i, got := range answers {
			want, cost := check.Owned, int64(1)
			if i >= decided {
				want, cost = check.Closed, 0
			}
			if got.Source != want || spent(a, list[i]) != cost {
				t.Fatalf("check %d of %d: %+v, %d spent; want %v", i, n, got, spent(a, list[i]), want)
			}
		}
	}
	for name, sync := range map[string]bool{"the fast way": false, "the long way": true} {
		bubbleAs(t, "canceled, "+name, func(t *testing.T) {
			a := newTestCluster(t, "a").nodes["a"]
			a.quorumUntil.Store(math.MaxInt64)
			list := requests(a, sync)
			ctx, cancel := context.WithCancel(t.Context())
			clock, read := a.cfg.Clock, 0
			before := 1 // readings before the first look
			if sync {
				before = 3
			}
			a.cfg.Clock = func() int64 {
				if read++; read == before+3 {
					cancel() // noticed by this look, or the next
				}
				return clock()
			}
			answers := decide(ctx, a, list...)
			a.cfg.Clock = clock
			decided := 0
			for decided < n && answers[decided].Source == check.Owned {
				decided++
			}
			if decided == 0 || decided > 5*clockEvery {
				t.Fatalf("%d of %d were decided", decided, n)
			}
			verify(t, a, list, answers, decided)
		})
	}
	bubbleAs(t, "too slow", func(t *testing.T) {
		a := newTestCluster(t, "a").nodes["a"]
		a.quorumUntil.Store(math.MaxInt64)
		list := requests(a, false)
		again := slowed(a, a.cfg.CheckTimeout/4)
		answers := decide(t.Context(), a, list...)
		again()
		verify(t, a, list, answers, 4*clockEvery-1)
	})
	bubbleAs(t, "asked by another node", func(t *testing.T) {
		a := newTestCluster(t, "a").nodes["a"]
		a.quorumUntil.Store(math.MaxInt64)
		records, replies := make([]check.Record, n), make([]check.Reply, n)
		for i, r := range requests(a, false) {
			records[i].Request = r.Request
		}
		slowed(a, a.cfg.CheckTimeout/4)
		a.Serve("b", records, replies)
		for i, got := range replies {
			want := check.Decided
			if i >= 4*clockEvery-1 {
				want = check.NotReady
			}
			if got.Status != want {
				t.Fatalf("record %d of %d: %+v", i, n, got)
			}
		}
	})
}

// TestRenewedMeanwhile: a large batch that takes longer than quorum lasted when it began counts, if that was renewed in time.
func TestRenewedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newTestCluster(t, "a").nodes["a"]
		var list []check.Request
		for i := range 10 * clockEvery {
			list = append(list, request(a, "a", i, hourly(10)))
		}
		clock, slow := a.cfg.Clock, int64(0)
		a.quorumUntil.Store(clock() + int64(250*time.Millisecond))
		a.cfg.Clock = func() int64 {
			slow += int64(100 * time.Millisecond)
			a.quorumUntil.Store(clock() + slow + int64(250*time.Millisecond))
			return clock() + slow
		}
		answers := decide(t.Context(), a, list...)
		a.cfg.Clock = clock
		for i, got := range answers {
			if got.Source != check.Owned || spent(a, list[i]) != 1 {
				t.Fatalf("check %d: %+v, %d spent", i, got, spent(a, list[i]))
			}
		}
	})
}

// TestLostQuorumRenewed: nor is a decision given away if quorum has been renewed by the time that a process which was stopped looks again:
// a check is asked again, what must not happen twice fails, and another node hears that the answer was lost.
func TestLostQuorumRenewed(t *testing.T) {
	for verb, spends := range map[bucket.Verb]int64{bucket.Check: 2, bucket.Refund: 0} {
		bubble(t, func(t *testing.T) {
			a := newTestCluster(t, "a", "b").nodes["a"]
			r := request(a, "a", 1, hourly(10))
			r.Verb = verb
			clock := a.cfg.Clock
			stopped := func() {
				a.quorumUntil.Store(clock() + int64(600*time.Millisecond))
				read := 0
				a.cfg.Clock = func() int64 {
					if read++; read == 1 {
						return clock()
					}
					if read == 2 {
						a.quorumUntil.Store(math.MaxInt64)
					}
					return clock() + int64(time.Second)
				}
			}
			stopped()
			answer := decide(t.Context(), a, r)[0]
			if verb == bucket.Refund {
				wantErr(t, "the refund", answer, check.ErrNoOwner)
			}
			if n := spent(a, r); n != spends {
				t.Errorf("%s: %d spent, want %d", verb, n, spends)
			}
			stopped()
			replies := make([]check.Reply, 1)
			a.Serve("b", []check.Record{{Request: r.Request}}, replies)
			if replies[0].Status != 0 {
				t.Errorf("%s: replied %+v, want what says that the answer was lost", verb, replies[0])
			}
		})
	}
}

// TestOwnerNotInView: a ring that is a moment older than the view names somebody who is not in it, which
// the next one mends: noNode gives up for that.
func TestOwnerNotInView(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(10))
		before := a.routing.Load()
		gap := newRouting(before.nodes, before.self, before.table)
		for i := range gap.owners {
			gap.owners[i] = noNode
		}
		a.reroute(gap)
		time.AfterFunc(20*time.Millisecond, func() {
			again := newRouting(before.nodes, before.self, before.table)
			copy(again.owners, before.owners)
			a.reroute(again)
		})
		if got := decide(t.Context(), a, r)[0]; got.Source != check.Forwarded || !got.Allowed {
			t.Errorf("answered %+v, %v, want the owner's answer", got, got.Err)
		}
	})
}
