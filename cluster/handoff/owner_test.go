package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestReplicaStaysUntilTheNext: when the ring names another replica node, the old replica is dropped only after the new one is
// complete: a crash in between loses nothing.
func TestReplicaStaysUntilTheNext(t *testing.T) {
	for name, c := range map[string]struct{ before, meanwhile int }{
		"nothing is charged":            {0, 0},
		"charged before":                {3, 0},
		"charged while carol is synced": {0, 2},
		"charged before, and meanwhile": {3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newOwner(t, 0, 1, bob)
			spend(t, s.table, 1, c.before)
			s.pass(200 * time.Millisecond)
			if n := s.Stats().Unprotected; n != 0 {
				t.Fatalf("%d partitions have no replica", n)
			}
			s.sent = nil
			keeps := func(when string) {
				t.Helper()
				if s.pass(100 * time.Millisecond); slices.Contains(s.partsTo(bob), message.Drop) || s.Stats().Unprotected != 0 {
					t.Errorf("%s: bob's replica is dropped", when)
				}
			}
			s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{2}})
			keeps("carol has confirmed nothing")
			spend(t, s.table, 1, c.meanwhile)
			if keeps("bob has more"); !slices.Contains(s.partsTo(carol), message.InitialSync) {
				t.Fatalf("carol was sent %v", s.partsTo(carol))
			}
			s.tells(carol, &message.Receipt{N: 1}) // of the initial sync
			if c.meanwhile > 0 {
				keeps("carol has the initial sync only")
			}
			s.takers = []message.Peer{bob, carol}
			s.pass(300 * time.Millisecond)
			if !slices.Contains(s.partsTo(bob), message.Drop) || s.Stats().Unprotected != 0 {
				t.Errorf("bob was sent %v, want that his replica is dropped when carol has all", s.partsTo(bob))
			}
		})
	}
}

// wouldGrantCarol makes carol probe, and reports alice's answer.
func (s *script) wouldGrantCarol() bool {
	s.t.Helper()
	s.sent = nil
	s.tells(carol, &message.Claim{ID: 1, Probe: true, Parts: []message.Claimed{{Partition: 0, Gen: claimed}}})
	s.pass(20 * time.Millisecond)
	g := lastTo[*message.ClaimResponse](s, carol)
	if g == nil || len(g.Parts) != 1 {
		s.t.Fatalf("answered %+v", g)
	}
	return g.Parts[0].OK
}

// TestStrandedIsGranted: an owner that is heard keeps its partition, unless it has sent its close to a next owner that is gone:
// it waits forever, and never decides again by itself.
func TestStrandedIsGranted(t *testing.T) {
	for _, c := range []struct {
		name      string
		nextOwner message.Peer
		after     time.Duration
		want      bool
	}{
		{"an owner", message.Peer{}, 2 * time.Second, false},
		{"a handoff under way", carol, 2 * time.Second, false},
		{"the next owner is gone, or not seen yet", dave, 500 * time.Millisecond, false},
		{"the next owner is gone", dave, 2 * time.Second, true},
	} {
		s := newScript(t)
		s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned, NextOwner: c.nextOwner}}})
		s.pass(c.after)
		if got := s.wouldGrantCarol(); got != c.want {
			t.Errorf("%s: alice would grant it: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestCloseIsNotGranted: an owner grants no claim of its partition. After it has sent its close to a next owner in the view, it
// grants the partition to no other node, however silent the next owner is: it may have opened it.
func TestCloseIsNotGranted(t *testing.T) {
	s := newOwner(t, 1, 2, bob)
	if s.wouldGrantCarol() {
		t.Error("alice would grant what she owns")
	}
	for i := 0; s.parts[0].phase != inHandoff; i++ {
		if i == 50 {
			t.Fatal("alice does not hand off")
		}
		s.pass(20 * time.Millisecond)
	}
	s.heard = []message.Peer{carol}
	s.pass(500 * time.Millisecond)
	if s.wouldGrantCarol() {
		t.Error("alice would grant what bob may own by now")
	}
	s.SetView(s.now, View{Members: []message.Peer{alice, carol}, Owner: []int{1}, Replica: []int{0}})
	s.pass(3 * time.Second)
	if !s.wouldGrantCarol() {
		t.Error("alice would not grant it, and bob is gone")
	}
}

// TestGateOfAnOrphan: an owner whose only replica node is lost decides little until a majority
// knows that: it may be isolated, and would lose its decisions. Quorum from earlier heartbeats is
// not enough.
func TestGateOfAnOrphan(t *testing.T) {
	s := newOwner(t, 0, 1, bob)
	s.pass(200 * time.Millisecond)
	decides := func() bool {
		_, _, v := s.table.Try(s.now, tenth(t, 1), nil)
		if v != bucket.Decided && v != bucket.Behind {
			t.Fatalf("verdict %d", v)
		}
		return v == bucket.Decided
	}
	s.heard, s.takers = nil, nil
	s.pass(20 * time.Millisecond)
	s.c.Quorum.Step(s.now, message.Envelope{From: bob, To: alice, ClusterID: clusterID, Body: &message.Heartbeat{Sent: s.now, Set: s.c.Quorum.Set(), Isolated: true, InSync: 1}})
	s.SetView(s.now, View{Members: []message.Peer{alice, carol}, Owner: []int{0}, Replica: []int{1}})
	if !decides() {
		t.Error("nothing is decided while the oldest change is young")
	}
	s.pass(400 * time.Millisecond)
	if !s.hasQuorum() {
		t.Fatal("alice has lost quorum")
	}
	if decides() {
		t.Error("it goes on alone, and nobody has heard from it since its replica was lost")
	}
	s.heard = []message.Peer{carol}
	s.pass(500 * time.Millisecond)
	if !decides() {
		t.Error("it does not go on, though a majority knows that its replica is lost")
	}
}

// TestReplicaAtAHiddenVoter: a voter that only gossip considers dead keeps its replica while it is heard, and gets one if there
// is no other node: without it a crash of the owner would lose everything since.
func TestReplicaAtAHiddenVoter(t *testing.T) {
	hidden := View{Members: []message.Peer{alice}, Owner: []int{0}, Replica: []int{-1}}
	for name, before := range map[string]View{
		"it has one":  {Members: []message.Peer{alice, bob}, Owner: []int{0}, Replica: []int{1}},
		"it has none": hidden,
	} {
		s := newScript(t)
		s.heard, s.takers = []message.Peer{bob}, []message.Peer{bob}
		s.pass(time.Second) // carol is silent
		s.SetView(s.now, before)
		s.owns(owned)
		s.pass(200 * time.Millisecond)
		s.SetView(s.now, hidden)
		s.sent = nil
		spend(t, s.table, 1, 3)
		s.pass(200 * time.Millisecond)
		if n := s.Stats().Unprotected; n != 0 || len(s.partsTo(bob)) == 0 {
			t.Errorf("%s: %d partitions have no replica, and bob was sent %v", name, n, s.partsTo(bob))
		}
		s.heard = nil
		s.pass(time.Second)
		if n := s.Stats().Unprotected; n != 1 {
			t.Errorf("%s: %d partitions have no replica, when bob is silent; want 1", name, n)
		}
	}
}

// TestReplicaStaysUntilTheHandoff: a replica on another node than the next owner stays until the handoff is complete, because
// the next owner may be lost before.
func TestReplicaStaysUntilTheHandoff(t *testing.T) {
	s := newOwner(t, 0, 2, bob, carol)
	s.pass(200 * time.Millisecond)
	s.sent = nil
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{1}, Replica: []int{2}})
	s.pass(300 * time.Millisecond)
	if !slices.Contains(s.partsTo(bob), message.Close) || slices.Contains(s.partsTo(carol), message.Drop) {
		t.Errorf("bob was sent %v, carol %v; want the close, and nothing dropped", s.partsTo(bob), s.partsTo(carol))
	}
	s.takesAll(bob)
	s.pass(100 * time.Millisecond)
	if s.Owns(0) || s.Stats().HandedOff != 1 || !slices.Contains(s.partsTo(carol), message.Drop) {
		t.Errorf("carol was sent %v, want that her replica is dropped after the handoff", s.partsTo(carol))
	}
}

