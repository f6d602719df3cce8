package handoff

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestLateDrop: word that a copy is of no use, which was on its way when the partition came here and went back
// to the sender once more, does not take the copy that is left of that.
func TestLateDrop(t *testing.T) {
	before := message.Epoch{Gen: 1<<message.Handoffs + 1, Boot: bob.Boot}
	now := message.Epoch{Gen: 1<<message.Handoffs + 4, Boot: bob.Boot}
	for _, c := range []struct {
		name  string
		epoch message.Epoch
		gone  bool
	}{
		{"of before", before, false},
		{"of now", now, true},
		{"of an older peer, which does not say", message.Epoch{}, true},
	} {
		s := newSolo(t)
		spend(t, s.table, 1, 4)
		s.parts[0].known = knowledge{epoch: now, owner: bob, status: ownerAnnounced}
		s.parts[0].phase, s.parts[0].state = replica, state{mark: message.Mark{Epoch: now, Seq: 4}, from: bob}
		s.from(bob, message.Part{Kind: message.Drop, Epoch: c.epoch}, newTable(t))
		if gone := s.parts[0].phase == absent; gone != c.gone {
			t.Errorf("word %s: that the copy is gone is %v, want %v", c.name, gone, c.gone)
		}
	}
}
