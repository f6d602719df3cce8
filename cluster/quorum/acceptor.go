package quorum

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// acceptor is what this process has promised and accepted for one version.
type acceptor struct {
	id       string
	version  uint64
	promised message.Ballot
	accepted message.Set
	under    message.Ballot
}

func (a *acceptor) promise(b message.Ballot) bool {
	if b.Compare(a.promised) < 0 {
		return false
	}
	a.promised = b
	return true
}

func (a *acceptor) accept(s message.Set, b message.Ballot) bool {
	if !a.promise(b) {
		return false
	}
	a.accepted, a.under = s, b
	return true
}

// instance returns the acceptor for the version after this process's.
func (m *Machine) instance() *acceptor {
	if a := &m.acceptor; a.id != m.set.ID || a.version != m.set.Version+1 {
		*a = acceptor{id: m.set.ID, version: m.set.Version + 1}
	}
	return &m.acceptor
}

// prepare and accept note what they can, also where this process has no vote: to
// note a proposal that was made harms no agreement, and others may ask for it.

func (m *Machine) prepare(now int64, from *peer, b *message.Prepare) {
	if !m.isNext(now, from, b.ID, b.Version) {
		return
	}
	m.round = max(m.round, b.Ballot.Round)
	a := m.instance()
	ok := a.promise(b.Ballot) && m.votes(now)
	m.send(from.Peer, &message.Promise{Version: b.Version, Ballot: a.promised, OK: ok, Accepted: a.accepted, Under: a.under})
}

func (m *Machine) accept(now int64, from *peer, b *message.Accept) {
	if b.Set.Version == 1 && m.set.Zero() {
		m.acceptFounding(now, from, b)
		return
	}
	if !m.isNext(now, from, b.Set.ID, b.Set.Version) || !follows(m.set, b.Set) {
		return
	}
	m.round = max(m.round, b.Ballot.Round)
	a := m.instance()
	ok := a.accept(b.Set, b.Ballot) && m.votes(now) && m.settled(now) && from.seen >= m.awaited
	m.send(from.Peer, &message.Accepted{Version: b.Set.Version, Ballot: a.promised, OK: ok})
}

// isNext reports whether a version is the one after this process's. A proposer that is
// behind is told so by a heartbeat; if this process is, it will be told.
func (m *Machine) isNext(now int64, from *peer, id string, version uint64) bool {
	if m.set.Zero() || id != m.set.ID {
		return false
	}
	if version <= m.set.Version {
		m.beat(now, from)
	}
	return version == m.set.Version+1
}

// votes reports whether this process's vote counts. One that runs anew has none
// until it knows what it may have voted for before.
func (m *Machine) votes(now int64) bool {
	return m.In() && now >= m.graceUntil && !m.recovery.needed && !m.failing
}

// settled reports whether this process may accept the version after its own: every
// process that may wait for its right to an acknowledgement from here has shown that it
// knows this version. So when the next is agreed, quorum of all who know only the
// last one is over: of any majority of its members, one is among those that accepted,
// because neighbouring versions' majorities meet.
func (m *Machine) settled(now int64) bool {
	for _, g := range m.given {
		if g.until >= now && g.shown < m.set.Version {
			return false
		}
	}
	return true
}

// unwritten is how long a set that the disk was asked to have is still wanted when nothing says so again.
const unwritten = time.Second

// onDisk reports whether the disk has r, and asks for it if not. The caller comes back with what it wants then: the
// next heartbeat, resend or Stored brings it.
func (m *Machine) onDisk(now int64, r message.Record) bool {
	m.record, m.asked = r, now
	if !m.c.Disk {
		m.stored = r
	}
	return m.stored.Equal(r)
}

// wantSet asks the disk for s and reports whether it has it.
func (m *Machine) wantSet(now int64, s message.Set) bool {
	r := m.record
	r.Set = s
	return m.onDisk(now, r)
}

// Unstored returns what the disk has to have and has not, if anything. The caller writes and syncs it, and then calls Stored or
// StoreFailed.
func (m *Machine) Unstored() (r message.Record, ok bool) { return m.record, !m.stored.Equal(m.record) }

// Stored notes that the disk has r, and goes on with what waited for that.
func (m *Machine) Stored(now int64, r message.Record) {
	m.now, m.stored, m.failing = now, r, false
	if p := m.proposal; p != nil && p.accepting && len(p.votes) >= m.set.Majority() {
		m.adopt(now, p.set)
	}
	m.obey(now)
	m.found(now)
	m.countQuorum(now)
}

// StoreFailed notes that the disk does not take what it has to have. Until it does, this process has no quorum, and neither
// acknowledges nor votes.
func (m *Machine) StoreFailed(now int64) {
	m.now, m.failing = now, true
	m.countQuorum(now)
}

// forgetUnwanted has the disk keep the set that is in force where it was asked for another that nobody speaks of any more.
func (m *Machine) forgetUnwanted(now int64) {
	if !m.record.Set.Equal(m.set) && m.byHand.Zero() && m.founder == nil && now-m.asked > int64(unwritten) {
		m.wantSet(now, m.set)
	}
}
