package handoff

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// script is alice's machine with time in steps of 20 ms. The test plays the peers.
type script struct {
	*solo
	// heard are the peers whose heartbeats arrive and that acknowledge hers; takers confirm her transfers, but no close.
	heard, takers []message.Peer
	// inSync is what the peers that are heard know of alice's in-sync replicas.
	inSync map[message.Peer]uint64
	// unlisted are the peers that get none of her lists of owned partitions.
	unlisted []message.Peer
	// lacking are the peers that report no quorum.
	lacking []message.Peer
	// sent is what she has sent since the test last looked.
	sent []message.Envelope
}

// newScript returns alice past her grace and in quorum, with bob and carol heard and introduced.
func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{solo: newSolo(t), heard: []message.Peer{bob, carol}, inSync: map[message.Peer]uint64{}}
	s.SetView(0, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{1}, Replica: []int{1}})
	for _, p := range s.heard {
		s.tells(p, &message.OwnedPartitions{Seq: 1, Full: true})
	}
	s.pass(2500 * time.Millisecond)
	if !s.hasQuorum() || !s.c.Quorum.Promises(s.now) {
		t.Fatal("alice has no quorum")
	}
	return s
}

// tells delivers a message of a peer to alice.
func (s *script) tells(from message.Peer, b message.Body) {
	s.Step(s.now, message.Envelope{From: from, To: alice, ClusterID: clusterID, Body: b})
}

// beat sends alice a heartbeat of p, and an acknowledgement of one that she has just sent.
func (s *script) beat(p message.Peer) {
	q := s.c.Quorum
	q.Step(s.now, message.Envelope{From: p, To: alice, ClusterID: clusterID, Body: &message.Heartbeat{
		Sent: s.now, Set: q.Set(), NoQuorum: slices.Contains(s.lacking, p), InSync: s.inSync[p] + 1,
	}})
	q.Step(s.now, message.Envelope{From: p, To: alice, ClusterID: clusterID, Body: &message.Ack{Sent: s.now, OK: true, Set: q.Set()}})
}

// pass has time go by.
func (s *script) pass(d time.Duration) {
	for end := s.now + int64(d); s.now < end; {
		s.now = min(s.now+int64(20*time.Millisecond), end)
		for _, p := range s.heard {
			s.beat(p)
		}
		s.c.Quorum.Tick(s.now)
		s.Tick(s.now)
		out := s.Take()
		s.sent = append(s.sent, out...)
		for _, e := range out {
			if b, ok := e.Body.(*message.OwnedPartitions); ok && slices.Contains(s.heard, e.To) && !slices.Contains(s.unlisted, e.To) {
				s.inSync[e.To] = b.UpTo
			}
			b, ok := e.Body.(*message.TransferBatch)
			if ok && slices.Contains(s.takers, e.To) && !slices.ContainsFunc(b.Parts, closes) {
				s.tells(e.To, &message.Receipt{N: b.N})
			}
		}
	}
}

func closes(p message.Part) bool { return p.Kind == message.Close }

// owns makes alice the owner of the partition, with what is in her table.
func (s *script) owns(gen uint64) {
	s.becomeOwner(&s.parts[0], message.Epoch{Gen: gen, Boot: alice.Boot}, message.Mark{})
}

// newOwner returns alice, who owns the partition, with the ring's owner and replica node by number, and takers.
func newOwner(t *testing.T, owner, replica int, takers ...message.Peer) *script {
	t.Helper()
	s := newScript(t)
	s.takers = takers
	s.SetView(s.now, View{Members: []message.Peer{alice, bob, carol}, Owner: []int{owner}, Replica: []int{replica}})
	s.owns(owned)
	return s
}

// takesAll has a peer confirm all batches that were sent to it since the last look, the close too.
func (s *script) takesAll(p message.Peer) {
	last := uint64(0)
	for _, e := range s.sent {
		if b, ok := e.Body.(*message.TransferBatch); ok && e.To == p {
			last = max(last, b.N)
		}
	}
	s.tells(p, &message.Receipt{N: last})
}

// partsTo returns the kinds of the parts that were sent to a peer since the last look.
func (s *script) partsTo(p message.Peer) (kinds []message.Kind) {
	for _, e := range s.sent {
		if b, ok := e.Body.(*message.TransferBatch); ok && e.To == p {
			for i := range b.Parts {
				kinds = append(kinds, b.Parts[i].Kind)
			}
		}
	}
	return kinds
}

// lastTo returns the last message of a type that was sent to a peer since the last look, nil if none.
func lastTo[B message.Body](s *script, p message.Peer) (last B) {
	for _, e := range s.sent {
		if b, ok := e.Body.(B); ok && e.To == p {
			last = b
		}
	}
	return last
}
