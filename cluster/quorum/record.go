package quorum

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

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
	m.countRight(now)
}

// StoreFailed notes that the disk does not take what it has to have. Until it does, this process has no quorum, and neither
// acknowledges nor votes.
func (m *Machine) StoreFailed(now int64) {
	m.now, m.failing = now, true
	m.countRight(now)
}

// forgetUnwanted has the disk keep the set that is in force where it was asked for another that nobody speaks of any more.
func (m *Machine) forgetUnwanted(now int64) {
	if !m.record.Set.Equal(m.set) && m.byHand.Zero() && m.founder == nil && now-m.asked > int64(unwritten) {
		m.wantSet(now, m.set)
	}
}
