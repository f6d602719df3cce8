package quorum

import (
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// acceptor is the Paxos acceptor state of this process for one version of the voter set.
type acceptor struct {
	id             string
	version        uint64
	promised       message.Ballot
	accepted       message.Set
	acceptedBallot message.Ballot
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
	a.accepted, a.acceptedBallot = s, b
	return true
}

// nextAcceptor returns the acceptor of the next version.
func (m *Machine) nextAcceptor() *acceptor {
	if a := &m.acceptor; a.id != m.set.ID || a.version != m.set.Version+1 {
		*a = acceptor{id: m.set.ID, version: m.set.Version + 1}
	}
	return &m.acceptor
}

// prepare and accept record ballots even where this process has no vote: a recorded proposal cannot break agreement, and a
// restarted voter may ask for it.

func (m *Machine) prepare(now int64, from *peer, b *message.Prepare) {
	if !m.isNext(now, from, b.ID, b.Version) {
		return
	}
	m.round = max(m.round, b.Ballot.Round)
	a := m.nextAcceptor()
	ok := a.promise(b.Ballot) && m.votes(now)
	m.send(from.Peer, &message.Promise{Version: b.Version, Ballot: a.promised, OK: ok, Accepted: a.accepted, Under: a.acceptedBallot})
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
	a := m.nextAcceptor()
	ok := a.accept(b.Set, b.Ballot) && m.votes(now) && m.mayAcceptNext(now) && from.grantsSeen >= m.awaited
	m.send(from.Peer, &message.Accepted{Version: b.Set.Version, Ballot: a.promised, OK: ok})
}

// isNext reports whether version is the next one. A proposer with an older version gets a heartbeat, which shows it this
// process's set.
func (m *Machine) isNext(now int64, from *peer, id string, version uint64) bool {
	if m.set.Zero() || id != m.set.ID {
		return false
	}
	if version <= m.set.Version {
		m.sendHeartbeat(now, from)
	}
	return version == m.set.Version+1
}

// votes reports whether this process's vote counts. After a restart it does not until recovery has learned the earlier
// votes.
func (m *Machine) votes(now int64) bool {
	return m.In() && now >= m.graceUntil && !m.unproven && !m.recovery.needed && !m.failing
}

// mayAcceptNext reports whether this process may accept the next version: every process whose quorum may rest on an
// acknowledgement from here has shown that it knows the current version. Then, once the next version is agreed, no process
// that knows only an older version has quorum, because the majorities of adjacent versions intersect.
func (m *Machine) mayAcceptNext(now int64) bool {
	for _, g := range m.acksGiven {
		if g.until >= now && g.versionShown < m.set.Version {
			return false
		}
	}
	return true
}

// writeRequestTTL is how long a set that was requested from the disk stays requested without another message about it.
const writeRequestTTL = time.Second

// onDisk reports whether the disk has r, and requests the write if not. The caller is run again by the next heartbeat,
// resend or Stored.
func (m *Machine) onDisk(now int64, r message.Record) bool {
	m.record, m.asked = r, now
	if !m.c.Disk {
		m.stored = r
	}
	return m.stored.Equal(r)
}

// wantSet is onDisk for the current record with set s.
func (m *Machine) wantSet(now int64, s message.Set) bool {
	r := m.record
	r.Set = s
	return m.onDisk(now, r)
}

// Unstored returns the record to write and sync, if any. The caller then calls Stored or StoreFailed.
func (m *Machine) Unstored() (r message.Record, ok bool) {
	return m.record, m.probe || !m.stored.Equal(m.record)
}

// Stored notes that r is on disk and continues everything that waited for it.
func (m *Machine) Stored(now int64, r message.Record) {
	m.now, m.stored, m.failing, m.probe = now, r, false, false
	if p := m.proposal; p != nil && p.accepting && len(p.votes) >= m.set.Majority() {
		m.installSet(now, p.set)
	}
	m.adoptOperatorSet(now)
	m.found(now)
	m.countQuorum(now)
}

// StoreFailed notes that a write failed. Until a write succeeds, which Unstored asks for again,
// this process has no quorum, neither acknowledges nor votes, and takes no part in founding.
func (m *Machine) StoreFailed(now int64) {
	m.now, m.failing, m.probe = now, true, true
	if f := m.founder; f != nil && f.sent == never {
		m.abandonRound(now)
	} else if m.set.Zero() {
		m.lastHeartbeat = nil
		m.sendHeartbeats(now)
	}
	m.countQuorum(now)
}

// forgetUnwanted restores the set in force as the record to write when the requested set is no longer mentioned by any
// peer.
func (m *Machine) forgetUnwanted(now int64) {
	if !m.record.Set.Equal(m.set) && m.operatorSet.Zero() && m.founder == nil && now-m.asked > int64(writeRequestTTL) {
		m.wantSet(now, m.set)
	}
}
