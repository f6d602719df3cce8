package handoff

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// lacks reports whether alice's table has lost counters: a key without a check so far is denied.
func (s *script) lacks() bool {
	s.t.Helper()
	r := *tenth(s.t, 9)
	r.Verb, r.DenyLost = bucket.Read, true
	d, _, v := s.table.Try(s.now, &r, nil)
	if v != bucket.Decided {
		s.t.Fatalf("verdict %d", v)
	}
	if d.Lost == d.Allowed {
		s.t.Fatalf("%+v", d)
	}
	return d.Lost
}

// takesOver makes alice claim what carol owned at the epoch owned, with bob's grant.
func takesOver(t *testing.T, phase phase, own state, bobs message.ClaimResponsePart) *script {
	s := newScript(t)
	s.parts[0].phase, s.parts[0].state = phase, own
	s.loses(carol)
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, bobs)
	s.pass(2 * time.Second)
	if !s.Owns(0) {
		t.Fatal("alice does not own the partition")
	}
	return s
}

func at(gen uint64, p message.Peer) message.Mark {
	return message.Mark{Epoch: message.Epoch{Gen: gen, Boot: p.Boot}, Seq: 7}
}

// reports sends alice a divergent copy of an epoch without counters, that lacks what it says. Without an initial sync it is a report that
// the sender never owned the partition at that epoch.
func (s *solo) reports(from message.Peer, initialSync uint64, epoch message.Epoch, lacks message.Loss) {
	s.t.Helper()
	s.from(from, message.Part{
		Kind: message.Merge, InitialSync: initialSync, Epoch: epoch, Begin: true, End: true, Sum: addChecksum(0, nil), Loss: lacks,
	}, newTable(s.t))
}

// TestLoss: a takeover has lost counters unless it continues from a complete state of the last epoch at which a process may
// have owned the partition.
func TestLoss(t *testing.T) {
	carols := at(owned, carol)
	knows := message.InSync{Number: 4, Syncs: [4]uint64{7 + 1}}
	for _, c := range []struct {
		name  string
		phase phase
		own   state
		bobs  message.ClaimResponsePart
		want  bool
	}{
		{"no state", absent, state{}, message.ClaimResponsePart{}, true},
		{"a part of a state", syncing, state{mark: carols}, message.ClaimResponsePart{}, true},
		{"the last owner's replica", replica, state{mark: carols}, message.ClaimResponsePart{}, false},
		{"a replica of an earlier owner", replica, state{mark: at(owned-1, bob)}, message.ClaimResponsePart{}, true},
		{"bob knows of a later owner", replica, state{mark: carols}, message.ClaimResponsePart{LastOwned: message.Epoch{Gen: owned + 1, Boot: "d1"}}, true},
		{"bob had granted it to a process that is gone", replica, state{mark: carols}, message.ClaimResponsePart{MaybeOwned: message.Epoch{Gen: owned + 1, Boot: "d1"}}, true},
		{"bob had been granted it, and did not take it", replica, state{mark: carols}, message.ClaimResponsePart{MaybeOwned: message.Epoch{Gen: owned + 1, Boot: bob.Boot}}, false},
		{"a replica that lacks counters", replica, state{mark: carols, loss: loss{last: message.Epoch{Gen: 1, Boot: "d1"}, since: 1}}, message.ClaimResponsePart{}, true},
		{"a replica that was left out", replica, state{mark: carols, sync: 3 + 1}, message.ClaimResponsePart{LastOwned: carols.Epoch, InSync: knows}, true},
		{"a replica in sync", replica, state{mark: carols, sync: 7 + 1}, message.ClaimResponsePart{LastOwned: carols.Epoch, InSync: knows}, false},
		{"bob does not know which are in sync", replica, state{mark: carols, sync: 3 + 1}, message.ClaimResponsePart{LastOwned: carols.Epoch}, false},
		{"the owner's own state", replica, state{mark: carols}, message.ClaimResponsePart{LastOwned: carols.Epoch, InSync: knows}, false},
		{"in-sync replicas of an earlier epoch", replica, state{mark: carols, sync: 3 + 1}, message.ClaimResponsePart{LastOwned: at(owned-1, carol).Epoch, InSync: knows}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := takesOver(t, c.phase, c.own, c.bobs)
			if s.lacks() != c.want {
				t.Errorf("that counters are lost is %v", !c.want)
			} else if (s.Stats().Lost == 1) != c.want {
				t.Errorf("%+v", s.Stats())
			}
			if l := s.parts[0].ownership.loss; c.want && c.bobs.InSync == knows && (l.inSync != knows || !l.complete.Less(l.last)) {
				t.Errorf("the loss is %+v; want the in-sync replicas that end it", l)
			}
		})
	}
}

