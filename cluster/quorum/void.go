package quorum

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/internal/message"
)

// freshID returns the ID of the next set that this process founds: its boot id, and a number if it has used that.
func (m *Machine) freshID() string {
	if m.founded == 0 {
		return m.c.Self.Boot
	}
	return fmt.Sprintf("%s.%d", m.c.Self.Boot, m.founded)
}

// founderOf returns the boot id of the process that founded the set called id.
func founderOf(id string) string {
	boot, _, _ := strings.Cut(id, ".")
	return boot
}

// silent reports whether nothing was heard for long of the founder of the set called id.
func (m *Machine) silent(now int64, id string) bool {
	boot := founderOf(id)
	return boot != m.c.Self.Boot && !slices.ContainsFunc(m.peers, func(p *peer) bool {
		return p.Boot == boot && p.heard >= now-int64(gone)
	})
}

// isVoid reports whether this process has promised to take no part in the founding called id. It then takes that set only from a
// process that has quorum in it.
func (m *Machine) isVoid(id string) bool { return slices.Contains(m.record.Void, id) }

func (m *Machine) promiseVoid(now int64, id string) {
	r := m.record
	r.Void = append(slices.Clone(r.Void[max(0, len(r.Void)-maxVoid+1):]), id)
	m.onDisk(now, r)
}

// review lets go of the founding that this process has accepted when it cannot come into force any more: its founder says so, or
// is gone and so many members have promised to take no part that no majority is left.
func (m *Machine) review(now int64) {
	if !m.record.Set.Zero() {
		return
	}
	for _, p := range m.peers {
		for _, id := range p.void {
			if m.speaks(now, p) && !m.isVoid(id) && m.silent(now, id) {
				m.promiseVoid(now, id)
			}
		}
	}
	s := m.record.Founding
	switch {
	case s.Zero():
	case m.givenUp(s), m.isVoid(s.ID) && m.outside(s)+1 > len(s.Members)-s.Majority():
		r := m.record
		r.Founding, r.Round = message.Set{}, 0
		m.onDisk(now, r)
	case !m.isVoid(s.ID) && m.silent(now, s.ID) && now-m.asked > int64(gone):
		m.promiseVoid(now, s.ID)
	}
}

// givenUp reports whether the founder of s has said that the round that this process has accepted is over.
func (m *Machine) givenUp(s message.Set) bool {
	return slices.ContainsFunc(m.peers, func(p *peer) bool {
		return p.Boot == founderOf(s.ID) && p.setless && p.founding > m.record.Round
	})
}

// outside counts the other members of s that will take no part in it.
func (m *Machine) outside(s message.Set) (n int) {
	for _, name := range s.Members {
		p := m.latest(name)
		if p != nil && p.sent != never && (slices.Contains(p.void, s.ID) || p.lineage != "" && p.lineage != s.ID) {
			n++
		}
	}
	return n
}

// undo makes this process one without a set again if its set was founded and can have no quorum: so many members have promised to take
// no part in it, because they had heard nothing of the founder.
func (m *Machine) undo(now int64) {
	s := m.set
	if s.Version != 1 || m.quorumAt != never || len(s.Members) == 1 {
		return
	}
	n := 0
	for _, name := range s.Members {
		if p := m.latest(name); p != nil && slices.Contains(p.void, s.ID) {
			n++
		}
	}
	if n <= len(s.Members)-s.Majority() {
		return
	}
	r := m.record
	r.Set, r.Founding, r.Round = message.Set{}, message.Set{}, 0
	if !slices.Contains(r.Void, s.ID) {
		r.Void = append(slices.Clone(r.Void[max(0, len(r.Void)-maxVoid+1):]), s.ID)
	}
	if !m.onDisk(now, r) {
		return
	}
	m.founded++
	m.set, m.missed, m.proposal, m.pulse, m.unconfirmed = message.Set{}, nil, nil, nil, false
	m.enough = never
	m.countRight(now)
	m.beatAll(now)
}
