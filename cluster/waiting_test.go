package cluster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// closes reports whether a message hands a partition off.
func closes(e message.Envelope) bool {
	transferBatch, ok := e.Body.(*message.TransferBatch)
	if !ok {
		return false
	}
	for _, p := range transferBatch.Parts {
		if p.Kind == message.Close {
			return true
		}
	}
	return false
}

// TestBehindTheClose: while a partition is between two owners, because its close is lost
// and has to be sent again, what is asked waits for the next owner, wherever it is
// asked, and is decided by it.
func TestBehindTheClose(t *testing.T) {
	running(t, "a b", func(t *testing.T, f *fleet) {
		keys := requests(60, hourly(10))
		decide(t.Context(), f.nodes["a"].Node, keys...)
		frozen := make(chan struct{}, 1)
		losingUntil := func(until time.Time) {
			f.loses(func(_, _ string, e message.Envelope) bool {
				if !closes(e) || time.Now().After(until) {
					return false
				}
				signal(frozen)
				return true
			})
		}
		losingUntil(time.Now().Add(time.Hour))
		c := f.start("c")
		f.serve(c)
		<-frozen
		losingUntil(time.Now().Add(150 * time.Millisecond))
		answers := make(chan []check.Answer)
		for _, n := range f.nodes {
			go func() { answers <- decide(t.Context(), n.Node, keys...) }()
		}
		start := time.Now()
		waited := map[string]bool{}
		for range f.nodes {
			for i, a := range <-answers {
				if a.Err != nil || !a.Allowed || a.Source != check.Owned && a.Source != check.Forwarded {
					t.Errorf("key %d: %+v", i, a)
				}
				waited[a.Owner] = true
			}
		}
		if took := time.Since(start); took < 100*time.Millisecond || took > 400*time.Millisecond || !waited["c"] {
			t.Errorf("it took %v, and %v decided: the test shows nothing", took, waited)
		}
		for i, a := range decide(t.Context(), c.Node, keys...) {
			if a.Remaining != 5 {
				t.Errorf("key %d: %d remaining, want 5", i, a.Remaining)
			}
		}
	})
}

// TestLater: what an owner cannot decide now is asked again, at the owner that it names.
func TestLater(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a, b := w.nodes["a"], w.nodes["b"]
		r := request(a, "b", 1, hourly(10))
		p := r.Key.Shard(31)
		b.table.Seal(p)
		answer := make(chan check.Answer)
		go func() { answer <- decide(t.Context(), a, r)[0] }()
		go func() { answer <- decide(t.Context(), b, r)[0] }()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if s := a.Stats(); s.NotReady < 3 || s.Retries < 3 || s.Forwarded != 0 || b.Stats().ServedNotReady != s.NotReady {
			t.Errorf("%+v", s)
		}
		b.table.Open(p, 0)
		for range 2 {
			if got := <-answer; got.Err != nil || got.Owner != "b" {
				t.Errorf("%+v", got)
			}
		}
		wantSpent(t, "by both", b, r, 2)
	})
}

// TestSync: a check of a sync rule is answered when a copy has its charge, here and at a
// distance; others do not wait, and nor does a denial.
func TestSync(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		a := f.nodes["a"]
		time.Sleep(time.Second)
		for i, r := range requests(20, hourly(2)) {
			owner := a.Ring().Owner(r.Key.Shard(31))
			hops := 2 * latency // to the owner and back
			if owner == "a" {
				hops = 0
			}
			for _, x := range []struct {
				sync, allowed bool
				want          time.Duration
			}{{false, true, hops}, {true, true, hops + 2*latency}, {true, false, hops}} {
				r.Sync = x.sync
				start := time.Now()
				answer := decide(t.Context(), a.Node, r)[0]
				if answer.Err != nil || answer.Owner != owner || answer.Allowed != x.allowed {
					t.Errorf("key %d, sync=%v: %+v", i, x.sync, answer)
				}
				if took := time.Since(start); took != x.want {
					t.Errorf("key %d, sync=%v, allowed=%v: %v, want %v", i, x.sync, x.allowed, took, x.want)
				}
			}
		}
	})
}

// TestSyncCrash: under sync, what was answered survives the crash of its owner at any
// moment.
func TestSyncCrash(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		const limit = 1000
		keys := requests(40, hourly(limit))
		for i := range keys {
			keys[i].Sync = true
		}
		var l load
		l.ask(f.nodes["a"].Node, keys)
		l.ask(f.nodes["c"].Node, keys)
		time.Sleep(333 * time.Millisecond)
		l.mu.Lock()
		before := l.answers
		l.mu.Unlock()
		f.kill("b")
		time.Sleep(2 * time.Second)
		f.allHeld(5 * time.Second)
		time.Sleep(10 * time.Second)
		admitted, _ := l.end()
		if before < 1000 {
			t.Errorf("%d answers before the crash: the test shows little", before)
		}
		for i, n := range admitted {
			if n > limit {
				t.Errorf("key %d: %d admitted, want at most %d", i, n, limit)
			} else if n < limit*9/10 {
				t.Errorf("key %d: only %d admitted", i, n)
			}
		}
	})
}

// TestSyncWhole: an all-or-nothing batch of sync rules and others is charged once, and given
// back whole.
func TestSyncWhole(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		time.Sleep(time.Second)
		a := f.nodes["a"]
		var all []check.Request
		for i, owner := range []string{"a", "b", "c", "b"} {
			r := request(a.Node, owner, i, hourly(10))
			r.Sync = i != 1
			all = append(all, r)
		}
		for i, answer := range decideAll(t.Context(), a.Node, all...) {
			if answer.Err != nil || !answer.Allowed {
				t.Errorf("check %d: %+v", i, answer)
			}
		}
		all[3].Cost = 99
		decideAll(t.Context(), a.Node, all...)
		time.Sleep(time.Second)
		for i, r := range all {
			wantSpent(t, fmt.Sprint("check ", i), f.nodes[string("abcb"[i])].Node, r, 1)
		}
	})
}
