package quorum

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Set returns the newest version that this process knows. Zero if none.
func (m *Machine) Set() message.Set { return m.set }

// Unconfirmed reports whether this process has not yet seen the news of anybody who knows its set: then it acknowledges nobody,
// and may give the set up for one that ranks below it.
func (m *Machine) Unconfirmed() bool { return m.unconfirmed }

// In reports whether this process is counted.
func (m *Machine) In() bool { return m.set.Has(m.c.Self.Name) }

// Dissolved returns how often this process gave up its set for one of another lineage.
func (m *Machine) Dissolved() uint64 { return m.dissolved }

// knows is what a process says that it knows.
type knows struct {
	set message.Set
	// news is the number of its last news, unconfirmed says that it has not seen the news of anybody
	// who knew the set.
	news        uint64
	unconfirmed bool
	// proven: it has quorum in that set.
	proven bool
}

// learn takes in what p knows. A version of the set carries the news of the one before: whoever knows
// it knows of every claim that was granted by a majority of an earlier version, see docs/protocol.md.
// So a later version is taken only from somebody whose news has been seen. Who had no set, or one of another
// lineage, takes it to be able to read the news, and acknowledges nobody until it has.
func (m *Machine) learn(now int64, p *peer, k knows) {
	s := k.set
	informs := !k.unconfirmed && p.saw >= k.news
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
		m.unconfirmed = p.saw < k.news
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

// takes reports whether this process takes k's set in the place of its own. A set of another lineage takes no other's place
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
	return k.proven && (beats(s, m.set) || m.deserted(now, p, s) || max(m.quorumAt, m.lineageSince) < now-int64(yield))
}

// deserted reports whether this process has its set unconfirmed, and p, which the set counts, knows s of another
// lineage: so p has lost it in a crash, and waiting for its news is in vain. Nothing was acknowledged by
// unconfirmed, so nothing is broken by giving it up for a set that it outranks.
func (m *Machine) deserted(now int64, p *peer, s message.Set) bool {
	if !m.unconfirmed || s.ID == m.set.ID || !m.set.Has(p.Name) {
		return false
	}
	for _, q := range m.peers {
		if q != p && q.lineage == m.set.ID && m.set.Has(q.Name) && m.lives(now, q) {
			return false // its news can still be seen
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
		m.lineageSince, m.heard, m.unconfirmed, m.quorumAt, m.until = now, now, false, never, never
		if !old.Zero() {
			m.dissolved++
		}
		// What was acknowledged, shown and told was so in the other lineage.
		for _, p := range m.peers {
			p.reading, p.until, p.told, p.saw = never, never, 0, 0
		}
		for i := range m.given {
			m.given[i].shown = 0
		}
	}
	m.countRight(now)
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
