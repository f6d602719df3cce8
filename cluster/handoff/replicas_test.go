package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// shows has alice see the members, all of which serve, with these owner and replica nodes.
func (s *script) shows(members []message.Peer, owner, first, second int) {
	serves := make([]bool, len(members))
	for i := range serves {
		serves[i] = true
	}
	s.SetView(s.now, View{Members: members, Owner: []int{owner}, Replica: []int{first}, Second: []int{second}, Serves: serves})
}

// newPair returns alice, who owns the partition and wants two replicas, at bob and carol; takers confirm batches.
func newPair(t *testing.T, takers ...message.Peer) *script {
	t.Helper()
	s := newScript(t)
	s.c.Replicas, s.takers = 2, takers
	s.shows([]message.Peer{alice, bob, carol}, 0, 1, 2)
	s.owns(owned)
	spend(t, s.table, 1, 1)
	s.pass(300 * time.Millisecond)
	return s
}

// TestSecondReplicaComesAfterTheFirst: of two initial syncs one runs at a time, and the first replica alone confirms until the
// second is complete.
func TestSecondReplicaComesAfterTheFirst(t *testing.T) {
	s := newPair(t)
	if to := s.partsTo(carol); !slices.Contains(s.partsTo(bob), message.InitialSync) || len(to) > 0 {
		t.Fatalf("bob was sent %v, carol %v; want the initial sync of bob alone", s.partsTo(bob), to)
	}
	s.takers = []message.Peer{bob}
	s.pass(200 * time.Millisecond)
	if n := s.Stats(); !slices.Contains(s.partsTo(carol), message.InitialSync) || n.Unprotected != 0 || n.BelowReplicas != 1 || s.Confirmed(0) != 1 {
		t.Fatalf("carol was sent %v, confirmed %d, %+v; want her initial sync, and that bob confirms", s.partsTo(carol), s.Confirmed(0), n)
	}
	s.takers = []message.Peer{bob, carol}
	s.pass(200 * time.Millisecond)
	if n := s.Stats(); n.Unprotected != 0 || n.BelowReplicas != 0 {
		t.Errorf("%+v, want two replicas", n)
	}
}

// TestBothReplicasConfirm: a change is confirmed when both replicas have it, and decisions wait for the slower one until it is
// abandoned. So any two of the three nodes may be lost at once.
func TestBothReplicasConfirm(t *testing.T) {
	for _, slow := range []message.Peer{bob, carol} {
		s := newPair(t, bob, carol)
		quick := bob
		if slow == bob {
			quick = carol
		}
		decides := func() bool {
			_, _, v := s.table.Try(s.now, tenth(t, 2), nil)
			return v == bucket.Decided
		}
		s.takers = []message.Peer{quick}
		if !decides() {
			t.Fatal("nothing is decided with two replicas")
		}
		s.pass(100 * time.Millisecond)
		if got := s.Confirmed(0); got != 1 || decides() {
			t.Errorf("%s has confirmed nothing: confirmed is %d, want 1, and no decision", slow.Name, got)
		}
		s.takers = []message.Peer{bob, carol}
		s.pass(200 * time.Millisecond)
		if got := s.Confirmed(0); got != 2 || !decides() {
			t.Errorf("both have confirmed: confirmed is %d, want 2, and decisions", got)
		}
		s.takers, s.heard = []message.Peer{quick}, []message.Peer{quick}
		s.shows([]message.Peer{alice, quick}, 0, 1, -1)
		s.pass(time.Second)
		if n := s.Stats(); s.Confirmed(0) != 3 || !decides() || n.BelowReplicas != 0 {
			t.Errorf("%s is gone: confirmed is %d, want 3, by %s alone, and decisions; %+v", slow.Name, s.Confirmed(0), quick.Name, n)
		}
	}
}

// TestReplicaStaysUntilBoth: an unwanted replica stays until both wanted ones have everything confirmed.
func TestReplicaStaysUntilBoth(t *testing.T) {
	s := newPair(t, bob, carol)
	s.sent = nil
	s.shows([]message.Peer{alice, bob, carol, dave}, 0, 1, 3)
	s.pass(200 * time.Millisecond)
	if !slices.Contains(s.partsTo(dave), message.InitialSync) || slices.Contains(s.partsTo(carol), message.Drop) {
		t.Fatalf("dave was sent %v, carol %v; want the initial sync, and nothing dropped", s.partsTo(dave), s.partsTo(carol))
	}
	s.takers = append(s.takers, dave)
	s.pass(200 * time.Millisecond)
	if !slices.Contains(s.partsTo(carol), message.Drop) || slices.Contains(s.partsTo(bob), message.Drop) {
		t.Errorf("carol was sent %v, bob %v; want that carol's is dropped", s.partsTo(carol), s.partsTo(bob))
	}
}

