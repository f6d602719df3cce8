package handoff

import (
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

// mergeFork brings what was decided here of p, and is in no history, to the holder.
func (m *Machine) mergeFork(p *partition) {
	s, k := &p.state, &p.known
	if p.phase != divergent || s.merging != nil || p.claim != nil ||
		k.basis != announced || k.nextOwner != (message.Peer{}) || !m.fit(p, k.holder) {
		return
	}
	if p.within(k.start) || !guard.On(guard.ForkMerge) {
		p.enter(replica)
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
	case p.phase == absent || !guard.On(guard.OneSet):
		return
	case p.phase == syncing:
		m.forget(p)
		return
	}
	s.release()
	p.enter(divergent)
	*s = state{}
}

// uprooted reports whether the state of p is of another set than this process's, see uproot.
func (p *partition) uprooted() bool {
	return p.phase != absent && !p.isOwned() && p.state.mark.Epoch == (message.Epoch{})
}
