package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

// TestReplicaStaysUntilTheNext: when the ring names another replica node, the old replica is dropped only after the new one has
// all that it has: a crash in between loses nothing.
func TestReplicaStaysUntilTheNext(t *testing.T) {
	s := newScript(t)
	s.takers = []message.Peer{bob}
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Standby: []int{1}})
	s.owns(owned)
	spend(t, s.table, 1, 3)
	s.pass(200 * time.Millisecond)
	if n := s.Stats().Unprotected; n != 0 {
		t.Fatalf("%d partitions have no replica", n)
	}
	s.sent = nil
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Standby: []int{2}})
	s.pass(300 * time.Millisecond) // carol confirms nothing yet
	if sent := s.partsTo(carol); !slices.Contains(sent, message.Fill) {
		t.Fatalf("carol was sent %v", sent)
	}
	if slices.Contains(s.partsTo(bob), message.Drop) || s.Stats().Unprotected != 0 {
		t.Error("bob's replica is dropped before carol's is complete")
	}
	s.takers = []message.Peer{bob, carol}
	s.tells(carol, &message.Receipt{N: 1})
	s.pass(200 * time.Millisecond)
	if !slices.Contains(s.partsTo(bob), message.Drop) || s.Stats().Unprotected != 0 {
		t.Errorf("bob was sent %v, want that his replica is dropped now", s.partsTo(bob))
	}
}

// TestCloseIsNotGranted: an owner that has sent its close to a next owner that is in the view grants the partition to nobody
// else, however silent that one is: it may have opened the partition.
func TestCloseIsNotGranted(t *testing.T) {
	s := newScript(t)
	s.takers = []message.Peer{bob}
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{1}, Standby: []int{2}})
	s.owns(owned)
	for i := 0; s.parts[0].role != closing; i++ {
		if i == 50 {
			t.Fatal("alice does not hand over")
		}
		s.pass(20 * time.Millisecond)
	}
	probed := func() bool {
		s.sent = nil
		s.tells(carol, &message.Claim{ID: 1, Probe: true, Parts: []message.Claimed{{Partition: 0, Gen: claimed}}})
		s.pass(20 * time.Millisecond)
		g := lastTo[*message.Grant](s, carol)
		if g == nil || len(g.Parts) != 1 {
			t.Fatalf("answered %+v", g)
		}
		return g.Parts[0].OK
	}
	s.heard = []message.Peer{carol}
	s.pass(500 * time.Millisecond)
	if probed() {
		t.Error("alice would grant what bob may own by now")
	}
	s.SetView(s.now, View{Members: []message.Peer{alice, carol}, Owner: []int{1}, Standby: []int{0}})
	s.pass(3 * time.Second)
	if !probed() {
		t.Error("alice would not grant it, and bob is gone")
	}
}

// TestGateOfAnOrphan: an owner whose only replica node is gone decides little until a majority has heard from it since: it may
// be the one that is cut off, and would lose what it decides. That it still has quorum by what it sent before is not enough.
func TestGateOfAnOrphan(t *testing.T) {
	s := newScript(t)
	s.takers = []message.Peer{bob}
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Standby: []int{1}})
	s.owns(owned)
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
	s.SetView(s.now, View{Members: []message.Peer{alice, carol}, Owner: []int{0}, Standby: []int{1}})
	if !decides() {
		t.Error("nothing is decided while the oldest change is young")
	}
	s.pass(400 * time.Millisecond)
	if !s.may() {
		t.Fatal("alice has lost quorum")
	}
	if decides() {
		t.Error("it goes on alone, and nobody has heard from it since its replica was lost")
	}
	s.heard = []message.Peer{carol}
	s.pass(40 * time.Millisecond)
	if !decides() {
		t.Error("it does not go on, though a majority has heard from it")
	}
}