// TestKeepsWhatGrantersTold: alice's claim fails, and bob claims with a higher epoch. Her grant reports what she knew and what
// she was told: the last owner, and another process that was granted the partition and may have owned it. She herself never
// owned it.
func TestKeepsWhatGrantersTold(t *testing.T) {
	carols, daves := message.Epoch{Gen: owned + 1, Boot: carol.Boot}, message.Epoch{Gen: owned + 2, Boot: dave.Boot}
	s := newScript(t)
	s.loses(carol)
	s.tells(bob, &message.PendingGrants{Seq: 1, Grants: []message.PendingGrant{{Partition: 0, Gen: daves.Gen, Claimer: dave}}})
	s.pass(200 * time.Millisecond)
	bobs := message.ClaimResponsePart{LastOwned: carols, Has: message.Complete, State: message.Mark{Epoch: carols, Seq: 5}}
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, bobs)
	if lastTo[*message.Fetch](s, bob) == nil {
		t.Fatalf("alice does not fetch what bob has: %+v", s.parts[0].claim)
	}
	s.tells(bob, &message.Claim{ID: 7, Parts: []message.Claimed{{Partition: 0, Gen: 3 << message.Handoffs}}})
	s.pass(20 * time.Millisecond)
	g := lastTo[*message.ClaimResponse](s, bob)
	if g == nil || !g.Parts[0].OK {
		t.Fatalf("alice answers %+v", g)
	}
	if p := g.Parts[0]; p.LastOwned != carols || p.MaybeOwned != daves {
		t.Errorf("alice knows of the owner %+v, and that it was granted at %+v; want %+v and %+v", p.LastOwned, p.MaybeOwned, carols, daves)
	}
}

// TestAwaitsWhoMayHaveOwned: carol, whom bob had granted the partition, is back just before alice wins it. She is asked first,
// and has not owned it; if she does not answer, alice does not wait for long.
func TestAwaitsWhoMayHaveOwned(t *testing.T) {
	for _, says := range []bool{true, false} {
		s := newScript(t)
		s.parts[0].phase, s.parts[0].state = replica, state{mark: at(owned, carol)}
		s.loses(carol)
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		later := message.Epoch{Gen: owned + 1, Boot: carol.Boot}
		acked := []message.Acked{{Boot: carol.Boot, Left: int64(400 * time.Millisecond)}}
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1, Acked: acked}, message.ClaimResponsePart{MaybeOwned: later})
		until := s.parts[0].claim.waitUntil
		s.pass(time.Duration(until-s.now) - 20*time.Millisecond)
		s.sent = nil
		s.heard = []message.Peer{bob, carol}
		for s.pass(20 * time.Millisecond); says && lastTo[*message.Claim](s, carol) == nil && s.now < until+int64(time.Second); {
			s.pass(20 * time.Millisecond)
		}
		if says {
			if s.Owns(0) {
				t.Fatal("alice owns the partition, and carol was not asked")
			}
			s.grants(carol, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		}
		s.pass(time.Second)
		if !s.Owns(0) || s.lacks() == says {
			t.Errorf("carol says %v: alice owns the partition %v, and that counters are lost is %v", says, s.Owns(0), s.lacks())
		}
	}
}

// TestOwnClaimHidesNobody: alice knows that carol was granted the partition, and her own claim has failed, when bob claims it.
// Her grant reports carol, who may have owned it unnoticed, and not alice.
func TestOwnClaimHidesNobody(t *testing.T) {
	s := newScript(t)
	carols := message.Epoch{Gen: claimed, Boot: carol.Boot}
	s.learn(&s.parts[0], carols, carol)
	s.learn(&s.parts[0], message.Epoch{Gen: 3 << message.Handoffs, Boot: alice.Boot}, alice)
	s.tells(bob, &message.Claim{ID: 1, Parts: []message.Claimed{{Partition: 0, Gen: 4 << message.Handoffs}}})
	g := lastTo[*message.ClaimResponse](&script{sent: s.Take()}, bob)
	if g == nil || !g.Parts[0].OK || g.Parts[0].MaybeOwned != carols {
		t.Errorf("alice says %+v, want that it was granted to %+v", g, carols)
	}
}

