package cluster

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// TestWhere: answers say who decided, and one batch makes one call per other owner.
func TestWhere(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		limits := hourly(10)
		var requests []check.Request
		for i := range 100 {
			for _, owner := range []string{"c", "a", "b"} {
				requests = append(requests, request(a, owner, i%50, limits))
			}
		}
		for i, answer := range decide(t.Context(), a, requests...) {
			owner, source := []string{"c", "a", "b"}[i%3], check.Forwarded
			if owner == "a" {
				source = check.Owned
			}
			wantAnswer(t, fmt.Sprint(i), answer, true, source, owner)
			if want := int64(9 - i/150); answer.Remaining != want {
				t.Errorf("check %d: %d remain, want %d: the order of a key's checks is not that of the batch", i, answer.Remaining, want)
			}
		}
		calls := w.callsSoFar()
		if len(calls) != 2 || len(calls[0].records) != 100 || len(calls[1].records) != 100 || calls[0].to == calls[1].to {
			t.Errorf("%d calls, want one of 100 records to b and one to c", len(calls))
		}
		if s := a.Stats(); s.Owned != 100 || s.Forwarded != 200 || s.Forwards != 200 || s.Retries != 0 {
			t.Errorf("%+v", s)
		}
		if s := w.nodes["b"].Stats(); s.Served != 100 || s.NotOwner != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// barrier is a Peers whose calls wait for each other.
type barrier struct {
	wire
	arrived chan string
	pass    chan struct{}
}

func (b barrier) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	b.arrived <- addr
	<-b.pass
	return b.wire.Call(ctx, addr, records, replies)
}

// TestAtOnce: the calls of a batch and its local part run at the same time, and a
// lone forwarded check runs on the goroutine that asks.
func TestAtOnce(t *testing.T) {
	posed(t, "b c", func(t *testing.T, w *testCluster) {
		gate := barrier{wire{w, "a"}, make(chan string), make(chan struct{})}
		a := w.add("a", func(c *Config) { c.Peers = gate })
		w.agree(2)
		limits := hourly(10)
		local, toB, toC := request(a, "a", 1, limits), request(a, "b", 1, limits), request(a, "c", 1, limits)
		done := make(chan []check.Answer)
		go func() { done <- decide(t.Context(), a, toB, local, toC) }()
		if first, second := <-gate.arrived, <-gate.arrived; first == second {
			t.Errorf("two calls to %s", first)
		}
		synctest.Wait()
		wantSpent(t, "the local part, which does not wait for the others", a, local, 1)
		close(gate.pass)
		for i, answer := range <-done {
			if !answer.Allowed {
				t.Errorf("check %d: %+v", i, answer)
			}
		}
		before := runtime.NumGoroutine()
		go func() { done <- decide(t.Context(), a, toB) }()
		<-gate.arrived
		if now := runtime.NumGoroutine(); now > before+1 {
			t.Errorf("a forwarded check runs %d goroutines, want the requester's alone", now-before)
		}
		<-done
	})
}

// TestVerbs: all verbs do at a distance what they do at home.
func TestVerbs(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		for _, owner := range []string{"a", "b"} {
			r := request(w.nodes["a"], owner, 1, hourly(10))
			for i, step := range []struct {
				verb      bucket.Verb
				cost      int64
				allowed   bool
				remaining int64
			}{
				{bucket.Check, 4, true, 6},
				{bucket.Read, 7, false, 6},
				{bucket.Check, 7, false, 6},
				{bucket.Refund, 2, true, 8},
				{bucket.Charge, 20, true, 0},
				{bucket.Check, 0, false, 0},
				{bucket.Refund, 13, true, 1},
				{bucket.Check, 1, true, 0},
				{bucket.Reset, 0, true, 10},
				{bucket.Check, 1, true, 9},
			} {
				r.Verb, r.Cost = step.verb, step.cost
				a := decide(t.Context(), w.nodes["a"], r)[0]
				if a.Err != nil || a.Allowed != step.allowed || a.Remaining != step.remaining {
					t.Errorf("held by %s, step %d: %+v; want allowed=%v and %d remaining", owner, i, a, step.allowed, step.remaining)
				}
			}
		}
	})
}

