package cluster

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/snapshot"
)

// loseTransfers makes these transfer batches get lost, but nothing else.
func (f *fleet) loseTransfers(lost func(from, to string) bool) {
	f.loses(func(from, to string, e message.Envelope) bool {
		_, transfer := e.Body.(*message.TransferBatch)
		return transfer && lost(from, to)
	})
}

// TestOwnDecisionsInASnapshot: a node crashes right after a snapshot with decisions that no replica had yet. When it is back,
// these are divergent state, and are merged; as an old replica they would be dropped.
func TestOwnDecisionsInASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		keys := requests(60, hourly(10))
		f := kept(t, keys, "a", "b", "c")
		f.within(5*time.Second, "replicas have it", f.nodes["a"].Settled)
		f.loseTransfers(func(from, _ string) bool { return from == "a" })
		decide(t.Context(), f.nodes["a"].Node, keys...) // 3 left of each
		f.save("a")
		f.crash("a")
		f.loses(nil)
		f.allHeld(5 * time.Second)
		f.serve(f.start("a"))
		f.eventually(10*time.Second, "a has its own again", func() bool { return f.nodes["a"].Stats().Partitions.Owned > 5 })
		f.eventually(10*time.Second, "what a brought is merged", func() bool { return f.nodes["a"].Stats().Partitions.Divergent == 0 })
		f.allHeld(time.Second)
		f.wantLeft(keys, 3)
	})
}

// TestLeaverWritesNoReplicas: a node that has handed off and left the voters, and was not told that its replicas are dropped,
// writes none of them: later they would be stale.
func TestLeaverWritesNoReplicas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := kept(t, requests(60, hourly(10)), "a", "b", "c")
		a := f.nodes["a"]
		f.loseTransfers(func(_, to string) bool { return to == "a" }) // a drop travels in one
		f.state("a", member.Leaving)
		f.eventually(5*time.Second, "a owns nothing", func() bool { return a.Stats().Partitions.Owned == 0 })
		f.within(5*time.Second, "a is no voter", a.LeaveSet)
		if n := a.Stats().Partitions.Replicas; n == 0 {
			t.Fatal("a has no replica that it could write")
		}
		if totals := f.save("a"); totals.Complete != 0 {
			t.Errorf("a wrote %+v", totals)
		}
	})
}

// TestMarkIsNoLaterThanCounters: checks go on while a partition is read. The mark in the snapshot is one whose changes are
// all in the counters: else the snapshot would win a takeover from a replica that has more.
func TestMarkIsNoLaterThanCounters(t *testing.T) {
	table, restored := tableOf(t, 1), tableOf(t, 1)
	r := &bucket.Request{Limits: hourly(10), Cost: 1}
	var seq uint64
	c := copier{table: table, clock: steadyClock(), state: func(context.Context, int) (handoff.State, bool, error) {
		table.Do(time.Now().UnixNano(), r) // one more, just before each look
		seq++
		return handoff.State{Mark: message.Mark{Seq: seq}, Complete: true, Owned: true}, true, nil
	}}
	file := written(t, 1, func(w *snapshot.Writer) error { return c.partition(t.Context(), w, 0) })
	s, err := file.Next()
	must(t, err)
	im, err := file.Image()
	must(t, err)
	must(t, restored.Import(time.Now().UnixNano(), 0, im, im.Data, im.Counters, false))
	if _, err := file.Next(); err != io.EOF {
		t.Errorf("a second section: error %v", err)
	}
	d := restored.Do(time.Now().UnixNano(), &bucket.Request{Limits: r.Limits, Cost: 1, Verb: bucket.Read})
	if got := uint64(d.Limit - d.Remaining); s.Mark.Seq == 0 || s.Mark.Seq > got {
		t.Errorf("the mark is %d, and %d charges are in the counters", s.Mark.Seq, got)
	}
}
