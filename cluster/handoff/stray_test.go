package handoff

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestStrayMessages: messages for an earlier run, of another cluster, or overtaken by a later one change nothing.
func TestStrayMessages(t *testing.T) {
	owns := &message.OwnedPartitions{Seq: 1, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}}
	for _, c := range []struct {
		name  string
		to    message.Peer
		of    string
		after uint64 // the number of a list that came before
		taken bool
	}{
		{"for this run", alice, clusterID, 0, true},
		{"for an earlier run", message.Peer{Name: "a", Boot: "a0"}, clusterID, 0, false},
		{"of another cluster", alice, "another", 0, false},
		{"overtaken", alice, clusterID, 2, false},
	} {
		s := newSolo(t)
		if c.after > 0 {
			s.receiveOwned(bob, &message.OwnedPartitions{Seq: c.after, Full: true})
		}
		s.Step(1, message.Envelope{From: bob, To: c.to, ClusterID: c.of, Body: owns})
		if taken := s.parts[0].known.owner == bob; taken != c.taken {
			t.Errorf("%s: that bob owns it is taken as known: %v, want %v", c.name, taken, c.taken)
		}
	}
}

// TestStrayFetch: a state is sent only to the claimer that it was offered to, as it was offered, once.
func TestStrayFetch(t *testing.T) {
	offered := message.Mark{Epoch: message.Epoch{Gen: owned, Boot: carol.Boot}, Seq: 5}
	for _, c := range []struct {
		name  string
		from  message.Peer
		fetch message.Fetch
		want  int
	}{
		{"as offered", bob, message.Fetch{Gen: claimed, State: offered}, 1},
		{"another state", bob, message.Fetch{Gen: claimed, State: message.Mark{Epoch: offered.Epoch, Seq: 4}}, 0},
		{"an earlier claim", bob, message.Fetch{Gen: owned, State: offered}, 0},
		{"another claimer", carol, message.Fetch{Gen: claimed, State: offered}, 0},
		{"no such partition", bob, message.Fetch{Partition: 1, Gen: claimed, State: offered}, 0},
	} {
		s := newSolo(t)
		p := &s.parts[0]
		p.phase, p.state = replica, state{mark: offered, from: carol}
		p.known = knowledge{epoch: message.Epoch{Gen: claimed, Boot: bob.Boot}, owner: bob}
		for range 2 {
			s.Step(1, message.Envelope{From: c.from, To: alice, ClusterID: clusterID, Body: &c.fetch})
		}
		if n := len(p.state.answers); n != c.want {
			t.Errorf("%s: answered %d times, want %d", c.name, n, c.want)
		}
	}
}

// TestStrayAnswer: a claim is won only by the state that was fetched for it, from the process that offered it.
func TestStrayAnswer(t *testing.T) {
	best := message.Mark{Epoch: message.Epoch{Gen: owned, Boot: carol.Boot}, Seq: 9}
	for _, c := range []struct {
		name string
		from message.Peer
		gen  uint64
		wins bool
	}{
		{"what was fetched", bob, claimed, true},
		{"for an earlier claim", bob, claimed - 1<<message.Handoffs, false},
		{"of another node", carol, claimed, false},
	} {
		s := newSolo(t)
		s.claims(claimed, best)
		theirs := newTable(t)
		spend(t, theirs, 2, 3)
		s.inTwo(c.from, message.Part{Kind: message.Answer, Epoch: best.Epoch, Seq: best.Seq, InitialSync: 7, Next: message.Epoch{Gen: c.gen}}, theirs, 2)
		if s.Owns(0) != c.wins {
			t.Errorf("%s: that alice owns it is %v, want %v", c.name, s.Owns(0), c.wins)
		}
	}
}

// TestStrayDrop: word that a copy is of no use, which was on its way when the partition came here and went back to the sender once more, does
// not take the copy that is left of that. Nor does one take it from a claim: the replica meant to replace it may be lost with the owner.
func TestStrayDrop(t *testing.T) {
	before := message.Epoch{Gen: 1<<message.Handoffs + 1, Boot: bob.Boot}
	now := message.Epoch{Gen: 1<<message.Handoffs + 4, Boot: bob.Boot}
	for _, c := range []struct {
		name  string
		epoch message.Epoch
		claim *claim
		gone  bool
	}{
		{"of before", before, nil, false},
		{"of now", now, nil, true},
		{"of an older peer, which does not say", message.Epoch{}, nil, true},
		{"while it is claimed", now, &claim{gen: claimed, request: &claimRequest{id: 1, parts: []int{0}}, stage: waitingOut}, false},
	} {
		s := newSolo(t)
		spend(t, s.table, 1, 4)
		s.parts[0].known = knowledge{epoch: now, owner: bob, status: ownerAnnounced}
		s.parts[0].phase, s.parts[0].state = replica, state{mark: message.Mark{Epoch: now, Seq: 4}, from: bob}
		s.parts[0].claim = c.claim
		s.from(bob, message.Part{Kind: message.Drop, Epoch: c.epoch}, newTable(t))
		if gone := s.parts[0].completeness() != message.Complete; gone != c.gone || !gone && spent(t, s.table, 1) != 4 {
			t.Errorf("word %s: that the copy is gone is %v, want %v", c.name, gone, c.gone)
		}
	}
}

// TestStrayClose: a close makes the next owner only of a complete replica from the initial sync that it names.
func TestStrayClose(t *testing.T) {
	epoch := message.Epoch{Gen: owned, Boot: bob.Boot}
	for _, c := range []struct {
		name        string
		ends        bool
		initialSync uint64 // that the close names
		takes       bool
	}{
		{"of what is whole", true, 7, true},
		{"before the end", false, 7, false},
		{"of another initial sync", true, 6, false},
	} {
		s := newSolo(t)
		theirs := newTable(t)
		spend(t, theirs, 1, 3)
		part := message.Part{Kind: message.InitialSync, Epoch: epoch, InitialSync: 7, Begin: true}
		s.from(bob, part, theirs, 1)
		part.Begin, part.End, part.Sum = false, c.ends, s.sum(theirs, 1)
		s.from(bob, part, theirs)
		s.from(bob, message.Part{
			Kind: message.Close, Epoch: epoch, InitialSync: c.initialSync, Sum: addChecksum(part.Sum, nil), Next: message.Epoch{Gen: owned + 1, Boot: alice.Boot},
		}, theirs)
		if s.Owns(0) != c.takes {
			t.Errorf("%s: that alice owns it is %v, want %v", c.name, s.Owns(0), c.takes)
		}
	}
}
