package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestLeftOutReplica: an owner that has left a replica out counts nothing as replicated until a
// majority knows that, though another replica has everything.
func TestLeftOutReplica(t *testing.T) {
	s := newScript(t)
	s.takers = []message.Peer{bob, carol}
	s.shows([]message.Peer{alice, bob, carol}, 0, 1, -1)
	s.owns(owned)
	s.pass(300 * time.Millisecond)
	s.unlisted = []message.Peer{bob, carol}
	s.shows([]message.Peer{alice, bob, carol}, 0, 2, -1) // carol's replica replaces bob's
	s.pass(300 * time.Millisecond)
	spend(t, s.table, 1, 3)
	s.pass(300 * time.Millisecond)
	if h := &s.parts[0].ownership; len(h.targets) != 1 || h.targets[0].ch.peer != carol || h.targets[0].acked != 3 {
		t.Fatalf("%+v; want carol's replica alone, with 3 changes", h.targets)
	}
	if got := s.Confirmed(0); got == 3 {
		t.Error("a change is confirmed, and no other process knows that bob's replica is out of date")
	}
	s.unlisted = nil
	s.pass(300 * time.Millisecond)
	if got := s.Confirmed(0); got != 3 {
		t.Errorf("confirmed is %d though a majority knows of bob's replica; want 3", got)
	}
}

// TestSlowInSyncReplica: while a replica is being replaced, a change is confirmed when both nodes
// have it.
func TestSlowInSyncReplica(t *testing.T) {
	s := newScript(t)
	s.takers = []message.Peer{bob, carol}
	s.shows([]message.Peer{alice, bob, carol}, 0, 1, -1)
	s.owns(owned)
	s.pass(300 * time.Millisecond)
	p := &s.parts[0]
	p.ownership.targets = append(p.ownership.targets, &target{part: p, ch: s.channel(carol), kind: message.InitialSync, initialSync: 9, stage: complete})
	s.confirm(p)
	if h := p.ownership.inSync(); h.Excludes(9) || h.Excludes(p.ownership.targets[0].initialSync) || !h.Excludes(8) {
		t.Errorf("in sync are %+v; want both replicas", h)
	}
	p.ownership.targets[0].acked = 5
	s.confirm(p)
	if got := s.Confirmed(0); got != 0 {
		t.Errorf("confirmed is %d, and carol has nothing", got)
	}
}

// TestReplicaThatLacksConfirmedChanges: a complete replica that lacks confirmed changes is not in
// sync, though it is the only one left.
func TestReplicaThatLacksConfirmedChanges(t *testing.T) {
	s := newScript(t)
	s.takers = []message.Peer{bob}
	s.shows([]message.Peer{alice, bob, carol}, 0, 1, -1)
	s.owns(owned)
	spend(t, s.table, 1, 5)
	s.pass(300 * time.Millisecond)
	p := &s.parts[0]
	late := &target{part: p, ch: s.channel(carol), kind: message.InitialSync, initialSync: 9, stage: complete, begun: true, acked: 4}
	p.ownership.targets = append(p.ownership.targets, late)
	s.abandon(p.ownership.targets[0])
	if got := s.Confirmed(0); got != 5 || late.inSync {
		t.Errorf("confirmed is %d, and that carol is in sync with 4 changes is %v; want 5 and false", got, late.inSync)
	}
	late.acked = 5
	if s.confirm(p); !late.inSync {
		t.Error("carol has all confirmed changes and is not in sync")
	}
}

// TestLeftOutReplicaEndsNoLoss: of two replicas of a lost owner, the one that was in sync is merged
// and ends the loss; the one that was left out does not.
func TestLeftOutReplicaEndsNoLoss(t *testing.T) {
	carols, bobs := at(owned, carol), message.Epoch{Gen: claimed, Boot: bob.Boot}
	for _, c := range []struct {
		sync uint64
		want bool
	}{{3, false}, {7, true}} {
		s := newScript(t)
		s.parts[0].phase, s.parts[0].state = replica, state{mark: carols, sync: c.sync + 1}
		s.tells(bob, &message.OwnedPartitions{Seq: 2, Partitions: []message.OwnedPartition{{Gen: bobs.Gen, Start: at(owned-1, carol), Loss: message.Loss{
			Last: carols.Epoch, LastCertain: carols.Epoch, Age: 5, InSync: message.InSync{Number: 4, Syncs: [4]uint64{7 + 1}},
		}}}})
		if got := s.parts[0].phase == divergent; got != c.want {
			t.Errorf("sync %d: that it is to be merged is %v", c.sync, got)
		}
	}
}

// TestContainedStateEndsALoss: the owner began with all of this state, but does not know that
// nothing else is lost. So the state is merged, and no initial sync replaces it before.
func TestContainedStateEndsALoss(t *testing.T) {
	alices := at(owned, alice)
	bobs := message.Epoch{Gen: claimed, Boot: bob.Boot}
	s := newScript(t)
	s.takers = []message.Peer{bob}
	s.parts[0].phase, s.parts[0].state, s.parts[0].ownEpochs = divergent, state{mark: alices}, []message.Epoch{alices.Epoch}
	s.tells(bob, &message.OwnedPartitions{Seq: 2, Partitions: []message.OwnedPartition{{Gen: bobs.Gen, Start: alices, Loss: message.Loss{
		Last: alices.Epoch, LastCertain: alices.Epoch, Age: 5,
	}}}})
	if s.takePart(bob, &s.parts[0], &message.Part{Kind: message.InitialSync, InitialSync: 1, Epoch: bobs, Start: alices, Begin: true, Loss: message.Loss{
		Last: alices.Epoch, LastCertain: alices.Epoch, Age: 5,
	}}, &message.TransferBatch{}, nil) {
		t.Error("an initial sync replaces the state that ends the loss")
	}
	s.pass(300 * time.Millisecond)
	if kinds := s.partsTo(bob); len(kinds) != 1 || kinds[0] != message.Merge {
		t.Errorf("bob was sent %v; want a merge", kinds)
	}
}

