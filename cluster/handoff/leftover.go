package handoff

import (
	"github.com/sluice-project/sluice/internal/message"
)

// dropLeftover forgets a state that nobody keeps up to date and nobody will ask to drop: the replica of a former owner, when the owner
// has as many replicas as it wants; and the state of a snapshot, or of an owner that has stepped down. A claim may still
// want the latter until the partition has had its next owner for so long that others have replicas, of whom there are none in a
// cluster of two.
func (m *Machine) dropLeftover(p *partition) {
	s, k := &p.state, &p.known
	if p.phase != syncing && p.phase != replica || p.claim != nil {
		return
	}
	settled := k.basis == announced && k.nextOwner == (message.Peer{}) && m.lives(k.holder)
	replicated := k.replicated
	if s.from == (message.Peer{}) {
		replicated = len(m.view.Members) >= 3 && m.now-k.since >= int64(m.c.Gather)
	}
	if settled && replicated && s.mark.Epoch.Less(k.epoch) {
		m.forget(p)
	}
}
