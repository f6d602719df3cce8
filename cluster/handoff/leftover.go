package handoff

import (
	"github.com/sluice-project/sluice/internal/message"
)

// dropLeftover forgets a state that nobody keeps up to date and nobody will ask to drop: that of
// a snapshot, or of a holder that has stepped down. A claim may still want it until
// the partition has had its next holder for so long that others have copies, of whom there are none in a cluster of two.
func (m *Machine) dropLeftover(p *partition) {
	s, k := &p.state, &p.known
	if p.role != idle || s.has == message.None || s.held || s.from != (message.Peer{}) || p.claim != nil || len(m.view.Members) < 3 {
		return
	}
	settled := k.listed && !k.gone && k.heir == (message.Peer{}) && m.lives(k.holder)
	if settled && s.mark.Epoch.Less(k.epoch) && m.now-k.since >= int64(m.c.Gather) {
		m.forget(p)
	}
}
