package quorum_test

import (
	"fmt"
	"testing"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// BenchmarkIdle is what one heartbeat interval costs a member of ten when nothing
// happens: two ticks, and nine heartbeats and nine acknowledgements each way.
func BenchmarkIdle(b *testing.B) {
	s := message.Set{ID: "m", Version: 10}
	var peers []message.Peer
	for i := range 10 {
		p := message.Peer{Name: fmt.Sprintf("sluice-%d", i), Boot: fmt.Sprintf("%016x-%08x", i, i)}
		s.Members = append(s.Members, p.Name)
		peers = append(peers, p)
	}
	self := peers[4]
	peers = append(peers[:4:4], peers[5:]...)
	m := quorum.New(quorum.Config{Self: self, Record: message.Record{Set: s}}, 0)
	now := 3000 * ms
	m.SetView(now, peers)
	for _, p := range peers {
		m.Introduced(p)
	}
	beats := make([]message.Heartbeat, len(peers))
	acks := make([]message.Ack, len(peers))
	b.ReportAllocs()
	for b.Loop() {
		now += 50 * ms
		m.Tick(now)
		now += 50 * ms
		m.Tick(now)
		for i, p := range peers {
			beats[i] = message.Heartbeat{Sent: now, Set: s}
			acks[i] = message.Ack{Sent: now, OK: true, Set: s}
			m.Step(now, message.Envelope{From: p, To: self, Body: &beats[i]})
			m.Step(now, message.Envelope{From: p, To: self, Body: &acks[i]})
		}
		if out := m.Take(); len(out) < 18 {
			b.Fatalf("%d messages, want at least 18", len(out))
		}
	}
}
