package cluster

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// stopped makes n lose the right while it decides: from the last of so many readings on, its clock
// shows a time after the end of the right.
func stopped(n *Node, reading int) { stoppedUntil(n, reading, func() {}) }

// stoppedUntil is stopped, and calls renewed at that reading.
func stoppedUntil(n *Node, reading int, renewed func()) {
	clock := n.cfg.Clock
	n.right.Store(clock() + int64(600*time.Millisecond))
	read := 0
	n.cfg.Clock = func() int64 {
		now := clock()
		if read++; read >= reading {
			now += int64(time.Second)
		}
		if read == reading {
			renewed()
		}
		return now
	}
}

// TestOverslept: a decision during which the process was stopped for longer than the right lasts is not
// given away, because another may have decided meanwhile.
func TestOverslept(t *testing.T) {
	for name, c := range map[string]struct {
		sync    bool
		reading int
	}{
		"the fast way": {false, 2},
		"the long way": {true, 4}, // it also reads to see what is remembered, and where checks go
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "a", "b")
				a := w.nodes["a"]
				r := request(a, "a", 1, hourly(10))
				r.OnPartition = rules.FailClosed
				r.Sync = c.sync
				stopped(a, c.reading)
				answers := decide(t.Context(), a, r)
				if got := answers[0]; got.Source != check.Closed || got.Allowed {
					t.Errorf("answered %+v, want on_partition's", got)
				}
				if n := spent(a, r); n != 1 {
					t.Errorf("%d spent, want the charge to stand", n)
				}
			})
		})
	}
}

// TestOversleptRenewed: nor if the right has been renewed by the time that the process looks again.
func TestOversleptRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		r := request(a, "a", 1, hourly(10))
		renewed := func() { a.right.Store(math.MaxInt64) }
		stoppedUntil(a, 2, renewed)
		decide(t.Context(), a, r)
		if n := spent(a, r); n != 2 {
			t.Errorf("%d spent, want the charge to stand, and that of asking again", n)
		}
		stoppedUntil(a, 2, renewed)
		replies := make([]check.Reply, 1)
		a.Serve("b", []check.Record{{Request: r.Request}}, replies)
		if replies[0].Status != 0 {
			t.Errorf("replied %+v, want what says that the answer was lost", replies[0])
		}
	})
}

// TestOversleptRefund: what must not happen twice is not asked again.
func TestOversleptRefund(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		r := request(a, "a", 1, hourly(10))
		r.Verb = bucket.Refund
		stopped(a, 2)
		wantErr(t, "the refund", decide(t.Context(), a, r)[0], check.ErrNoHolder)
	})
}

// TestOversleptServing: nor is it given to the node that asked.
func TestOversleptServing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		r := request(a, "a", 1, hourly(10))
		stopped(a, 2)
		replies := make([]check.Reply, 1)
		a.Serve("b", []check.Record{{Request: r.Request}}, replies)
		if replies[0].Status != 0 {
			t.Errorf("replied %+v, want what says that the answer was lost", replies[0])
		}
	})
}

// TestOwnerNotInView: a ring that is a moment older than the view names somebody who is not in it, which
// the next one mends: nobody gives up for that.
func TestOwnerNotInView(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		r := request(a, "b", 1, hourly(10))
		before := a.routing.Load()
		gap := newRouting(before.nodes, before.self, before.table)
		for i := range gap.holders {
			gap.holders[i] = nobody
		}
		a.reroute(gap)
		time.AfterFunc(20*time.Millisecond, func() {
			again := newRouting(before.nodes, before.self, before.table)
			copy(again.holders, before.holders)
			a.reroute(again)
		})
		if got := decide(t.Context(), a, r)[0]; got.Source != check.Forwarded || !got.Allowed {
			t.Errorf("answered %+v, %v, want the holder's answer", got, got.Err)
		}
	})
}