// TestCopyAtUnreachablePeer: the copy of a node that could not be reached while another became the replica is dropped when it can be
// reached again. The node waits for that if it leaves, because its copy may be the only one.
func TestCopyAtUnreachablePeer(t *testing.T) {
	for _, shown := range []bool{true, false} { // as a member, meanwhile
		s := newScript(t)
		s.takers = []message.Peer{bob, carol}
		s.shows([]message.Peer{alice, bob, carol}, 0, 1, -1)
		s.owns(owned)
		spend(t, s.table, 1, 1)
		s.pass(300 * time.Millisecond)
		if n := s.Stats(); n.Unprotected != 0 || slices.Contains(s.partsTo(bob), message.Drop) || len(s.partsTo(carol)) > 0 {
			t.Fatalf("%+v, want that bob alone has a copy", n)
		}
		s.takers, s.heard = []message.Peer{carol}, []message.Peer{carol}
		if shown {
			s.shows([]message.Peer{alice, bob, carol}, 0, 2, -1)
		} else {
			s.shows([]message.Peer{alice, carol}, 0, 1, -1)
		}
		s.pass(2 * time.Second)
		if n := s.Stats(); n.Unprotected != 0 {
			t.Fatalf("%+v, want that carol has a copy", n)
		}
		s.sent, s.takers, s.heard = nil, []message.Peer{bob, carol}, []message.Peer{bob, carol}
		s.shows([]message.Peer{alice, bob, carol}, 0, 2, -1)
		s.pass(time.Second)
		if !slices.Contains(s.partsTo(bob), message.Drop) {
			t.Errorf("shown %v: bob was sent %v, want that his copy is dropped", shown, s.partsTo(bob))
		}
	}
}

// TestHandoffLeavesReplicas: after a handoff the other replica of the former owner stays: the next owner has only one yet.
func TestHandoffLeavesReplicas(t *testing.T) {
	s := newPair(t, bob, carol)
	s.sent = nil
	s.shows([]message.Peer{alice, bob, carol}, 1, 0, 2)
	s.pass(300 * time.Millisecond)
	if !slices.Contains(s.partsTo(bob), message.Close) {
		t.Fatalf("bob was sent %v, want the close", s.partsTo(bob))
	}
	s.takesAll(bob)
	s.pass(100 * time.Millisecond)
	if s.Owns(0) || slices.Contains(s.partsTo(carol), message.Drop) {
		t.Errorf("carol was sent %v, want that her replica stays", s.partsTo(carol))
	}
}

// TestReplicaOfFormerOwner: the replica of a former owner is dropped once the owner has as many replicas as it wants.
func TestReplicaOfFormerOwner(t *testing.T) {
	s := newScript(t)
	s.parts[0].phase, s.parts[0].state = replica, state{mark: message.Mark{Epoch: message.Epoch{Gen: owned, Boot: bob.Boot}, Seq: 4}, from: bob, initialSync: 1}
	now := message.OwnedPartition{Partition: 0, Gen: owned + 1}
	s.tells(carol, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{now}})
	s.pass(20 * time.Second)
	if _, ok := s.State(0); !ok {
		t.Fatal("the replica is dropped, and the owner has not said that it has enough")
	}
	now.Replicated = true
	s.tells(carol, &message.OwnedPartitions{Seq: 3, Full: true, Partitions: []message.OwnedPartition{now}})
	s.pass(200 * time.Millisecond)
	if x, ok := s.State(0); ok {
		t.Errorf("%+v stays, though the owner has enough replicas", x)
	}
}

// TestFormerReplicaIsSyncedLast: a node with the state from before a takeover drops it when its initial sync begins, so another
// node comes first.
func TestFormerReplicaIsSyncedLast(t *testing.T) {
	s := newScript(t)
	s.c.Replicas = 2
	s.shows([]message.Peer{alice, bob, carol}, 0, 1, 2)
	s.parts[0].claim = &claim{states: []offer{{peer: bob, has: message.Complete}, {peer: carol, has: message.Partial}}}
	s.owns(owned)
	s.pass(200 * time.Millisecond)
	if !slices.Contains(s.partsTo(carol), message.InitialSync) || len(s.partsTo(bob)) > 0 {
		t.Fatalf("carol was sent %v, bob %v; want the initial sync of carol alone", s.partsTo(carol), s.partsTo(bob))
	}
	s.takers = []message.Peer{carol}
	s.pass(200 * time.Millisecond)
	if !slices.Contains(s.partsTo(bob), message.InitialSync) {
		t.Errorf("carol has a replica, and bob was sent %v", s.partsTo(bob))
	}
}

// TestSecondReplicaServes: a second replica is not kept on a leaving node, which would wait forever until it is not needed.
func TestSecondReplicaServes(t *testing.T) {
	s := newScript(t)
	s.c.Replicas, s.takers = 2, []message.Peer{bob, carol}
	s.SetView(s.now, View{
		Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{1}, Second: []int{-1}, Serves: []bool{true, true, false},
	})
	s.owns(owned)
	s.pass(300 * time.Millisecond)
	if n := s.Stats(); len(s.partsTo(carol)) > 0 || n.BelowReplicas != 0 || n.Unprotected != 0 {
		t.Errorf("carol was sent %v, %+v; want bob's replica alone", s.partsTo(carol), n)
	}
}

// TestLossAfterLateReceipts: receipts of repeatedly resent batches are late. If a transfer batch is lost after these, it is
// resent before the replica counts as stalled and is abandoned.
func TestLossAfterLateReceipts(t *testing.T) {
	s := newOwner(t, 0, 1, bob)
	s.pass(200 * time.Millisecond)
	ch := s.channel(bob)
	for range 40 {
		s.pass(100 * time.Millisecond)
		ch.rtt.Add(s.now, int64(2*time.Second))
	}
	s.takers = nil
	spend(t, s.table, 1, 1)
	s.pass(100 * time.Millisecond) // the change is sent, and lost
	s.takers = []message.Peer{bob}
	s.pass(time.Second)
	if n := s.Stats(); ch.unavailable || len(ch.inFlight) > 0 || n.Unprotected != 0 {
		t.Errorf("bob is let go: %v, %d transfer batches have no receipt, which is waited for for %v", ch.unavailable, len(ch.inFlight), time.Duration(s.resendAfter(ch)))
	}
}
