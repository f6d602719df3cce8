package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// Set returns the newest version that this process knows, zero if none.
func (m *Machine) Set() message.Set { return m.set }

// Unconfirmed reports whether this process has not yet seen the pending grants of any process that knew its set. Until then
// it acknowledges no heartbeat, and may give the set up for one that ranks lower.
func (m *Machine) Unconfirmed() bool { return m.unconfirmed }

// In reports whether this process is a voter.
func (m *Machine) In() bool { return m.set.Has(m.c.Self.Name) }

// Dissolved returns how often this process replaced its set by one of another cluster ID.
func (m *Machine) Dissolved() uint64 { return m.dissolved }

// peerState is the state that a peer reports in a heartbeat or acknowledgement.
type peerState struct {
	set message.Set
	// grantsSeq is the number of its last pending grants. unconfirmed: it has not seen the pending grants of any process
	// that knew the set.
	grantsSeq   uint64
	unconfirmed bool
	// proven: it has quorum in set.
	proven bool
}

// learn processes the state of p. A process may adopt a later version only from a peer whose pending grants it has seen:
// then every process that knows a version knows all claims granted by a majority of earlier versions (see
// docs/internals/protocol.md). A process with no set, or of another cluster ID, adopts it first and acknowledges no heartbeat until
// it has seen the pending grants.
func (m *Machine) learn(now int64, p *peer, k peerState) {
	s := k.set
	informs := !k.unconfirmed && p.grantsTaken >= k.grantsSeq
	switch {
	case k.unconfirmed || !validSet(s):
	case m.adopts(now, p, k) && (informs || s.ID != m.set.ID):
		if !m.wantSet(now, s) {
			break // the next heartbeat carries it again
		}
		// A process that finds itself a voter may have been one in an earlier run. Only if it saw its own addition, or has
		// accepted the founding, can it have made no promise yet.
		name, old := m.c.Self.Name, m.set
		if s.Has(name) && (m.unproven || !(old.Has(name) && old.ID == s.ID)) {
			added := old.ID == s.ID && old.Version+1 == s.Version && m.wish == message.Join
			if added && !m.unproven || m.record.Founding.ID == s.ID {
				m.recovery.needed = false
			} else {
				m.beginGrace(now)
			}
		}
		m.installSet(now, s)
		m.unconfirmed = p.grantsTaken < k.grantsSeq
	case informs && s.Equal(m.set):
		m.unconfirmed = false
	}
	if s.ID == m.set.ID {
		if i, ok := m.findAckGiven(p.Boot); ok {
			m.acksGiven[i].versionShown = max(m.acksGiven[i].versionShown, s.Version)
		}
	}
}

// adoptAfter is how long a process must have had no quorum before it replaces its set, however large, by one that has quorum.
const adoptAfter = 5 * time.Second

// adopts reports whether this process replaces its set by k's. A set of another cluster ID must be proven by quorum, since a
// set from an old disk may have no members left. A process without a set also takes one that includes it, because it has no
// other way to get quorum again, unless it has promised to take no part in it.
func (m *Machine) adopts(now int64, p *peer, k peerState) bool {
	s := k.set
	switch {
	case m.set.Zero():
		return k.proven || s.Has(m.c.Self.Name) && !m.isVoid(s.ID)
	case s.ID == m.set.ID:
		return outranks(s, m.set)
	}
	return k.proven && (outranks(s, m.set) || m.deserted(now, p, s) || max(m.quorumAt, m.clusterIDSince) < now-int64(adoptAfter))
}

// deserted reports whether p, a member of this process's unconfirmed set, knows s of another cluster ID and no other live
// member has this set: their pending grants cannot arrive any more. Nothing was acknowledged while unconfirmed, so giving
// the set up breaks no promise.
func (m *Machine) deserted(now int64, p *peer, s message.Set) bool {
	if !m.unconfirmed || s.ID == m.set.ID || !m.set.Has(p.Name) {
		return false
	}
	for _, q := range m.peers {
		if q != p && q.clusterID == m.set.ID && m.set.Has(q.Name) && m.lives(now, q) {
			return false // its pending grants can still arrive
		}
	}
	return true
}

// installSet makes s this process's set and announces it to all peers, once s is on disk.
func (m *Machine) installSet(now int64, s message.Set) bool {
	if !m.wantSet(now, s) {
		return false
	}
	old, missed := m.set, m.memberHeard
	m.unproven = false
	m.set, m.memberHeard = s, make([]int64, len(s.Members))
	m.proposal, m.lastHeartbeat, m.pass = nil, nil, message.Role{}
	for _, p := range m.peers {
		p.pass = message.Role{}
	}
	for i, name := range s.Members {
		m.memberHeard[i] = now
		if j, ok := slices.BinarySearch(old.Members, name); ok {
			m.memberHeard[i] = missed[j]
		}
	}
	if old.ID != s.ID {
		m.clusterIDSince, m.heard, m.unconfirmed, m.quorumAt, m.until = now, now, false, never, never
		if !old.Zero() {
			m.dissolved++
		}
		// This state belongs to the old cluster ID.
		for _, p := range m.peers {
			p.ackedSent, p.until, p.reportedVersion, p.grantsTaken = never, never, 0, 0
		}
		for i := range m.acksGiven {
			m.acksGiven[i].versionShown = 0
		}
	}
	m.countQuorum(now)
	m.sendHeartbeats(now)
	return true
}

