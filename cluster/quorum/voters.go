package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Set returns the newest version that this process knows. Zero if none.
func (m *Machine) Set() message.Set { return m.set }

// Unconfirmed reports whether this process has not yet seen the pending grants of anybody who knows its set: then it acknowledges nobody,
// and may give the set up for one that ranks below it.
func (m *Machine) Unconfirmed() bool { return m.unconfirmed }

// In reports whether this process is counted.
func (m *Machine) In() bool { return m.set.Has(m.c.Self.Name) }

// Dissolved returns how often this process gave up its set for one of another cluster ID.
func (m *Machine) Dissolved() uint64 { return m.dissolved }

// knows is what a process says that it knows.
type knows struct {
	set message.Set
	// pendingGrants is the number of its last pending grants, unconfirmed says that it has not seen the pending grants of anybody
	// who knew the set.
	pendingGrants uint64
	unconfirmed   bool
	// proven: it has quorum in that set.
	proven bool
}

// learn takes in what p knows. A version of the set carries the pending grants of the one before: whoever knows
// it knows of every claim that was granted by a majority of an earlier version, see docs/protocol.md.
// So a later version is taken only from a process whose pending grants have been seen. Who had no set, or one of another
// cluster ID, takes it to be able to read the pending grants, and acknowledges nobody until it has.
func (m *Machine) learn(now int64, p *peer, k knows) {
	s := k.set
	informs := !k.unconfirmed && p.saw >= k.pendingGrants
	switch {
	case k.unconfirmed || !sound(s):
	case m.takes(now, p, k) && (informs || s.ID != m.set.ID):
		if !m.wantSet(now, s) {
			break // the next heartbeat says so again
		}
		// A process that has just started and finds itself counted may have been so
		// before. Only one that was seen to be taken in, or has accepted the founding, has promised nothing yet.
		name, old := m.c.Self.Name, m.set
		if s.Has(name) && !(old.Has(name) && old.ID == s.ID) {
			if old.ID == s.ID && old.Version+1 == s.Version && m.wish == message.Join || m.record.Founding.ID == s.ID {
				m.recovery.needed = false
			} else {
				m.beginGrace(now)
			}
		}
		m.adopt(now, s)
		m.unconfirmed = p.saw < k.pendingGrants
	case informs && s.Equal(m.set):
		m.unconfirmed = false
	}
	if s.ID == m.set.ID {
		if i, ok := m.findGiven(p.Boot); ok {
			m.given[i].shown = max(m.given[i].shown, s.Version)
		}
	}
}

// yield is how long a process has had no quorum when it gives its set up for one that has, whichever is larger.
const yield = 5 * time.Second

// takes reports whether this process takes k's set in the place of its own. A set of another cluster ID takes no other's place
// unless the process that shows it has quorum in it: a set from an old disk may be one that nobody is left of. A process without
// a set takes one that counts it all the same, for how else could it get quorum again; but not one that it has promised to take no part in.
func (m *Machine) takes(now int64, p *peer, k knows) bool {
	s := k.set
	switch {
	case m.set.Zero():
		return k.proven || s.Has(m.c.Self.Name) && !m.isVoid(s.ID)
	case s.ID == m.set.ID:
		return beats(s, m.set)
	}
	return k.proven && (beats(s, m.set) || m.deserted(now, p, s) || max(m.quorumAt, m.clusterIDSince) < now-int64(yield))
}

// deserted reports whether this process has its set unconfirmed, and p, which the set counts, knows s of another
// cluster ID: so p has lost it in a crash, and waiting for its pending grants is in vain. Nothing was acknowledged by
// unconfirmed, so nothing is broken by giving it up for a set that it outranks.
func (m *Machine) deserted(now int64, p *peer, s message.Set) bool {
	if !m.unconfirmed || s.ID == m.set.ID || !m.set.Has(p.Name) {
		return false
	}
	for _, q := range m.peers {
		if q != p && q.clusterID == m.set.ID && m.set.Has(q.Name) && m.lives(now, q) {
			return false // its pending grants can still be seen
		}
	}
	return true
}

// adopt makes s this process's set, and tells everybody, if the disk has it.
func (m *Machine) adopt(now int64, s message.Set) bool {
	if !m.wantSet(now, s) {
		return false
	}
	old, missed := m.set, m.missed
	m.set, m.missed = s, make([]int64, len(s.Members))
	m.proposal, m.pulse = nil, nil
	for i, name := range s.Members {
		m.missed[i] = now
		if j, ok := slices.BinarySearch(old.Members, name); ok {
			m.missed[i] = missed[j]
		}
	}
	if old.ID != s.ID {
		m.clusterIDSince, m.heard, m.unconfirmed, m.quorumAt, m.until = now, now, false, never, never
		if !old.Zero() {
			m.dissolved++
		}
		// What was acknowledged, shown and told was so in the other cluster ID.
		for _, p := range m.peers {
			p.reading, p.until, p.told, p.saw = never, never, 0, 0
		}
		for i := range m.given {
			m.given[i].shown = 0
		}
	}
	m.countQuorum(now)
	m.beatAll(now)
	return true
}

// beats reports whether a process that knows t should take s in its place.
func beats(s, t message.Set) bool {
	if s.ID != t.ID || s.Version != t.Version {
		return s.Outranks(t)
	}
	// Two sets of one version: nodes were forgotten by hand on both sides of a cut.
	return cmp.Or(cmp.Compare(len(s.Members), len(t.Members)), slices.Compare(s.Members, t.Members)) > 0
}

// sound reports whether s can be a set that somebody knows.
func sound(s message.Set) bool {
	if s.ID == "" || s.Version == 0 || len(s.Members) == 0 || s.Members[0] == "" {
		return false
	}
	for i, name := range s.Members[1:] {
		if s.Members[i] >= name {
			return false
		}
	}
	return true
}

// follows reports whether t can be the version after s: one name more or less.
func follows(s, t message.Set) bool {
	if !sound(t) || t.ID != s.ID || t.Version != s.Version+1 {
		return false
	}
	small, large := s, t
	if len(small.Members) > len(large.Members) {
		small, large = t, s
	}
	if len(small.Members)+1 != len(large.Members) {
		return false
	}
	for _, name := range small.Members {
		if !large.Has(name) {
			return false
		}
	}
	return true
}

// with returns the version after s that counts name too.
func with(s message.Set, name string) message.Set {
	i, _ := slices.BinarySearch(s.Members, name)
	return message.Set{ID: s.ID, Version: s.Version + 1, Members: slices.Insert(slices.Clone(s.Members), i, name)}
}

// without returns the version after s that does not count name.
func without(s message.Set, name string) message.Set {
	i, _ := slices.BinarySearch(s.Members, name)
	return message.Set{ID: s.ID, Version: s.Version + 1, Members: slices.Delete(slices.Clone(s.Members), i, i+1)}
}

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
		if p != nil && p.sent != never && (slices.Contains(p.void, s.ID) || p.clusterID != "" && p.clusterID != s.ID) {
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
	m.countQuorum(now)
	m.beatAll(now)
}
