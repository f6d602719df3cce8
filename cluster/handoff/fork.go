package handoff

import (
	"github.com/sluice-project/sluice/internal/message"
)

// mergeForks brings what was decided here, and is in no history, to the holders.
func (m *Machine) mergeForks() {
	for i := range m.parts {
		p := &m.parts[i]
		s, k := &p.state, &p.known
		if p.role != idle || !s.held || s.merging != nil || p.claim != nil ||
			!k.listed || k.gone || k.heir != (message.Peer{}) || !m.fit(p, k.holder) {
			continue
		}
		if s.within(k.start) || !m.c.with(ForkMerge) {
			s.held = false
			continue
		}
		s.merging = m.addTarget(p, k.holder, message.Merge)
	}
}
