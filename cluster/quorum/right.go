package quorum

import (
	"math"
	"slices"
)

// RightUntil returns the time until which the process may decide; it has the right
// at times before it. In the past, or math.MinInt64, if it has not.
func (m *Machine) RightUntil() int64 { return m.until }

// Renewed returns a time such that a majority has acknowledged heartbeats that were sent then or later, math.MinInt64 if there is none.
func (m *Machine) Renewed() int64 { return m.renewed }

// Lapses returns how often this process has had quorum again after so long without that a voter which acknowledged it before can have
// been restarted since and be past its grace, and one was: what that one had promised is forgotten.
func (m *Machine) Lapses() uint64 { return m.lapses }

// Promises reports whether the process may grant claims: it knows a set and is past
// its grace.
func (m *Machine) Promises(now int64) bool { return !m.set.Zero() && !m.inGrace(now) }

// beginGrace is for a process that finds itself counted and may have been so in an
// earlier run, whose promises it does not know.
func (m *Machine) beginGrace(now int64) {
	m.graceUntil = now + int64(m.c.Grace)
	m.recovery = recovery{needed: true, until: now + int64(m.c.ForgetAfter), asked: never}
}

// inGrace reports whether nothing is promised. Who is counted alone promised
// things to nobody that it could not decide itself.
func (m *Machine) inGrace(now int64) bool { return now < m.graceUntil && !m.alone() }

func (m *Machine) alone() bool { return len(m.set.Members) == 1 && m.In() }

// countRight works out until when a majority's acknowledgements last. In its grace
// the process does not count itself: the others of a majority must make sure that
// it has seen the news of claims that it granted in an earlier run.
func (m *Machine) countRight(now int64) {
	m.quorumAt = max(m.quorumAt, min(now, m.until))
	defer m.noteLapse(now)
	m.until, m.renewed = never, never
	if m.set.Zero() || m.failing {
		return
	}
	others := m.set.Majority()
	m.uncounted = m.In() && m.inGrace(now)
	if m.In() && !m.uncounted {
		others--
	}
	if others == 0 {
		m.until, m.renewed = math.MaxInt64, math.MaxInt64
		return
	}
	var buf [2][16]int64
	readings, ends := buf[0][:0], buf[1][:0]
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.reading != never {
			readings, ends = append(readings, p.reading), append(ends, p.until)
		}
	}
	m.until, m.renewed = nthNewest(ends, others), nthNewest(readings, others)
}

// noteLapse counts a lapse. Who acknowledged a heartbeat of this process was alive until its lease before quorum was lost, and acknowledges
// others no sooner than a grace later; a tenth is allowed for the clocks. Who has not been restarted has forgotten nothing.
func (m *Machine) noteLapse(now int64) {
	if now >= m.until {
		return
	}
	if m.quorumAt != never && now-m.quorumAt > max(0, int64(m.c.Grace)-expiry(m.lease(now))) && m.anyNew(m.quorumAt-int64(m.c.Grace)) {
		m.lapses++
	}
	m.quorumAt = now
}

// anyNew reports whether some other voter's process was first heard from after the time given.
func (m *Machine) anyNew(after int64) bool {
	return slices.ContainsFunc(m.set.Members, func(name string) bool {
		p := m.latest(name)
		return p != nil && p.heard != never && p.first > after
	})
}