// outranks reports whether a process with t should adopt s.
func outranks(s, t message.Set) bool {
	if s.ID != t.ID || s.Version != t.Version {
		return s.Outranks(t)
	}
	// Two sets with the same version: nodes were forgotten by hand on both sides of a network partition.
	return cmp.Or(cmp.Compare(len(s.Members), len(t.Members)), slices.Compare(s.Members, t.Members), slices.CompareFunc(s.Roles, t.Roles, message.Role.CompareAll)) > 0
}

// validSet reports whether s is a valid set: an ID, a version, and sorted unique names.
func validSet(s message.Set) bool {
	if s.ID == "" || s.Version == 0 || len(s.Members) == 0 || s.Members[0] == "" {
		return false
	}
	for i, name := range s.Members[1:] {
		if s.Members[i] >= name {
			return false
		}
	}
	return slices.IsSortedFunc(s.Roles, message.Role.Compare)
}

// follows reports whether t can be the next version after s: one name more or less, or other roles.
func follows(s, t message.Set) bool {
	if !validSet(t) || t.ID != s.ID || t.Version != s.Version+1 {
		return false
	}
	if slices.Equal(s.Members, t.Members) {
		return !slices.Equal(s.Roles, t.Roles)
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

// withMember returns the next version after s, with name added.
func withMember(s message.Set, name string) message.Set {
	i, _ := slices.BinarySearch(s.Members, name)
	return message.Set{ID: s.ID, Version: s.Version + 1, Members: slices.Insert(slices.Clone(s.Members), i, name), Roles: s.Roles}
}

// withoutMember returns the next version after s, with name removed.
func withoutMember(s message.Set, name string) message.Set {
	i, _ := slices.BinarySearch(s.Members, name)
	return message.Set{ID: s.ID, Version: s.Version + 1, Members: slices.Delete(slices.Clone(s.Members), i, i+1), Roles: s.Roles}
}

// freshID returns the ID of the next set that this process founds: its boot ID, with a number from the second set on.
func (m *Machine) freshID() string {
	if m.founded == 0 {
		return m.c.Self.Boot
	}
	return fmt.Sprintf("%s.%d", m.c.Self.Boot, m.founded)
}

// founderOf returns the boot ID of the process that founded the set id.
func founderOf(id string) string {
	boot, _, _ := strings.Cut(id, ".")
	return boot
}

// silent reports whether the founder of the set id has not been heard for long.
func (m *Machine) silent(now int64, id string) bool {
	boot := founderOf(id)
	return boot != m.c.Self.Boot && !slices.ContainsFunc(m.peers, func(p *peer) bool {
		return p.Boot == boot && p.heard >= now-int64(founderLostAfter)
	})
}

// isVoid reports whether this process has promised to take no part in the founding id. It then adopts that set only from a
// process that has quorum in it.
func (m *Machine) isVoid(id string) bool { return slices.Contains(m.record.Void, id) }

func (m *Machine) promiseVoid(now int64, id string) {
	r := m.record
	r.Void = append(slices.Clone(r.Void[max(0, len(r.Void)-maxVoid+1):]), id)
	m.onDisk(now, r)
}

// reviewFounding drops the accepted founding when it can no longer come into force: its founder has given it up, or is lost and so
// many members have promised to take no part that no majority remains.
func (m *Machine) reviewFounding(now int64) {
	if !m.record.Set.Zero() {
		return
	}
	for _, p := range m.peers {
		for _, id := range p.void {
			if m.heardRecently(now, p) && !m.isVoid(id) && m.silent(now, id) {
				m.promiseVoid(now, id)
			}
		}
	}
	s := m.record.Founding
	switch {
	case s.Zero():
	case m.givenUp(s), m.isVoid(s.ID) && m.abstaining(s)+1 > len(s.Members)-s.Majority():
		r := m.record
		r.Founding, r.Round = message.Set{}, 0
		m.onDisk(now, r)
	case !m.isVoid(s.ID) && m.silent(now, s.ID) && now-m.asked > int64(founderLostAfter):
		m.promiseVoid(now, s.ID)
	}
}

// givenUp reports whether the founder of s has announced that the accepted round is over.
func (m *Machine) givenUp(s message.Set) bool {
	return slices.ContainsFunc(m.peers, func(p *peer) bool {
		return p.Boot == founderOf(s.ID) && p.setless && p.founding > m.record.Round
	})
}

// abstaining counts the other members of s that will take no part in it.
func (m *Machine) abstaining(s message.Set) (n int) {
	for _, name := range s.Members {
		p := m.latest(name)
		if p != nil && p.sent != never && (slices.Contains(p.void, s.ID) || p.clusterID != "" && p.clusterID != s.ID) {
			n++
		}
	}
	return n
}

// dropVoidSet drops a founded set that can get no quorum, because too many members have promised to take no part in it after they
// heard nothing of its founder.
func (m *Machine) dropVoidSet(now int64) {
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
	m.set, m.memberHeard, m.proposal, m.lastHeartbeat, m.unconfirmed = message.Set{}, nil, nil, nil, false
	m.enoughFoundersSince = never
	m.countQuorum(now)
	m.sendHeartbeats(now)
}
