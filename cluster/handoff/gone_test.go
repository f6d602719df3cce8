package handoff

import (
	"fmt"
	"testing"

	"github.com/sluice-project/sluice/internal/message"
)

// TestRunsAreForgotten: a peer that is restarted again and again leaves nothing behind.
func TestRunsAreForgotten(t *testing.T) {
	s := newSolo(t)
	for run := range 100 {
		peer := message.Peer{Name: "b", Boot: fmt.Sprintf("b%03d", run)}
		s.SetView(int64(run), View{Members: []message.Peer{alice, peer, carol}, Owner: []int{0}, Standby: []int{1}})
		s.Step(int64(run), message.Envelope{From: peer, To: alice, Lineage: lineage, Body: &message.Holdings{Seq: 1, Full: true}})
		s.Step(int64(run), message.Envelope{From: peer, To: alice, Lineage: lineage, Body: &message.Parcel{N: 1}})
		s.newsSent[peer] = sentNews{}
		s.Tick(int64(run))
	}
	// One that is silent may come back.
	s.SetView(100, View{Members: []message.Peer{alice, carol}, Owner: []int{0}, Standby: []int{1}})
	if len(s.heard) != 1 || len(s.newsSent) != 1 || len(s.channels) > 2 {
		t.Errorf("remembers %d lists, news for %d and %d channels", len(s.heard), len(s.newsSent), len(s.channels))
	}
}
