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

// TestRestOfAMergeIsKept: what has come of a divergent copy is merged once its sender is gone.
func TestRestOfAMergeIsKept(t *testing.T) {
	s := newScript(t)
	s.owns(owned)
	counters := newTable(t)
	spend(t, counters, 2, 3)
	part := message.Part{Kind: message.Merge, InitialSync: 1, Epoch: message.Epoch{Gen: owned - 1, Boot: carol.Boot}, Begin: true}
	s.from(carol, part, counters, 2)
	s.heard = []message.Peer{bob}
	s.pass(time.Second)
	if got := spent(t, s.table, 2); got != 0 {
		t.Errorf("before all has come, %d are spent", got)
	}
	again := message.Peer{Name: carol.Name, Boot: "c2"}
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, again}, Owner: []int{0}, Replica: []int{1}})
	if got := spent(t, s.table, 2); got != 3 || len(s.parts[0].ownership.merging) != 0 {
		t.Errorf("once carol is gone, %d are spent, want 3", got)
	}
}
