package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// Generations of these tests: of the owner that is lost, and of alice's claim.
const (
	owned   = 1 << message.Handoffs
	claimed = 2 << message.Handoffs
)

// dave is no voter yet.
var dave = message.Peer{Name: "d", Boot: "d1"}

// loses makes the partition lose its owner, which is no longer heard. Gossip shows only alice and bob, and the ring assigns the
// partition to alice, who claims it.
func (s *script) loses(owner message.Peer) {
	s.t.Helper()
	s.tells(owner, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
	s.heard = slices.DeleteFunc(s.heard, func(p message.Peer) bool { return p == owner })
	s.pass(time.Second)
	s.sent = nil
	s.SetView(s.now, View{Members: []message.Peer{alice, bob}, Owner: []int{0}, Replica: []int{1}})
	s.pass(20 * time.Millisecond)
	if b := lastTo[*message.Claim](s, bob); b == nil || !b.Probe {
		s.t.Fatal("alice does not claim what carol owned")
	}
}

// grants answers alice's last claim, with what g has beside.
func (s *script) grants(from message.Peer, g message.ClaimResponse, part message.ClaimResponsePart) {
	s.t.Helper()
	b := lastTo[*message.Claim](s, from)
	if b == nil || len(b.Parts) != 1 {
		s.t.Fatalf("%s was not asked", from.Name)
	}
	part.OK = true
	g.ID, g.Probe, g.Parts = b.ID, b.Probe, []message.ClaimResponsePart{part}
	s.tells(from, &g)
	s.pass(20 * time.Millisecond)
}

// beyondProbe reports whether alice has sent a claim after her probe.
func (s *script) beyondProbe() bool {
	return s.parts[0].claim == nil || s.parts[0].claim.stage > probing
}

// TestVotesThatCount: the promise of a voter in its grace, or of one that knows a later voter set, is no vote: the first has
// forgotten what it promised before, and the second may have agreed to a set that never hears of this claim.
func TestVotesThatCount(t *testing.T) {
	for _, c := range []struct {
		name    string
		votes   bool
		version uint64
		counts  bool
	}{
		{"a vote", true, 1, true},
		{"in its grace", false, 1, false},
		{"knows a later set", true, 2, false},
	} {
		s := newScript(t)
		s.loses(carol)
		s.grants(bob, message.ClaimResponse{Votes: c.votes, Version: c.version}, message.ClaimResponsePart{})
		if s.beyondProbe() != c.counts {
			t.Errorf("%s: that the claim goes on is %v, want %v", c.name, s.beyondProbe(), c.counts)
		}
	}
}

// TestNoVoteInTheGrace: a voter that was just restarted answers probes and claims, and votes when its grace is over.
func TestNoVoteInTheGrace(t *testing.T) {
	for _, probe := range []bool{true, false} {
		for _, c := range []struct {
			at    time.Duration
			votes bool
		}{{time.Millisecond, false}, {1999 * time.Millisecond, false}, {2 * time.Second, true}} {
			s := newSolo(t) // with its voter set from the disk
			s.Step(int64(c.at), message.Envelope{From: bob, To: alice, ClusterID: clusterID, Body: &message.Claim{
				ID: 7, Probe: probe, Parts: []message.Claimed{{Partition: 0, Gen: owned}},
			}})
			g := lastTo[*message.ClaimResponse](&script{sent: s.Take()}, bob)
			if g == nil || len(g.Parts) != 1 || !g.Parts[0].OK || g.Votes != c.votes {
				t.Errorf("probe %v, %v after the start: answered %+v, want a vote: %v", probe, c.at, g, c.votes)
			}
		}
	}
}

// TestHeardMustGrant: a voter that gossip has lost and that is heard must grant a claim too: it may have the only state.
func TestHeardMustGrant(t *testing.T) {
	s := newScript(t)
	s.loses(dave)
	s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
	if s.beyondProbe() {
		t.Error("the claim goes on without carol, who is heard")
	}
	s.grants(carol, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
	if !s.beyondProbe() {
		t.Error("the claim does not go on when all have granted it")
	}
}

// TestLateComersAreAsked: while a claim waits until the old owner's acknowledgements are over, the old owner comes back, in the
// view or heard only. It is asked too, and its state, which is the latest, is the one that is fetched; also at the replica's mark,
// because it has what is not replicated.
func TestLateComersAreAsked(t *testing.T) {
	epoch := message.Epoch{Gen: owned, Boot: carol.Boot}
	for i, inView := range []bool{true, false, true, false} {
		s := newScript(t)
		s.loses(carol)
		acked := []message.Acked{{Boot: carol.Boot, Left: int64(600 * time.Millisecond)}}
		replica := message.ClaimResponsePart{Has: message.Complete, State: message.Mark{Epoch: epoch, Seq: 5}}
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1, Acked: acked}, replica)
		if c := s.parts[0].claim; c == nil || c.stage != waitingOut {
			t.Fatalf("the claim does not wait: %+v", c)
		}
		s.sent = nil
		if inView {
			s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{0}, Replica: []int{1}})
		} else {
			s.beat(carol)
		}
		s.heard = []message.Peer{bob, carol}
		s.pass(200 * time.Millisecond)
		own := message.ClaimResponsePart{Has: message.Complete, State: message.Mark{Epoch: epoch, Seq: 5 + uint64(i/2)}}
		s.grants(carol, message.ClaimResponse{Votes: true, Version: 1}, own)
		s.pass(time.Second)
		if f := lastTo[*message.Fetch](s, carol); f == nil || f.State != own.State {
			t.Errorf("in the view %v: fetched %+v of carol, want %+v", inView, f, own.State)
		}
		if f := lastTo[*message.Fetch](s, bob); f != nil {
			t.Errorf("in the view %v: fetched %+v of bob", inView, f)
		}
	}
}