// TestClaimInVainHidesNobody: dave was granted the partition, and then bob, who has not owned it and grants it to alice. She
// remembers that dave may have owned it.
func TestClaimInVainHidesNobody(t *testing.T) {
	for _, daves := range []bool{true, false} {
		s := newScript(t)
		p := &s.parts[0]
		p.phase, p.state = replica, state{mark: at(owned, carol)}
		s.loses(carol)
		if daves {
			s.learn(p, message.Epoch{Gen: claimed, Boot: dave.Boot}, dave)
		}
		s.learn(p, message.Epoch{Gen: 3 << message.Handoffs, Boot: bob.Boot}, bob)
		s.sent = nil
		s.pass(3 * time.Second)
		for range 2 { // the probe and the claim
			s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		}
		s.pass(2 * time.Second)
		if !s.Owns(0) || s.lacks() != daves {
			t.Errorf("granted to dave %v: alice owns it %v, and that counters are lost is %v", daves, s.Owns(0), s.lacks())
		}
	}
}

// TestFirstOwnerLacksNothing: a partition that was never owned has no counters to lose.
func TestFirstOwnerLacksNothing(t *testing.T) {
	s := newScript(t)
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{1}})
	s.pass(40 * time.Millisecond)
	for range 2 {
		for _, p := range []message.Peer{bob, carol} {
			s.grants(p, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		}
	}
	s.pass(2 * time.Second)
	if !s.Owns(0) || s.lacks() || s.Stats().WithoutState != 1 {
		t.Errorf("%+v", s.Stats())
	}
}

// TestLossEnds has one row per event that does or does not end a loss.
func TestLossEnds(t *testing.T) {
	merge := func(part message.Part) func(s *script) {
		return func(s *script) {
			counters := newTable(s.t)
			spend(s.t, counters, 2, 3)
			part.Kind, part.InitialSync = message.Merge, 1
			begin, end := part, part
			begin.Begin, end.End = true, true
			if end.Sum == 0 {
				end.Sum = s.sum(counters, 2)
			}
			s.from(carol, begin, counters, 2)
			if !s.lacks() {
				s.t.Error("it has ended before all has come")
			}
			s.from(carol, end, counters)
		}
	}
	epoch := message.Epoch{Gen: owned, Boot: carol.Boot}
	for _, c := range []struct {
		name string
		does func(s *script)
		ends bool
	}{
		{"nothing", func(s *script) { s.pass(time.Second) }, false},
		{"the lost owner's divergent copy", merge(message.Part{Epoch: epoch}), true},
		{"one of a later epoch", merge(message.Part{Epoch: message.Epoch{Gen: owned + 1, Boot: "x"}}), true},
		{"one of an earlier epoch", merge(message.Part{Epoch: message.Epoch{Gen: owned - 1, Boot: "x"}}), false},
		{"one from which another may have gone on", merge(message.Part{}), false},
		{"one while that of its replica comes too", func(s *script) {
			counters := newTable(s.t)
			spend(s.t, counters, 2, 3)
			divergent := message.Part{Kind: message.Merge, InitialSync: 1, Epoch: epoch, Begin: true}
			s.from(carol, divergent, counters, 2)
			s.from(bob, divergent, counters)
			divergent.Begin, divergent.End, divergent.Sum = false, true, s.sum(counters, 2)
			s.from(carol, divergent, counters)
			s.from(bob, message.Part{Kind: message.Merge, InitialSync: 1, Epoch: epoch, End: true, Sum: 1}, counters)
		}, true},
		{"one of which portions are missing", merge(message.Part{Epoch: epoch, Sum: 1}), false},
		{"one that lacks the same", merge(message.Part{Epoch: message.Epoch{Gen: owned + 1}, Loss: message.Loss{Last: epoch, Age: 1}}), false},
		{"an operator here", func(s *script) { s.AcceptLoss(s.now) }, true},
		{"an operator elsewhere", func(s *script) { s.tells(bob, &message.AcceptLoss{}) }, true},
		{"the time that it counts", func(s *script) { s.c.LostHold = 10 * time.Second; s.pass(11 * time.Second) }, true},
		{"before that time", func(s *script) { s.c.LostHold = 10 * time.Second; s.pass(time.Second) }, false},
		{"the end of what rules mind", func(s *script) {
			s.c.LostUntil = func(since int64) int64 { return since + int64(10*time.Second) }
			s.pass(11 * time.Second)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := takesOver(t, absent, state{}, message.ClaimResponsePart{})
			c.does(s)
			s.pass(200 * time.Millisecond)
			if s.lacks() == c.ends {
				t.Errorf("that it has ended is %v", !c.ends)
			}
			if b := lastTo[*message.OwnedPartitions](s, bob); b == nil {
				t.Error("bob is told nothing")
			} else if told := b.Partitions[0].Loss != (message.Loss{}); told == c.ends {
				t.Errorf("that bob is told of a loss is %v: %+v", told, b.Partitions[0])
			}
		})
	}
}

