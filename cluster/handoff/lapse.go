package handoff

import "github.com/sluice-project/sluice/internal/guard"

// lapse has this process claim anew what it owns when it has quorum again after so long that voters may have forgotten that they
// granted it: they were restarted, and have acknowledged the owner of before since. The same goes for claims under way. It keeps the
// counters, which are the best state there is unless another process has decided meanwhile.
func (m *Machine) lapse() {
	n := m.c.Quorum.Lapses()
	if n == m.lapses || !guard.On(guard.Memory) {
		return
	}
	m.lapses = n
	for i := range m.parts {
		p := &m.parts[i]
		p.claim = nil
		if p.isOwned() {
			m.terms[i].Add(1) // whoever waits for a change to be confirmed waits in vain
			m.keep(p, divergent)
		}
	}
	m.asking = nil
	m.digested, m.patrolled = m.now-int64(m.c.Digest), m.now-patrol // the others are told that it owns nothing, and it claims
}
