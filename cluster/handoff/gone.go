package handoff

import (
	"maps"
	"slices"

	"github.com/sluice-project/sluice/internal/message"
)

// forgetGone forgets what is remembered of runs of a name of which a later run lives: they never come
// back, and over the years there are many of them.
func (m *Machine) forgetGone() {
	latest := make(map[string]string, len(m.view.Members))
	for _, p := range m.view.Members {
		latest[p.Name] = p.Boot
	}
	gone := func(p message.Peer) bool {
		boot, lives := latest[p.Name]
		return lives && boot != p.Boot && !m.c.Quorum.Listens(m.now, p) // gossip may still show the run before this one
	}
	maps.DeleteFunc(m.heard, func(p message.Peer, _ *list) bool { return gone(p) })
	maps.DeleteFunc(m.newsSent, func(p message.Peer, _ sentNews) bool { return gone(p) })
	m.channels = slices.DeleteFunc(m.channels, func(ch *channel) bool { return gone(ch.peer) })
}