// TestLossTravels: replicas and the next owner learn of a loss and of its end.
func TestLossTravels(t *testing.T) {
	s := newScript(t)
	lost := message.Loss{Last: message.Epoch{Gen: 1, Boot: "x"}, Age: int64(time.Minute)}
	epoch := message.Epoch{Gen: owned, Boot: bob.Boot}
	counters := newTable(t)
	initialSync := message.Part{Kind: message.InitialSync, Epoch: epoch, InitialSync: 1, Begin: true, End: true, Loss: lost, Sum: addChecksum(0, nil)}
	s.from(bob, initialSync, counters)
	got := s.parts[0].state
	if s.parts[0].phase != replica || got.loss.last != lost.Last || s.now-got.loss.since != lost.Age {
		t.Fatalf("alice has %+v", got)
	}
	s.pass(time.Second)
	tells := func(l message.Loss) loss {
		s.pass(20 * time.Millisecond)
		seq := uint64(s.now)
		s.tells(bob, &message.OwnedPartitions{Seq: seq, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned, Loss: l}}})
		return s.parts[0].state.loss
	}
	if l := tells(message.Loss{Last: lost.Last, Age: lost.Age}); l != got.loss {
		t.Errorf("said again later, it is %+v, want as it was: %+v", l, got.loss)
	}
	if l := tells(message.Loss{}); l != (loss{}) {
		t.Errorf("when it has ended: %+v", l)
	}
	tells(lost)
	shut := message.Part{Kind: message.Close, Epoch: epoch, InitialSync: 1, Next: message.Epoch{Gen: owned + 1, Boot: alice.Boot}, Loss: lost, Sum: addChecksum(addChecksum(0, nil), nil)}
	s.from(bob, shut, counters)
	if !s.Owns(0) || !s.lacks() {
		t.Errorf("handed off: %+v", s.parts[0])
	}
}

// TestReplicaComesBack: the replica of a lost owner is merged into the next owner's state before it is synced again.
func TestReplicaComesBack(t *testing.T) {
	mark := at(owned, carol)
	lost := message.Loss{Last: mark.Epoch, Age: 1}
	next := message.Epoch{Gen: claimed, Boot: bob.Boot}
	for _, c := range []struct {
		name  string
		phase phase
		own   state
		want  bool
	}{
		{"it has what is lost", replica, state{mark: mark, from: carol}, true},
		{"only a part", syncing, state{mark: mark, from: carol}, false},
		{"of an earlier epoch", replica, state{mark: at(owned-1, carol), from: carol}, false},
		{"it lacks the same", replica, state{mark: at(owned+1, carol), from: carol, loss: loss{last: mark.Epoch, since: 1}}, false},
	} {
		for _, first := range []string{"owned_partitions", "initial_sync"} {
			s := newScript(t)
			s.parts[0].phase, s.parts[0].state = c.phase, c.own
			if first == "owned_partitions" {
				s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: claimed, Loss: lost}}})
			} else {
				s.from(bob, message.Part{Kind: message.InitialSync, Epoch: next, InitialSync: 1, Begin: true, Loss: lost}, newTable(t))
			}
			if got := s.parts[0].phase == divergent; got != c.want {
				t.Errorf("%s, told by %s: that it is a divergent copy is %v", c.name, first, got)
			}
			s.pass(200 * time.Millisecond)
			kinds := s.partsTo(bob)
			if merges := len(kinds) > 0 && kinds[0] == message.Merge; merges != c.want {
				t.Errorf("%s, told by %s: alice sends %v", c.name, first, kinds)
			}
		}
	}
}