// TestNewReplicaHasMore: of complete copies of one epoch the one with the most changes is taken. If
// the claim does not know yet that it is in sync, a copy that is known to be, and that has fewer
// changes, shows that it lacks none that were confirmed.
func TestNewReplicaHasMore(t *testing.T) {
	epoch := at(owned, carol).Epoch
	copyOf := func(peer message.Peer, sync, seq uint64) offer {
		return offer{peer: peer, has: message.Complete, mark: message.Mark{Epoch: epoch, Seq: seq}, sync: sync + 1}
	}
	for _, c := range []struct {
		name   string
		offers []offer
		best   uint64 // its initial sync
		lacks  bool
	}{
		{"in sync alone", []offer{copyOf(bob, 7, 58)}, 7, false},
		{"left out alone", []offer{copyOf(bob, 3, 58)}, 3, true},
		{"left out, with fewer", []offer{copyOf(alice, 3, 40), copyOf(bob, 7, 58)}, 7, false},
		{"new, with more", []offer{copyOf(alice, 7, 58), copyOf(bob, 9, 60)}, 9, false},
		{"new, with as many", []offer{copyOf(alice, 9, 58), copyOf(bob, 7, 58)}, 7, false},
		{"the other copy is from a snapshot", []offer{{peer: alice, has: message.Complete, mark: message.Mark{Epoch: epoch, Seq: 58}}, copyOf(bob, 9, 60)}, 9, true},
		{"the copy in sync is partial", []offer{{peer: alice, has: message.Partial, mark: message.Mark{Epoch: epoch, Seq: 58}, sync: 7 + 1}, copyOf(bob, 9, 60)}, 9, true},
	} {
		s := newScript(t)
		p := &s.parts[0]
		p.lastOwned, p.inSync = epoch, message.InSync{Number: 4, Syncs: [4]uint64{7 + 1}}
		slices.SortFunc(c.offers, func(a, b offer) int { return s.better(p, a, b) })
		if best := c.offers[0]; best.sync != c.best+1 || p.lacksConfirmed(&best, c.offers) != c.lacks {
			t.Errorf("%s: the best is %+v, and that it lacks confirmed changes is %v", c.name, best, !c.lacks)
		}
	}
}

// TestHandoffPastAnInSyncReplica: the last changes before a handoff, which the next owner has and an
// in-sync replica lacks, are confirmed when a majority knows of the handoff. Until then a claim may
// continue from that replica.
func TestHandoffPastAnInSyncReplica(t *testing.T) {
	for _, carols := range []string{"has all", "lacks changes", "was left out before"} {
		s := newOwner(t, 0, 2, bob, carol)
		all, waits := []message.Peer{alice, bob, carol}, carols != "has all"
		s.pass(200 * time.Millisecond)
		s.sent = nil
		if waits {
			s.takers, s.unlisted = []message.Peer{bob}, all
		}
		if carols == "was left out before" {
			s.abandon(s.parts[0].ownership.targets[0])
		}
		s.SetView(s.now, View{Members: all, Owner: []int{1}, Replica: []int{2}})
		spend(t, s.table, 1, 3)
		s.pass(100 * time.Millisecond)
		if !slices.Contains(s.partsTo(bob), message.Close) {
			t.Fatalf("%s: bob was sent %v, want the close", carols, s.partsTo(bob))
		}
		s.takesAll(bob)
		if got := s.Confirmed(0); s.parts[0].phase != replica || (got == 3) == waits {
			t.Errorf("%s: phase %v, %d confirmed", carols, s.parts[0].phase, got)
		}
		s.sent, s.unlisted = nil, nil
		s.pass(3 * time.Second)
		if got := s.Confirmed(0); got != 3 {
			t.Errorf("%s: %d confirmed, want 3 when bob and carol know it", carols, got)
		}
		told := false
		for _, e := range s.sent {
			b, ok := e.Body.(*message.OwnedPartitions)
			told = told || ok && slices.ContainsFunc(b.Partitions, func(p message.OwnedPartition) bool {
				return p.Gen == owned && p.NextOwner == bob && p.InSync.Excludes(1)
			})
		}
		if told != waits {
			t.Errorf("%s: that it is announced after the handoff: %v, want %v", carols, told, waits)
		}
	}
}

// TestHandoffClaimedSince: a former owner does not wait for a majority that has granted the partition
// to a claimer meanwhile: it does not report the handoff, and other partitions would wait as well.
func TestHandoffClaimedSince(t *testing.T) {
	s := newScript(t)
	p := &s.parts[0]
	p.phase = replica
	p.handedOff = handedOff{number: s.inSyncChanges + 1, seq: 3, announced: message.OwnedPartition{Gen: owned, NextOwner: bob}}
	s.inSyncChanges, s.anyUntold = s.inSyncChanges+1, true
	s.unlisted = []message.Peer{bob, carol}
	s.pass(200 * time.Millisecond)
	if !s.anyUntold {
		t.Fatal("nothing waits for a majority")
	}
	s.tells(carol, &message.OwnedPartitions{Seq: 2, Partitions: []message.OwnedPartition{{Gen: claimed}}})
	s.pass(200 * time.Millisecond)
	if s.anyUntold || p.handedOff.number != 0 {
		t.Errorf("%+v still waits, and carol has claimed the partition", p.handedOff)
	}
	if got := s.Confirmed(0); got == 3 {
		t.Error("the changes before the handoff are confirmed")
	}
}