// TestWaitEndsWhenTheOldOwnerKnows: a claim waits no longer for the old owner's acknowledgements once their granter says that the old
// owner knows of all that it has granted. A repeated grant says nothing of the kind: it may have been made before another part was granted.
func TestWaitEndsWhenTheOldOwnerKnows(t *testing.T) {
	for _, c := range []struct {
		name  string
		again message.ClaimResponse
		ends  bool
	}{
		{"she knows", message.ClaimResponse{}, true},
		{"she does not know", message.ClaimResponse{Acked: []message.Acked{{Boot: carol.Boot, Left: int64(500 * time.Millisecond)}}}, false},
		{"it grants again", message.ClaimResponse{Parts: []message.ClaimResponsePart{{OK: true}}}, false},
		{"a probe", message.ClaimResponse{Probe: true}, false},
	} {
		s := newScript(t)
		s.loses(carol)
		acked := []message.Acked{{Boot: carol.Boot, Left: int64(600 * time.Millisecond)}}
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1, Acked: acked}, message.ClaimResponsePart{})
		s.sent = nil
		s.pass(200 * time.Millisecond)
		b := lastTo[*message.Claim](s, bob)
		if b == nil || b.Probe || len(b.Parts) > 0 || s.Owns(0) {
			t.Fatalf("%s: 200 ms later alice asks bob %+v and owns it: %v", c.name, b, s.Owns(0))
		}
		c.again.ID, c.again.Votes, c.again.Version = b.ID, true, 1
		s.tells(bob, &c.again)
		s.pass(20 * time.Millisecond)
		if s.Owns(0) != c.ends {
			t.Errorf("%s: that alice owns it is %v, want %v", c.name, s.Owns(0), c.ends)
		}
	}
}

// TestGrantSaysWhoKnows: a grant tells whom the granter has acknowledged, but for those that are outvoted and know of all that it has granted.
func TestGrantSaysWhoKnows(t *testing.T) {
	for _, outvoted := range []bool{true, false} {
		s := newScript(t)
		if outvoted {
			s.lacking = []message.Peer{bob}
			s.pass(300 * time.Millisecond)
		}
		for i, step := range []struct {
			gen, seen uint64 // of carol's claim, and in bob's last heartbeat
			knows     bool
		}{{owned, 0, false}, {0, 0, false}, {0, 1, true}, {owned, 1, true}, {claimed, 1, false}, {0, 1, false}, {0, 2, true}} {
			s.now++
			s.c.Quorum.Step(s.now, message.Envelope{From: bob, To: alice, ClusterID: clusterID, Body: &message.Heartbeat{
				Sent: s.now, Set: s.c.Quorum.Set(), Seen: step.seen, NoQuorum: outvoted,
			}})
			b := &message.Claim{ID: 1}
			if step.gen > 0 {
				b.Parts = []message.Claimed{{Partition: 0, Gen: step.gen}}
			}
			s.tells(carol, b)
			s.sent = s.Take()
			knows := !slices.ContainsFunc(lastTo[*message.ClaimResponse](s, carol).Acked, func(a message.Acked) bool { return a.Boot == bob.Boot })
			if want := step.knows && outvoted; knows != want {
				t.Errorf("outvoted %v, step %d: bob knows: %v, want %v", outvoted, i, knows, want)
			}
		}
	}
}

// TestVotesOfVoters: each voter has one vote, however often it was restarted, and other members have none.
func TestVotesOfVoters(t *testing.T) {
	again := message.Peer{Name: "b", Boot: "b2"}
	for _, c := range []struct {
		name   string
		voters []message.Peer
		want   int
	}{
		{"two voters", []message.Peer{bob, carol}, 2},
		{"two runs of one", []message.Peer{bob, again}, 1},
		{"no voter", []message.Peer{bob, dave}, 1},
	} {
		if got := newSolo(t).votes(&claim{voters: c.voters}); got != c.want {
			t.Errorf("%s: %d votes, want %d", c.name, got, c.want)
		}
	}
}

