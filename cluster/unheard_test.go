package cluster

import (
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestUnheard: a voter that does not live because it lacks quorum is not told of as one whose port is closed.
func TestUnheard(t *testing.T) {
	self := message.Peer{Name: "a", Boot: "1"}
	set := message.Set{ID: "x", Version: 1, Members: []string{"a", "b", "c"}}
	b, c := message.Peer{Name: "b", Boot: "2"}, message.Peer{Name: "c", Boot: "3"}
	r := &runner{self: self, quorum: quorum.New(quorum.Config{Self: self, Record: message.Record{Set: set}}, 1)}
	r.quorum.Step(2, message.Envelope{From: b, To: self, ClusterID: set.ID, Body: &message.Heartbeat{Sent: 2, Set: set, NoQuorum: true}})
	for p, want := range map[message.Peer]string{b: "b is heard and has had no quorum", c: "nothing is heard over the peer ports"} {
		if text := r.unheard(2, p, func(string) string { return "" }); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want that %s", p.Name, text, want)
		}
	}
}
