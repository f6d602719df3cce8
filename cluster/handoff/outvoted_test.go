package handoff

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestOwnerWithoutQuorumIsClaimed: an owner that is heard keeps its partition, unless it reports that it has no quorum: then no
// process could decide while some links are cut. One that reports it only briefly keeps it.
func TestOwnerWithoutQuorumIsClaimed(t *testing.T) {
	s := newScript(t)
	s.tells(bob, &message.OwnedPartitions{Seq: 2, Full: true, Partitions: []message.OwnedPartition{{Partition: 0, Gen: owned}}})
	for _, step := range []struct {
		lacking []message.Peer
		after   time.Duration
		want    bool
	}{
		{nil, time.Second, false},
		{[]message.Peer{bob}, 150 * time.Millisecond, false},
		{nil, 20 * time.Millisecond, false},
		{[]message.Peer{bob}, 150 * time.Millisecond, false},
		{[]message.Peer{bob}, 100 * time.Millisecond, true},
		{nil, 20 * time.Millisecond, false},
	} {
		s.lacking = step.lacking
		s.pass(step.after)
		if got := s.wouldGrantCarol(); got != step.want {
			t.Fatalf("at %v: alice would grant carol what bob owns: %v, want %v", time.Duration(s.now), got, step.want)
		}
	}
}

// TestOwnerWithoutQuorumGrants: an owner that has no quorum grants a claim of what it owns, and its state is the claimer's.
func TestOwnerWithoutQuorumGrants(t *testing.T) {
	s := newScript(t)
	s.owns(owned)
	spend(t, s.table, 1, 4)
	s.pass(time.Second)
	if s.wouldGrantCarol() {
		t.Fatal("alice has quorum, and would grant what she owns")
	}
	s.heard = nil
	s.pass(time.Second)
	if !s.wouldGrantCarol() {
		t.Fatal("alice has no quorum, and would not grant what she cannot decide")
	}
	if !s.Owns(0) {
		t.Fatal("a probe has deposed alice")
	}
	s.tells(carol, &message.Claim{ID: 2, Parts: []message.Claimed{{Partition: 0, Gen: claimed}}})
	s.pass(20 * time.Millisecond)
	g := lastTo[*message.ClaimResponse](s, carol)
	if g == nil || len(g.Parts) != 1 || !g.Parts[0].OK || g.Parts[0].Has != message.Complete || g.Parts[0].State.Seq != 4 || s.Owns(0) {
		t.Errorf("alice answers %+v and still owns it: %v", g, s.Owns(0))
	}
}

// TestOutvotedIsAsked: a claim is sent to a voter without quorum and to a removed voter, but does not wait for them. If one
// grants it, its state counts.
func TestOutvotedIsAsked(t *testing.T) {
	for _, c := range []struct{ lost, asked message.Peer }{{dave, carol}, {carol, dave}} {
		epoch := message.Epoch{Gen: owned, Boot: c.lost.Boot}
		for _, answers := range []bool{false, true} {
			s := newScript(t)
			s.heard = []message.Peer{bob, carol, c.asked}
			s.lacking = []message.Peer{c.asked}
			s.beat(c.asked)
			s.tells(c.asked, &message.OwnedPartitions{Seq: 2, Full: true})
			s.loses(c.lost)
			s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{})
			if !s.beyondProbe() {
				t.Fatalf("the claim waits for %s, who has no quorum", c.asked.Name)
			}
			own := message.ClaimResponsePart{Has: message.Complete, State: message.Mark{Epoch: epoch, Seq: 6}}
			if answers {
				s.grants(c.asked, message.ClaimResponse{Votes: true, Version: 1}, own)
			}
			s.grants(bob, message.ClaimResponse{Votes: true, Version: 1}, message.ClaimResponsePart{Has: message.Complete, State: message.Mark{Epoch: epoch, Seq: 5}})
			if f := lastTo[*message.Fetch](s, c.asked); (f != nil) != answers {
				t.Errorf("%s answers %v: her state is fetched: %v", c.asked.Name, answers, f != nil)
			}
		}
	}
}
