package handoff

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// restarted is bob's next process.
var restarted = message.Peer{Name: bob.Name, Boot: bob.Boot + "2"}

// TestLapse: an owner that regains quorum after long enough for a voter to restart without its promises, which one did, claims
// its partitions again and keeps the counters. After a shorter time it continues as owner.
func TestLapse(t *testing.T) {
	for _, c := range []struct {
		name  string
		apart time.Duration
		bob   message.Peer
		goes  bool
	}{
		{"quorum all the time", 0, bob, true},
		{"without for 1 s", 1600 * time.Millisecond, restarted, true},
		{"without for 2 s", 2600 * time.Millisecond, restarted, false},
		{"without for 5 s, and all remember", 5600 * time.Millisecond, bob, true},
	} {
		s := newOwner(t, 0, 1)
		spend(t, s.table, 1, 4)
		s.pass(3 * time.Second) // the others have been heard for more than a grace
		s.heard = nil
		s.pass(c.apart)
		s.heard, s.sent = []message.Peer{c.bob, carol}, nil
		s.tells(c.bob, &message.OwnedPartitions{Seq: 2, Full: true})
		s.SetView(s.now, View{Members: []message.Peer{alice, c.bob, carol}, Owner: []int{0}, Replica: []int{1}})
		s.pass(40 * time.Millisecond)
		if !s.hasQuorum() {
			t.Fatalf("%s: alice has no quorum again", c.name)
		}
		if s.Owns(0) != c.goes {
			t.Fatalf("%s: that alice goes on is %v, want %v", c.name, s.Owns(0), c.goes)
		}
		if c.goes {
			continue
		}
		if l := lastTo[*message.OwnedPartitions](s, carol); l == nil || !l.Full || len(l.Partitions) > 0 {
			t.Errorf("%s: carol is told %+v, want that alice owns nothing", c.name, l)
		}
		for range 2 { // the probe and the claim
			s.grants(c.bob, message.ClaimResponse{Version: 1}, message.ClaimResponsePart{}) // in its grace
			s.grants(carol, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		}
		if !s.Owns(0) || s.parts[0].ownership.epoch.Gen != claimed || spent(t, s.table, 1) != 4 {
			t.Errorf("%s: after all have granted it: owned %v at %d, %d spent", c.name, s.Owns(0), s.parts[0].ownership.epoch.Gen, spent(t, s.table, 1))
		}
	}
}

// TestLapseEndsClaims: a waiting claim starts again too, because its votes may be forgotten.
func TestLapseEndsClaims(t *testing.T) {
	s := newScript(t)
	s.loses(carol)
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1, Acked: []message.Acked{{Boot: carol.Boot, Left: int64(650 * time.Millisecond)}}}, message.ClaimResponsePart{})
	if c := s.parts[0].claim; c == nil || c.stage != waitingOut {
		t.Fatalf("the claim does not wait: %+v", c)
	}
	s.now += int64(3 * time.Second) // alice was stopped, and bob restarted
	s.heard = []message.Peer{restarted}
	s.pass(20 * time.Millisecond)
	if c := s.parts[0].claim; !s.hasQuorum() || s.Owns(0) || c != nil && c.stage > probing {
		t.Errorf("quorum %v, owned %v, claim %+v; want that it begins anew", s.hasQuorum(), s.Owns(0), c)
	}
}

// TestCloseTakenAfterLapse: an owner gives up a handoff because of a lapse, but the next owner takes the close. It counts the
// former owner's state as a replica, so that becomes one, and takes its changes.
func TestCloseTakenAfterLapse(t *testing.T) {
	for _, listed := range []bool{true, false} { // else the change comes first
		s := newOwner(t, 1, 2, bob)
		spend(t, s.table, 1, 4)
		s.pass(3 * time.Second)
		if s.parts[0].phase != inHandoff {
			t.Fatal("alice does not hand off")
		}
		s.heard = nil
		s.pass(2600 * time.Millisecond)
		s.heard = []message.Peer{{Name: carol.Name, Boot: carol.Boot + "2"}, bob}
		s.pass(40 * time.Millisecond)
		if s.parts[0].isOwned() || !s.parts[0].state.closeAbandoned {
			t.Fatalf("no lapse: %+v", s.parts[0].state)
		}
		next, start := message.Epoch{Gen: owned + 1, Boot: bob.Boot}, message.Mark{Epoch: message.Epoch{Gen: owned, Boot: alice.Boot}, Seq: 4}
		if listed {
			s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: next.Gen, Start: start}}})
			if x, _ := s.State(0); x.Mark != (message.Mark{Epoch: next, Seq: 4}) || x.Start != start || x.Owned || !x.Complete {
				t.Errorf("bob owns it, and alice has %+v; want a replica", x)
			}
		}
		theirs := newTable(t)
		spend(t, theirs, 1, 7)
		s.from(bob, message.Part{Kind: message.InitialSync, Epoch: next, Start: start, Seq: 7}, theirs, 1)
		if x, _ := s.State(0); x.Mark != (message.Mark{Epoch: next, Seq: 7}) || !x.Complete || spent(t, s.table, 1) != 7 {
			t.Errorf("listed before %v: after a change alice has %+v, %d spent; want that it is taken", listed, x, spent(t, s.table, 1))
		}
	}
}

