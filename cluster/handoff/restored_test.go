package handoff

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// claims makes alice claim the partition, which no process owns, and bob grant it with what he has.
func (s *script) claims(bobs message.ClaimResponsePart) {
	s.t.Helper()
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{1}})
	s.pass(40 * time.Millisecond)
	for range 2 { // the probe and the claim
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, bobs)
		s.grants(carol, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
	}
	s.pass(2 * time.Second)
	if !s.Owns(0) {
		s.t.Fatalf("alice does not own the partition: %+v", s.parts[0].claim)
	}
}

// TestLossAfterRestart: a process that is started again, and has no state of a partition that was
// owned, knows that a takeover without a complete state lacks counters.
func TestLossAfterRestart(t *testing.T) {
	carols := message.Epoch{Gen: owned, Boot: carol.Boot}
	known := func(s *script) { s.RestoreOwned(0, carols) }
	unknown := func(s *script) { s.RestoreUnknown() }
	for _, c := range []struct {
		name     string
		restores func(s *script)
		phase    phase
		own      state
		bobs     message.ClaimResponsePart
		want     bool
	}{
		{"owned by carol", known, absent, state{}, message.ClaimResponsePart{}, true},
		{"the same, and a part of a state", known, syncing, state{mark: at(owned, carol)}, message.ClaimResponsePart{}, true},
		{"the same, and her replica", known, replica, state{mark: at(owned, carol)}, message.ClaimResponsePart{}, false},
		{"the same, and a replica of an earlier owner", known, replica, state{mark: at(owned-1, bob)}, message.ClaimResponsePart{}, true},
		{"at an unknown epoch", unknown, absent, state{}, message.ClaimResponsePart{}, true},
		{"the same, and a part of a state", unknown, syncing, state{mark: at(owned, carol)}, message.ClaimResponsePart{}, true},
		{"the same, and a replica", unknown, replica, state{mark: at(owned, carol)}, message.ClaimResponsePart{}, false},
		{"the same, and bob knows a later owner", unknown, replica, state{mark: at(owned, carol)}, message.ClaimResponsePart{LastOwned: message.Epoch{Gen: owned + 1, Boot: "d1"}}, true},
		{"only bob lost his snapshot", func(*script) {}, absent, state{}, message.ClaimResponsePart{LastOwned: unknownEpoch}, true},
		{"never owned", func(*script) {}, absent, state{}, message.ClaimResponsePart{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(t)
			c.restores(s)
			s.parts[0].phase, s.parts[0].state = c.phase, c.own
			s.claims(c.bobs)
			if s.lacks() != c.want {
				t.Errorf("that counters are lost is %v: %+v", !c.want, s.parts[0].ownership.loss)
			}
		})
	}
}

// TestUnknownLossEnds: a complete state of any epoch ends a loss of an unknown epoch.
func TestUnknownLossEnds(t *testing.T) {
	s := newScript(t)
	s.RestoreUnknown()
	s.claims(message.ClaimResponsePart{})
	counters := newTable(t)
	spend(t, counters, 2, 3)
	s.inTwo(carol, message.Part{Kind: message.Merge, InitialSync: 1, Epoch: message.Epoch{Gen: owned, Boot: carol.Boot}}, counters, 2)
	if s.lacks() || spent(t, s.table, 2) != 3 {
		t.Errorf("after a merge: %+v", s.parts[0].ownership.loss)
	}
}

// TestClaimAboveUnknownEpochs: a claim of a partition that was owned at an unknown epoch is above
// every earlier claim, and other claims count on from the known epoch.
func TestClaimAboveUnknownEpochs(t *testing.T) {
	s := newScript(t)
	p := &s.parts[0]
	s.started = int64(1_800_000_000 * time.Second)
	if got := s.nextClaim(p); got != 1<<message.Handoffs {
		t.Errorf("never owned: %d", got)
	}
	s.RestoreUnknown()
	if got, want := s.nextClaim(p), uint64(1_800_000_001)<<message.Handoffs; got != want {
		t.Errorf("of an unknown epoch: %d, want %d", got, want)
	}
	s.RestoreOwned(0, message.Epoch{Gen: owned, Boot: carol.Boot})
	if got, want := s.nextClaim(p), message.NextClaim(owned); got != want {
		t.Errorf("of a known epoch: %d, want %d", got, want)
	}
}

// TestOwnerOfRestoredEpoch: a process is started again while the owner of a restored epoch goes on.
// It knows that owner as soon as it announces the partition.
func TestOwnerOfRestoredEpoch(t *testing.T) {
	for name, restores := range map[string]func(s *script){
		"state": func(s *script) { s.Restore(0, at(owned, carol), message.Mark{}, false) },
		"epoch": func(s *script) { s.RestoreOwned(0, message.Epoch{Gen: owned, Boot: carol.Boot}) },
	} {
		s := newScript(t)
		restores(s)
		s.tells(carol, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
		if got := s.Owner(0); got != carol {
			t.Errorf("%s: the owner is %+v", name, got)
		}
	}
}

// TestStateTellsLastOwned: a snapshot can tell the last owner's epoch of a partition of which this
// process has no state.
func TestStateTellsLastOwned(t *testing.T) {
	s := newScript(t)
	if st, ok := s.State(0); ok || st.LastOwned != (message.Epoch{}) {
		t.Errorf("never owned: %+v, %v", st, ok)
	}
	s.tells(carol, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
	if st, ok := s.State(0); ok || st.LastOwned != (message.Epoch{Gen: owned, Boot: carol.Boot}) {
		t.Errorf("owned by carol: %+v, %v", st, ok)
	}
}
