package handoff

import (
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

// mergeFork brings what was decided here of p, and is in no history, to the holder.
func (m *Machine) mergeFork(p *partition) {
	s, k := &p.state, &p.known
	if p.role != idle || !s.held || s.merging != nil || p.claim != nil ||
		!k.listed || k.gone || k.heir != (message.Peer{}) || !m.fit(p, k.holder) {
		return
	}
	if s.within(k.start) || !guard.On(guard.ForkMerge) {
		s.held = false
		return
	}
	s.merging = m.addTarget(p, k.holder, message.Merge)
}
