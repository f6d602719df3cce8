package quorum

import "github.com/sluice-project/sluice/internal/message"

// recovery gives a process that was restarted within a set its vote back. What it
// promised and accepted is lost, so it asks all other members, and takes over the
// latest of what they have: whoever proposed has noted it, and who has heard of this
// boot counts no vote of an older one. If a member does not answer, it waits until
// that would be forgotten.
type recovery struct {
	needed bool
	until  int64
	asked  int64
}

// recover asks, as long as it is needed.
func (m *Machine) recover(now int64) {
	r := &m.recovery
	if !r.needed {
		return
	}
	if now >= r.until || m.allTold() {
		r.needed = false
		return
	}
	if r.asked > now-int64(resend)-3*m.slowest()/2 {
		return
	}
	r.asked = now
	// The lowest of ballots: it is in nobody's way, and the answer tells all the same.
	b := &message.Prepare{ID: m.set.ID, Version: m.set.Version + 1, Ballot: message.Ballot{Boot: m.c.Self.Boot}}
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.told != b.Version {
			m.send(p.Peer, b)
		}
	}
}

// told takes in what a member has promised and accepted.
func (m *Machine) told(now int64, from *peer, b *message.Promise) {
	if !m.recovery.needed {
		return
	}
	a := m.instance()
	a.promise(b.Ballot)
	if follows(m.set, b.Accepted) && a.under.Compare(b.Under) < 0 {
		a.accepted, a.under = b.Accepted, b.Under
	}
	from.told = b.Version
	m.recover(now)
}

func (m *Machine) allTold() bool {
	for _, name := range m.set.Members {
		if name == m.c.Self.Name {
			continue
		}
		if p := m.latest(name); p == nil || p.told != m.set.Version+1 {
			return false
		}
	}
	return true
}
