package handoff

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestRunsAreForgotten: a peer that is restarted repeatedly leaves no state behind.
func TestRunsAreForgotten(t *testing.T) {
	s := newSolo(t)
	for run := range 100 {
		peer := message.Peer{Name: "b", Boot: fmt.Sprintf("b%03d", run)}
		s.SetView(int64(run), View{Members: []message.Peer{alice, peer, carol}, Owner: []int{0}, Replica: []int{1}})
		s.Step(int64(run), message.Envelope{From: peer, To: alice, ClusterID: clusterID, Body: &message.OwnedPartitions{Seq: 1, Full: true}})
		s.Step(int64(run), message.Envelope{From: peer, To: alice, ClusterID: clusterID, Body: &message.TransferBatch{N: 1}})
		s.pendingGrantsSent[peer] = sentPendingGrants{}
		s.Tick(int64(run))
	}
	// One that is silent may come back.
	s.SetView(100, View{Members: []message.Peer{alice, carol}, Owner: []int{0}, Replica: []int{1}})
	if len(s.announced) != 1 || len(s.pendingGrantsSent) != 1 || len(s.channels) > 2 {
		t.Errorf("remembers %d lists, pending grants for %d and %d channels", len(s.announced), len(s.pendingGrantsSent), len(s.channels))
	}
}

// TestNewRunIsKept: state about a boot that is heard stays while gossip still shows the previous boot, so its transfer batches
// keep their numbering.
func TestNewRunIsKept(t *testing.T) {
	s := newScript(t)
	again := message.Peer{Name: bob.Name, Boot: bob.Boot + "2"}
	s.heard = []message.Peer{again, carol}
	s.pass(200 * time.Millisecond)
	s.tells(again, &message.TransferBatch{N: 1})
	for _, c := range []struct {
		shown message.Peer
		heard bool
		kept  bool
	}{{bob, true, true}, {again, true, true}, {bob, false, false}} {
		if !c.heard {
			s.heard = []message.Peer{carol}
			s.pass(time.Second)
		}
		s.SetView(s.now, View{Members: []message.Peer{alice, c.shown, carol}, Owner: []int{0}, Replica: []int{1}})
		kept := slices.ContainsFunc(s.channels, func(ch *channel) bool { return ch.peer == again && ch.taken == 1 })
		if kept != c.kept {
			t.Errorf("gossip shows %s, the new run is heard %v: its channel is kept: %v, want %v", c.shown.Boot, c.heard, kept, c.kept)
		}
	}
}

// TestSyncAfterARestart: an initial sync that was in progress to a process that has crashed and is back under its name does not keep others
// away, though the crashed one was heard just now.
func TestSyncAfterARestart(t *testing.T) {
	s := newScript(t)
	s.owns(owned)
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{1}})
	spend(t, s.table, 1, 3)
	s.pass(60 * time.Millisecond)
	if !slices.Contains(s.partsTo(bob), message.InitialSync) {
		t.Fatalf("bob was sent %v", s.partsTo(bob))
	}
	again := message.Peer{Name: bob.Name, Boot: "b2"}
	s.heard, s.takers = []message.Peer{again, carol}, []message.Peer{again}
	s.SetView(s.now, View{Members: []message.Peer{alice, again, carol}, Owner: []int{0}, Replica: []int{1}})
	s.pass(2 * time.Second)
	if n := s.Stats().Unprotected; n != 0 || len(s.partsTo(again)) == 0 {
		t.Errorf("%d partitions have no replica, bob was sent %v", n, s.partsTo(again))
	}
}

// TestRestOfAMergeIsKept: what has come of a divergent copy is merged once its sender is gone, or
// the partition is handed off. If the sender comes back, its next part is rejected, so that it
// begins again.
func TestRestOfAMergeIsKept(t *testing.T) {
	again := message.Peer{Name: carol.Name, Boot: "c2"}
	for _, c := range []struct {
		name string
		view View
	}{
		{"restarted", View{Members: []message.Peer{alice, bob, again}, Owner: []int{0}, Replica: []int{1}}},
		{"gone", View{Members: []message.Peer{alice, bob}, Owner: []int{0}, Replica: []int{1}}},
		{"handoff", View{Members: []message.Peer{alice, bob, carol}, Owner: []int{1}, Replica: []int{1}}},
	} {
		s := newOwner(t, 0, 1, bob)
		counters := newTable(t)
		spend(t, counters, 2, 3)
		part := message.Part{Kind: message.Merge, InitialSync: 1, Epoch: message.Epoch{Gen: owned - 1, Boot: carol.Boot}, Begin: true}
		s.from(carol, part, counters, 2)
		s.heard = []message.Peer{bob}
		s.pass(time.Second)
		if got := spent(t, s.table, 2); got != 0 {
			t.Errorf("%s: before all has come, %d are spent", c.name, got)
		}
		s.sent = nil
		s.SetView(s.now, c.view)
		s.pass(time.Second)
		if got := spent(t, s.table, 2); got != 3 || len(s.parts[0].ownership.merging) != 0 {
			t.Errorf("%s: %d are spent, want 3", c.name, got)
		}
		if c.name == "handoff" {
			parts := slices.Compact(s.partsTo(bob)) // the close is sent again and again
			if want := []message.Kind{message.InitialSync, message.Close}; !slices.Equal(parts, want) {
				t.Errorf("%s: bob was sent %v, want a change and then the close", c.name, parts)
			}
		}
		if c.name == "restarted" {
			continue // that process does not come back
		}
		part.Begin, part.End = false, true
		if s.from(carol, part, counters, 2); len(lastReceipt(t, s, carol).Rejected) != 1 {
			t.Errorf("%s: a further part is not rejected", c.name)
		}
	}
}

// TestNoMergeWithoutQuorum: an owner without quorum takes no divergent copy, nor merges the rest of
// one: another process may own the partition.
func TestNoMergeWithoutQuorum(t *testing.T) {
	s := newScript(t)
	s.owns(owned)
	counters := newTable(t)
	spend(t, counters, 2, 3)
	part := message.Part{Kind: message.Merge, InitialSync: 1, Epoch: message.Epoch{Gen: owned - 1, Boot: carol.Boot}, Begin: true}
	s.from(carol, part, counters, 2)
	s.heard = nil
	s.SetView(s.now, View{Members: []message.Peer{alice}, Owner: []int{0}, Replica: []int{0}})
	for s.hasQuorum() {
		s.pass(20 * time.Millisecond)
	}
	s.pass(200 * time.Millisecond)
	part.InitialSync, part.End, part.Sum = 2, true, s.sum(counters, 2)
	s.from(bob, part, counters, 2)
	if got, r := spent(t, s.table, 2), lastReceipt(t, s, bob); s.parts[0].phase != owning || got != 0 || len(r.Rejected) != 1 {
		t.Errorf("%d are spent, want 0; the answer is %+v", got, r)
	}
}
