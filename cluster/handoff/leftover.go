package handoff

import (
	"github.com/sluice-project/sluice/internal/message"
)

// dropLeftovers forgets states that nobody keeps up to date and nobody will ask to drop: those of
// a snapshot, and of a holder that has stepped down. A claim may still want them until
// the partition has had its next holder for so long that others have copies.
func (m *Machine) dropLeftovers() {
	if len(m.view.Members) < 3 {
		return // there are no others
	}
	for i := range m.parts {
		p := &m.parts[i]
		s, k := &p.state, &p.known
		if p.role != idle || s.has == message.None || s.held || s.from != (message.Peer{}) || p.claim != nil {
			continue
		}
		settled := k.listed && !k.gone && k.heir == (message.Peer{}) && m.lives(k.holder)
		if settled && s.mark.Epoch.Less(k.epoch) && m.now-k.since >= int64(m.c.Gather) {
			m.forget(p)
		}
	}
}
