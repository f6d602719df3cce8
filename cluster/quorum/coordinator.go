package quorum

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// recent is the silence after which a member is not waited for to coordinate, longer where its lease is.
const recent = time.Second

// coordinates reports whether it is for this process to propose changes: it has the
// lowest name of the living members. Those who wish to leave come last, so that who
// stays is the first to know that they may.
func (m *Machine) coordinates(now int64) bool {
	lowest := ""
	for _, name := range m.set.Members {
		wish := m.wish
		if name != m.c.Self.Name {
			p := m.latest(name)
			if p == nil || p.isolated || m.outvoted(now, p) || p.heard < now-max(int64(recent), m.silence(p)) {
				continue
			}
			wish = p.wish
		}
		if wish != message.Leave {
			return name == m.c.Self.Name
		}
		if lowest == "" {
			lowest = name
		}
	}
	return lowest == m.c.Self.Name
}

// due returns the version that should follow, if one should: leaves, then joins, then
// members that have been missed for long. The coordinator never takes itself out: if
// all leave, it is what remains.
func (m *Machine) due(now int64) (message.Set, bool) {
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.wish == message.Leave {
			return without(m.set, name), true
		}
	}
	for _, p := range m.peers {
		if p.wish == message.Join && m.joinable(now, p) {
			return with(m.set, p.Name), true
		}
	}
	for i, name := range m.set.Members {
		if name != m.c.Self.Name && m.missed[i] <= now-int64(m.c.ForgetAfter) {
			return without(m.set, name), true
		}
	}
	return message.Set{}, false
}

// joinable reports whether p can be counted: it lives, and it acknowledges. To count
// one that cannot be reached could cost the others their majority.
func (m *Machine) joinable(now int64, p *peer) bool {
	return !m.set.Has(p.Name) && m.lives(now, p) && p.until >= now
}