// TestClaimsOfOneGeneration: a claim ends when another process has the partition at the same generation, since a voter has
// granted both and forgotten the first. It does not matter which epoch is higher.
func TestClaimsOfOneGeneration(t *testing.T) {
	for _, c := range []struct {
		name string
		gen  uint64
		boot string
		ends bool
	}{
		{"another's, of the same", claimed, "z", true},
		{"another's, of the same and lower", claimed, "0", true},
		{"another's, above", claimed + 1, "z", true},
		{"another's, below", owned, "z", false},
		{"its own", claimed, alice.Boot, false},
	} {
		s := newSolo(t)
		p := &s.parts[0]
		p.known.epoch = message.Epoch{Gen: claimed, Boot: alice.Boot} // as it has granted itself
		p.claim = &claim{gen: claimed}
		s.learn(p, message.Epoch{Gen: c.gen, Boot: c.boot}, carol)
		if (p.claim == nil) != c.ends {
			t.Errorf("%s: the claim has ended: %v, want %v", c.name, p.claim == nil, c.ends)
		}
	}
}

// TestOwnerOfTheSameGeneration: while alice's claim waits, a process announces the partition at the same generation and a lower
// epoch. Alice claims again, and if that process is gone by then, its state is lost.
func TestOwnerOfTheSameGeneration(t *testing.T) {
	other := message.Peer{Name: carol.Name, Boot: "0"}
	for _, says := range []bool{true, false} {
		s := newScript(t)
		s.parts[0].phase, s.parts[0].state = replica, state{mark: at(owned, carol)}
		s.loses(carol)
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1, Acked: []message.Acked{{Boot: carol.Boot, Left: int64(400 * time.Millisecond)}}}, message.ClaimResponsePart{})
		if c := s.parts[0].claim; c == nil || c.stage != waitingOut {
			t.Fatalf("the claim does not wait: %+v", c)
		}
		if says {
			s.sent = nil
			s.tells(other, &message.OwnedPartitions{Seq: 1, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: claimed}}})
			s.pass(600 * time.Millisecond)
			if s.Owns(0) {
				t.Fatal("alice owns the partition by the claim that was under way")
			}
			for range 2 { // the probe and the claim
				s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
			}
		}
		s.pass(2 * time.Second)
		if !s.Owns(0) || s.lacks() != says {
			t.Errorf("the other says %v: alice owns the partition %v, and that counters are lost is %v", says, s.Owns(0), s.lacks())
		}
	}
}

// TestContestedEpoch: an owner that learns of another owner at its own generation, or at that of the process which handed off
// to it, stops deciding even if its epoch is higher: voters have forgotten a grant. Earlier owners do not matter.
func TestContestedEpoch(t *testing.T) {
	const gen = claimed + 1 // handed off once since the claim
	before := message.Epoch{Gen: claimed, Boot: carol.Boot}
	for _, c := range []struct {
		name  string
		gen   uint64
		boot  string
		stays bool
	}{
		{"its own generation", gen, "0", false},
		{"that of the process which handed it off", claimed, "0", false},
		{"the process which handed it off", claimed, carol.Boot, true},
		{"an earlier claim", owned, "0", true},
	} {
		s := newScript(t)
		s.becomeOwner(&s.parts[0], message.Epoch{Gen: gen, Boot: alice.Boot}, message.Mark{Epoch: before})
		s.tells(bob, &message.PendingGrants{Seq: 1, Grants: []message.PendingGrant{{Partition: 0, Gen: c.gen, Claimer: message.Peer{Name: "dave", Boot: c.boot}}}})
		if s.Owns(0) != c.stays {
			t.Errorf("%s: that alice decides is %v, want %v", c.name, s.Owns(0), c.stays)
		}
	}
}