// TestPromisesInOrder: answers to probes promise nothing, so they do not count for the claim; and the claimer grants itself
// last, since its own promise would depose an owner that the others hear.
func TestPromisesInOrder(t *testing.T) {
	s := newScript(t)
	s.loses(carol)
	id := lastTo[*message.Claim](s, bob).ID
	yes := []message.ClaimResponsePart{{OK: true}}
	for range 2 { // the second is late
		s.tells(bob, &message.ClaimResponse{ID: id, Probe: true, Votes: true, Version: 1, Parts: yes})
		s.pass(20 * time.Millisecond)
		if c := s.parts[0].claim; c == nil || c.stage != requesting || len(c.granted) > 0 || s.parts[0].known.owner != carol {
			t.Fatalf("after answers to probes: %+v, owned by %s", c, s.parts[0].known.owner.Name)
		}
	}
	s.tells(bob, &message.ClaimResponse{ID: id, Votes: true, Version: 1, Parts: yes})
	s.pass(20 * time.Millisecond)
	if !s.Owns(0) {
		t.Errorf("after bob's grant: %+v", s.parts[0].claim)
	}
}

// TestWaitForTheLatest: a claim waits for the latest acknowledgement that any granter has given to a process that has not
// granted it, in whatever order the grants arrive.
func TestWaitForTheLatest(t *testing.T) {
	for _, order := range [][]int64{{50, 80}, {80, 50}} {
		s := newSolo(t)
		a := &claimRequest{id: 1}
		for _, until := range order {
			a.noteAcked(alice.Boot, carol.Boot, until)
			a.noteAcked(alice.Boot, bob.Boot, until+100)
		}
		if got := s.safeFrom(&claim{request: a, granted: []message.Peer{bob}}); got != 80 {
			t.Errorf("told of %v: waits until %d, want 80", order, got)
		}
	}
}

// TestClaimWithoutOneThatIsNotShown: a voter that is heard and not in the view has to grant a claim, unless it knows no set: it was
// just started, and cannot.
func TestClaimWithoutOneThatIsNotShown(t *testing.T) {
	again := message.Peer{Name: carol.Name, Boot: "c2"}
	for _, knows := range []bool{true, false} {
		s := newScript(t)
		var set message.Set
		if knows {
			set = s.c.Quorum.Set()
		}
		hears := func() {
			s.c.Quorum.Step(s.now, message.Envelope{From: again, To: alice, ClusterID: set.ID, Body: &message.Heartbeat{Sent: s.now, Set: set}})
		}
		hears()
		s.loses(carol)
		for range 3 { // its probe, its claim
			hears()
			if a := lastTo[*message.Claim](s, bob); a != nil {
				s.tells(bob, &message.ClaimResponse{ID: a.ID, Probe: a.Probe, Votes: true, Version: 1, Parts: []message.ClaimResponsePart{{OK: true}}})
			}
			s.pass(20 * time.Millisecond)
		}
		if s.Owns(0) == knows {
			t.Errorf("the process knows the set: %v; alice owns the partition: %v", knows, s.Owns(0))
		}
	}
}

// TestAwaitedClaimsAgain: of two claims of one generation alice grants the other, while bob grants hers,
// which is the higher one. All wait for her now, so she claims again, though the ring has assigned the
// partition to bob in between; not if she may own none.
func TestAwaitedClaimsAgain(t *testing.T) {
	for _, serves := range []bool{true, false} {
		s := newScript(t)
		s.loses(carol)
		s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
		if s.parts[0].claim == nil || s.parts[0].claim.stage != requesting {
			t.Fatal("alice has not requested the grants")
		}
		lower := message.Peer{Name: bob.Name, Boot: "a0"}
		s.tells(lower, &message.Claim{ID: 7, Parts: []message.Claimed{{Partition: 0, Gen: claimed}}})
		if s.parts[0].claim != nil {
			t.Fatal("alice has granted another claim, and keeps hers")
		}
		s.SetView(s.now, View{Members: []message.Peer{alice, bob}, Owner: []int{1}, Replica: []int{1}, Serves: []bool{serves, true}})
		s.tells(bob, &message.PendingGrants{Seq: 1, Grants: []message.PendingGrant{{Partition: 0, Gen: claimed, Claimer: alice}}})
		s.sent = nil
		s.pass(time.Second)
		again := lastTo[*message.Claim](s, bob) != nil
		if again != serves {
			t.Errorf("alice claims again: %v, and she may own partitions: %v", again, serves)
		}
	}
}
