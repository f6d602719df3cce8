package handoff

import (
	"fmt"
	"slices"
	"testing"
	"time"

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

// TestNewRunIsKept: what is remembered of a run that is heard stays while gossip still shows the one before: parcels to it are numbered on.
func TestNewRunIsKept(t *testing.T) {
	s := newScript(t)
	again := message.Peer{Name: bob.Name, Boot: bob.Boot + "2"}
	s.heard = []message.Peer{again, carol}
	s.pass(200 * time.Millisecond)
	s.tells(again, &message.Parcel{N: 1})
	for _, c := range []struct {
		shown message.Peer
		heard bool
		kept  bool
	}{{bob, true, true}, {again, true, true}, {bob, false, false}} {
		if !c.heard {
			s.heard = []message.Peer{carol}
			s.pass(time.Second)
		}
		s.SetView(s.now, View{Members: []message.Peer{alice, c.shown, carol}, Owner: []int{0}, Standby: []int{1}})
		kept := slices.ContainsFunc(s.channels, func(ch *channel) bool { return ch.peer == again && ch.taken == 1 })
		if kept != c.kept {
			t.Errorf("gossip shows %s, the new run is heard %v: its channel is kept: %v, want %v", c.shown.Boot, c.heard, kept, c.kept)
		}
	}
}