// TestNeverOwned: a process that was taken for the lost owner reports that it never owned the partition, and the loss becomes
// what it would have been without it.
func TestNeverOwned(t *testing.T) {
	sure := message.Epoch{Gen: 1, Boot: "x"}
	mine := message.Epoch{Gen: owned + 1, Boot: alice.Boot}
	s := newScript(t)
	s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{
		Partition: 0, Gen: claimed, Loss: message.Loss{Last: mine, LastCertain: sure, Age: 5},
	}}})
	s.pass(40 * time.Millisecond)
	b := lastTo[*message.TransferBatch](s, bob)
	if b == nil || len(b.Parts) != 1 {
		t.Fatalf("alice sends %+v", b)
	}
	if p := b.Parts[0]; p.Kind != message.Merge || p.Epoch != mine || !p.Begin || !p.End || p.Counters != 0 || p.Loss.Last != sure {
		t.Errorf("alice sends %+v", p)
	}

	// She knows of an owner that bob does not know.
	s = newScript(t)
	s.tells(carol, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
	mine = message.Epoch{Gen: 2 << message.Handoffs, Boot: alice.Boot}
	for seq := range uint64(2) {
		s.tells(bob, &message.OwnedPartitions{Seq: 2 + seq, Full: true, Partitions: []message.OwnedPartition{{
			Partition: 0, Gen: 3<<message.Handoffs + seq, Loss: message.Loss{Last: mine, Age: 5},
		}}})
		s.sent = nil
		s.pass(40 * time.Millisecond)
		b := lastTo[*message.TransferBatch](s, bob)
		if b == nil || len(b.Parts) != 1 || b.Parts[0].Loss.Last != (message.Epoch{Gen: owned, Boot: carol.Boot}) {
			t.Errorf("of the owner before, alice sends %+v", b)
		}
	}

	for _, carols := range []message.Epoch{{}, sure, {Gen: owned, Boot: "z"}} {
		s = takesOver(t, replica, state{mark: at(owned, carol)}, message.ClaimResponsePart{MaybeOwned: message.Epoch{Gen: owned + 1, Boot: "d1"}})
		s.reports(carol, 0, message.Epoch{Gen: owned + 1, Boot: "d1"}, message.Loss{Last: carols, LastCertain: carols, Age: 5})
		// alice's own state is later than sure.
		if left := carols.Boot == "z"; s.lacks() != left {
			t.Errorf("that something is lost still is %v", !left)
		}
	}
}

// TestHandedOverWithALoss: the next owner knows the claimer's state, so a report by a process that never owned the partition,
// naming an earlier owner, adds no loss; and a process that knows better does not report it.
func TestHandedOverWithALoss(t *testing.T) {
	carols, daves := message.Epoch{Gen: owned, Boot: carol.Boot}, message.Epoch{Gen: claimed, Boot: dave.Boot}
	for _, has := range []message.Epoch{{}, carols} {
		s := newScript(t)
		lost := message.Loss{Last: daves, Complete: has, Age: 5}
		epoch := message.Epoch{Gen: 3 << message.Handoffs, Boot: bob.Boot}
		s.from(bob, message.Part{Kind: message.InitialSync, Epoch: epoch, InitialSync: 1, Begin: true, End: true, Loss: lost, Sum: addChecksum(0, nil)}, newTable(t))
		s.from(bob, message.Part{
			Kind: message.Close, Epoch: epoch, InitialSync: 1, Next: message.Epoch{Gen: epoch.Gen + 1, Boot: alice.Boot}, Loss: lost, Sum: addChecksum(addChecksum(0, nil), nil),
		}, newTable(t))
		if !s.Owns(0) || !s.lacks() {
			t.Fatalf("handed off: %+v", s.parts[0])
		}
		s.reports(carol, 0, daves, message.Loss{Last: carols, LastCertain: carols, Age: 5})
		if s.lacks() == (has == carols) {
			t.Errorf("with %+v there, that something is lost is %v", has, has == carols)
		}

		s = newScript(t)
		s.tells(carol, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
		mine := message.Epoch{Gen: claimed, Boot: alice.Boot}
		s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{
			Partition: 0, Gen: epoch.Gen, Loss: message.Loss{Last: mine, Complete: has, Age: 5},
		}}})
		s.pass(40 * time.Millisecond)
		b := lastTo[*message.TransferBatch](s, bob)
		if b == nil || len(b.Parts) != 1 || (b.Parts[0].Loss.Last == carols) == (has == carols) {
			t.Errorf("with %+v there, alice sends %+v", has, b)
		}
	}
}

