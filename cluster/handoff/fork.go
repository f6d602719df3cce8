package handoff

import (
	"github.com/sluice-project/sluice/internal/message"
)

// mergeFork brings what was decided here of p, and is in no history, to the holder.
func (m *Machine) mergeFork(p *partition) {
	s, k := &p.state, &p.known
	if p.role != idle || !s.held || s.merging != nil || p.claim != nil ||
		!k.listed || k.gone || k.nextOwner != (message.Peer{}) || !m.fit(p, k.holder) {
		return
	}
	if s.within(k.start) || !m.c.with(ForkMerge) {
		s.held = false
		return
	}
	s.merging = m.addTarget(p, k.holder, message.Merge)
}

// uproot makes the state of p, which is of a set that was dissolved, a fork in no history of this one, and forgets what is not complete. Its
// mark is zero from now on: epochs of two sets cannot be compared.
func (m *Machine) uproot(p *partition) {
	s := &p.state
	s.loss = loss{}
	switch {
	case s.has == message.None || !m.c.with(OneSet):
		return
	case s.has == message.Partial:
		m.forget(p)
		return
	}
	s.release()
	*s = state{has: message.Complete, held: true}
}

// uprooted reports whether s is of another set than this process's, see uproot.
func (s *state) uprooted() bool { return s.has != message.None && s.mark.Epoch == (message.Epoch{}) }