// TestNextOwnerIsAwaited: the target of a handoff does not leave before the handoff is complete. The owner could not know
// whether it has taken the close and decided.
func TestNextOwnerIsAwaited(t *testing.T) {
	s := newScript(t)
	s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned, NextOwner: alice}}})
	if s.OnlyHere() != 1 {
		t.Errorf("alice would leave, and bob hands off to her")
	}
	s.tells(bob, &message.OwnedPartitions{Seq: 3, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
	if s.OnlyHere() != 0 {
		t.Errorf("alice would not leave, and bob has taken it back")
	}
	s.tells(bob, &message.OwnedPartitions{Seq: 4, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned, NextOwner: alice}}})
	s.heard = []message.Peer{carol}
	s.SetView(s.now, View{Members: []message.Peer{alice, carol}, Owner: []int{1}, Replica: []int{0}})
	if s.pass(3 * time.Second); s.OnlyHere() != 0 {
		t.Errorf("alice would not leave, and bob is gone")
	}
}

// TestNotServingGetsNothing: bob has begun to leave, but gossip still shows him serving. His receipts say that he is not
// serving, so he gets no partition until the view has caught up.
func TestNotServingGetsNothing(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		s := newOwner(t, 1, 1)
		s.pass(100 * time.Millisecond)
		s.tells(bob, &message.Receipt{N: 1, NotServing: leaves})
		s.pass(100 * time.Millisecond)
		if closed := slices.Contains(s.partsTo(bob), message.Close); closed == leaves {
			t.Errorf("bob leaves %v, and was handed the partition %v", leaves, closed)
		}
		if s.pass(time.Duration(fullListInterval) + time.Second); !slices.Contains(s.partsTo(bob), message.Close) {
			t.Errorf("bob leaves %v, and was not handed the partition in the end", leaves)
		}
	}

	s := newScript(t)
	for _, serves := range []bool{true, false} {
		s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{1}, Replica: []int{1}, Serves: []bool{serves, true, true}})
		s.from(bob, message.Part{Kind: message.InitialSync, Epoch: message.Epoch{Gen: owned, Boot: bob.Boot}, InitialSync: 1, Begin: true, End: true, Sum: addChecksum(0, nil)}, newTable(t))
		s.pass(20 * time.Millisecond)
		if r := lastTo[*message.Receipt](s, bob); r == nil || r.NotServing == serves {
			t.Errorf("alice serves %v and answers %+v", serves, r)
		}
	}
}