// TestServeRejects: records that no node of this version would send are answered as
// invalid, and their neighbours are decided.
func TestServeRejects(t *testing.T) {
	posed(t, "a", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		good := request(a, "a", 1, hourly(10)).Request
		broken := []func(*bucket.Request){
			func(r *bucket.Request) { r.Limits = nil },
			func(r *bucket.Request) { r.Cost = -1 },
			func(r *bucket.Request) { r.Verb = 99 },
			func(r *bucket.Request) { r.Verb, r.Limits = bucket.Reset, nil },
		}
		records := []check.Record{{Request: good}}
		for _, breaks := range broken {
			r := good
			breaks(&r)
			records = append(records, check.Record{Request: r}, check.Record{Request: r, Undoable: true, ID: 1})
		}
		records = append(records, check.Record{Request: good})
		replies := make([]check.Reply, len(records))
		a.Serve("x-boot", records, replies)
		for i, r := range replies {
			want := check.Invalid
			if i == 0 || i == len(records)-1 {
				want = check.Decided
			}
			if r.Status != want {
				t.Errorf("record %d: %+v, want status %d", i, r, want)
			}
		}
	})
}

// TestQuorumEnds: from the very instant at which quorum ends nothing is decided, by no
// way into the node; what was decided just before is not given away after it, because another may have decided
// meanwhile, and its charge stands.
func TestQuorumEnds(t *testing.T) {
	for _, left := range []int64{-1, 0, 1, 2, 3, 4} { // reads of the clock until quorum ends
		posed(t, "b", func(t *testing.T, w *testCluster) {
			var now atomic.Int64
			a := w.add("a", func(c *Config) { c.Clock = func() int64 { return now.Add(1) } })
			w.agree(2)
			local, away := request(a, "a", 1, hourly(10)), request(a, "b", 1, hourly(10))
			local.OnPartition = rules.FailClosed
			confirmed := local
			confirmed.Sync = true
			ownedBy := func(x check.Answer) bool {
				if x.Source != check.Owned && (x.Source != check.Closed || x.Allowed) {
					t.Errorf("answered %+v, want on_partition's", x)
				}
				return x.Source == check.Owned
			}
			for name, ask := range map[string]func() bool{
				"owned": func() bool { return ownedBy(decide(t.Context(), a, local)[0]) },
				"sync":  func() bool { return ownedBy(decide(t.Context(), a, confirmed)[0]) },
				"mixed": func() bool { return ownedBy(decide(t.Context(), a, away, local)[1]) },
				"whole": func() bool { return ownedBy(decideAll(t.Context(), a, local, local)[1]) },
				"served": func() bool {
					replies := make([]check.Reply, 1)
					a.Serve("b-boot", []check.Record{{Request: local.Request}}, replies)
					if replies[0].Status == check.NotReady && replies[0].Owner != "" {
						t.Errorf("%+v: it says to ask itself again", replies[0])
					}
					return replies[0].Status == check.Decided
				},
			} {
				before := a.table.Stats().Inserted
				a.quorumUntil.Store(now.Load() + 1 + left)
				decided := ask()
				// The fast way and Serve read when they decide, and again when they have;
				// the others once before to see where checks go, and what others hold may be
				// answered from memory before that.
				reads := map[string]int64{"sync": 2, "mixed": 2, "whole": 1}[name]
				want := left > reads // what is charged is answered if quorum lasts one more
				if decided != (left > reads+1) {
					t.Errorf("%s, with %d reads left: decided=%v", name, left, decided)
				}
				if changed := a.table.Stats().Inserted != before; changed != want {
					t.Errorf("%s, with %d reads left: charged=%v", name, left, changed)
				}
				a.table.DropShard(local.Key.Shard(31))
			}
		})
	}
}