// TestDivergentComesFirst: the divergent copy of the owner that is certainly lost arrives before another process reports that
// it never owned the partition after that one. It is not sent again.
func TestDivergentComesFirst(t *testing.T) {
	for _, whole := range []bool{true, false} {
		s := takesOver(t, absent, state{}, message.ClaimResponsePart{MaybeOwned: message.Epoch{Gen: owned + 1, Boot: "d1"}})
		carols := message.Epoch{Gen: owned, Boot: carol.Boot}
		lacks := message.Loss{}
		if !whole {
			lacks = message.Loss{Last: carols, Age: 5}
		}
		s.reports(carol, 1, carols, lacks)
		if !s.lacks() {
			t.Fatal("nothing is lost, and dave may have owned the partition")
		}
		s.reports(bob, 0, message.Epoch{Gen: owned + 1, Boot: "d1"}, message.Loss{Last: carols, LastCertain: carols, Age: 5})
		if s.lacks() == whole {
			t.Errorf("the divergent copy is whole %v, and that something is lost is %v", whole, !whole)
		}
	}
}

// TestNeverOwnedBefore: nothing is lost of an epoch granted to this process between two at which it was owner.
func TestNeverOwnedBefore(t *testing.T) {
	for _, c := range []struct {
		name string
		of   uint64
		want bool
	}{
		{"only granted", claimed, false},
		{"owned", owned, true},
	} {
		s := newScript(t)
		s.owns(owned)
		carols := message.Epoch{Gen: 3 << message.Handoffs, Boot: carol.Boot}
		s.learn(&s.parts[0], carols, carol)
		s.owns(4 << message.Handoffs)
		s.setLoss(&s.parts[0], loss{last: carols, since: 1})
		s.reports(carol, 0, carols, message.Loss{Last: message.Epoch{Gen: c.of, Boot: alice.Boot}, Age: 5})
		if s.lacks() != c.want {
			t.Errorf("%s: that something is lost is %v", c.name, !c.want)
		}
	}
}

// TestLostTwiceToOne: if a process was granted the partition twice and may have owned it, both are
// settled when it reports that it did not own it at the later epoch. A grant to another process in
// between is settled when that one reports.
func TestLostTwiceToOne(t *testing.T) {
	later := message.Epoch{Gen: owned + 2, Boot: dave.Boot}
	for _, first := range []message.Peer{dave, bob} {
		before := loss{last: message.Epoch{Gen: owned + 1, Boot: first.Boot}, since: 1}
		s := takesOver(t, replica, state{mark: at(owned, carol), loss: before}, message.ClaimResponsePart{MaybeOwned: later})
		want := loss{last: later, since: s.parts[0].ownership.loss.since, owned: at(owned, carol).Epoch}
		if first != dave {
			want.before[0] = before.last
		}
		if got := s.parts[0].ownership.loss; got != want {
			t.Errorf("%s first: lost is %+v, want %+v", first.Name, got, want)
		}
	}
}

// TestSameLossIsNotTold: a report of a known loss changes nothing, and alice does not announce it again; otherwise the other
// process would report it again each time.
func TestSameLossIsNotTold(t *testing.T) {
	daves := message.Epoch{Gen: owned + 1, Boot: dave.Boot}
	s := takesOver(t, replica, state{mark: at(owned, carol)}, message.ClaimResponsePart{LastOwned: daves})
	for _, c := range []struct {
		of   message.Epoch
		told bool
	}{{daves, false}, {message.Epoch{Gen: owned + 1, Boot: "d0"}, true}} {
		s.Tick(s.now)
		s.Take()
		s.reports(dave, 1, daves, message.Loss{Last: c.of, LastCertain: c.of, Age: 5})
		s.Tick(s.now)
		s.sent = s.Take()
		if b := lastTo[*message.OwnedPartitions](s, bob); (b != nil) != c.told || !s.lacks() {
			t.Errorf("dave says that %+v is lost: alice tells %+v", c.of, b)
		}
	}
}
