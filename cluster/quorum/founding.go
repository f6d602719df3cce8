package quorum

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

const (
	// foundingTimeout is how long a founder waits for acceptances before it gives up its round; declinedFor is how long a
	// process that did not accept is chosen last.
	foundingTimeout = time.Second
	declinedFor     = 3 * time.Second
	// foundingPause separates two rounds of a founder, so that the others learn that the first has ended.
	foundingPause = 300 * time.Millisecond
	// foundingStagger is the delay of a process's founding after that of the process with the next lower name.
	foundingStagger = time.Second
	// founderLostAfter is the silence after which a founder counts as lost.
	founderLostAfter = 3 * time.Second
	// maxVoid bounds the foundings that a process remembers to have rejected for good.
	maxVoid = 8
)

// founder is this process's own round of founding. A voter set is founded by Config.Expect processes: each accepts one
// founding at a time, and the set is in force when all have accepted. If Expect is more than half of the processes that
// ever start without a set, two foundings share a process, so at most one comes into force (see docs/internals/protocol.md).
type founder struct {
	set         message.Set
	peers       []message.Peer // without this process
	accepted    []message.Peer
	began, sent int64
}

// MayFound sets whether the machine may take part in founding a voter set (with Config.Expect above
// 0 and no known set), and decide as the only voter of a set from disk. Initially it may not. Allow
// it once the join targets were asked and SetView was called with the result, unless a target has
// rejected this process. all: every target has answered, or is this process.
func (m *Machine) MayFound(now int64, may, all bool) {
	m.now, m.allAnswered = now, all
	switch {
	case !may:
		m.mayFound = never
	case m.mayFound == never:
		m.mayFound = now
	}
	m.prove(now)
	m.found(now)
}

// founds reports whether this process may take part in founding a set.
func (m *Machine) founds() bool {
	return m.set.Zero() && m.record.Set.Zero() && m.c.Expect > 0 && m.mayFound != never &&
		!m.failing
}

// found runs the founding steps that are due.
func (m *Machine) found(now int64) {
	if !m.set.Zero() {
		m.founder = nil
		return
	}
	if m.founder != nil {
		m.continueFounding(now)
		return
	}
	m.reviewFounding(now)
	candidates := m.candidates(now)
	if !m.founds() || !m.record.Founding.Zero() || len(candidates) < m.c.Expect || m.earlierBootKnown(now) || len(m.unheard(now)) > 0 {
		m.enoughFoundersSince = never
		return
	}
	if m.enoughFoundersSince == never {
		m.enoughFoundersSince = now
	}
	rank := slices.Index(candidates, m.c.Self)
	if now-m.enoughFoundersSince >= int64(rank)*int64(foundingStagger) && now >= m.nextRound {
		m.beginFounding(now, slices.Delete(candidates, rank, rank+1))
	}
}

// noteEarlierBoot notes a heartbeat from a process with a voter set to an earlier boot of this one: that process has not yet
// learned of the restart by gossip. It may be the first message that a restarted node receives.
func (m *Machine) noteEarlierBoot(now int64, e message.Envelope) {
	h, ok := e.Body.(*message.Heartbeat)
	if ok && e.To.Name == m.c.Self.Name && e.From.Name != m.c.Self.Name && !h.Set.Zero() {
		maps.DeleteFunc(m.missed, func(_ message.Peer, at int64) bool { return at <= now-int64(peerMemory) })
		m.missed[e.From] = now
	}
}

// earlierBootKnown reports whether an earlier boot of this process was addressed recently.
func (m *Machine) earlierBootKnown(now int64) bool {
	for _, at := range m.missed {
		if at > now-int64(peerMemory) {
			return true
		}
	}
	return false
}

// missing reports whether a process that addressed an earlier boot of this one recently has not been
// heard by this one.
func (m *Machine) missing(now int64) bool {
	for p, at := range m.missed {
		if i, ok := m.find(p); at > now-int64(peerMemory) && !(ok && m.peers[i].sent != never) {
			return true
		}
	}
	return false
}

// candidates returns the processes that can found a set, sorted by name and including this one: those heard recently that
// know no set and have the same Expect. It returns none if a heard process knows a set, since this one should join it.
func (m *Machine) candidates(now int64) []message.Peer {
	all := []message.Peer{m.c.Self}
	for _, p := range m.peers {
		switch {
		case p.sent == never || !m.heardRecently(now, p):
		case !p.setless:
			return nil
		case p.expect == m.c.Expect:
			all = append(all, p.Peer)
		}
	}
	slices.SortFunc(all, func(a, b message.Peer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// prove ends unproven. A set from disk may be out of date: the directory may be a copy from before
// others joined, and they are a majority without this process then. With several voters, the
// acknowledgements of a majority show that it is not. The only voter needs none, so it must first
// hear all members of its view and all that address an earlier boot of it, of which none knows a
// later version or has quorum in another set, and must have had answers from all join targets, or
// else hear as many processes as found a set.
func (m *Machine) prove(now int64) {
	if !m.unproven || m.mayFound == never || m.missing(now) || len(m.unheard(now)) > 0 {
		return
	}
	heard := 1
	for _, p := range m.peers {
		switch {
		case p.sent == never:
		case p.clusterID == m.set.ID && p.version > m.set.Version,
			p.clusterID != m.set.ID && !p.setless && !p.noQuorum:
			return // this process adopts that set
		case m.heardRecently(now, p):
			heard++
		}
	}
	if m.allAnswered || heard >= max(2, m.c.Expect) {
		m.unproven = false
		m.countQuorum(now)
	}
}

// Unproven reports whether this process is the only voter of a set that it has read from disk, and
// must first hear from others that there is no later version.
func (m *Machine) Unproven() bool { return m.unproven }

// unheard returns the processes that must first report whether they know a set. A process that left
// the view counts too, because this process may be the isolated one. With Expect 1, or a set to be
// proven, no other acceptance is needed, so it waits as long as they are in the view.
func (m *Machine) unheard(now int64) (peers []message.Peer) {
	waited := now-m.mayFound >= int64(foundAfter)
	for _, p := range m.peers {
		if p.sent == never && (!waited || p.inView && (m.c.Expect == 1 || m.unproven)) {
			peers = append(peers, p.Peer)
		}
	}
	return peers
}

// beginFounding starts a round with the first Expect-1 of others.
func (m *Machine) beginFounding(now int64, others []message.Peer) {
	late := func(p message.Peer) int {
		if i, ok := m.find(p); ok && m.peers[i].declined > now-int64(declinedFor) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(others, func(a, b message.Peer) int { return cmp.Compare(late(a), late(b)) })
	others = others[:m.c.Expect-1]
	names := []string{m.c.Self.Name}
	for _, p := range others {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	m.founder = &founder{
		set: message.Set{ID: m.freshID(), Version: 1, Members: names}, peers: others, began: now, sent: never,
	}
	// A founder that cannot write the set would keep all that have accepted it waiting.
	m.probe = m.c.Disk
	m.continueFounding(now)
}

// continueFounding requests the missing acceptances, adopts the set when all have arrived, and gives up after foundingTimeout.
func (m *Machine) continueFounding(now int64) {
	f := m.founder
	if f.sent == never {
		if m.probe {
			return
		}
		f.began = now
	}
	if len(f.accepted) == len(f.peers) {
		m.installSet(now, f.set)
		return
	}
	if now-f.began >= int64(foundingTimeout) {
		m.abandonRound(now)
		return
	}
	if f.sent > now-int64(resend) {
		return
	}
	f.sent = now
	for _, p := range f.missing() {
		m.send(p, &message.Accept{Set: f.set, Ballot: m.foundingBallot()})
	}
}

func (f *founder) missing() []message.Peer {
	return slices.DeleteFunc(slices.Clone(f.peers), func(p message.Peer) bool { return slices.Contains(f.accepted, p) })
}

func (m *Machine) foundingBallot() message.Ballot {
	return message.Ballot{Round: m.foundingRound, Boot: m.c.Self.Boot}
}

// abandonRound ends this process's round; its set will not come into force. Heartbeats announce that.
func (m *Machine) abandonRound(now int64) {
	for _, p := range m.founder.missing() {
		if i, ok := m.find(p); ok {
			m.peers[i].declined = now
		}
	}
	m.founder, m.lastHeartbeat = nil, nil
	m.foundingRound++
	m.nextRound, m.enoughFoundersSince = now+int64(foundingPause), never // now the founder with the lower name goes first
	m.sendHeartbeats(now)
}

// foundingAccepted handles a response to this process's own proposal.
func (m *Machine) foundingAccepted(now int64, from *peer, b *message.Accepted) {
	f := m.founder
	if f == nil || b.Ballot != m.foundingBallot() || !slices.Contains(f.peers, from.Peer) || slices.Contains(f.accepted, from.Peer) {
		return
	}
	if !b.OK {
		from.declined = now
		m.abandonRound(now)
		return
	}
	f.accepted = append(f.accepted, from.Peer)
	m.found(now)
}

// acceptFounding responds to a founder's proposal. It accepts once the acceptance is on disk.
func (m *Machine) acceptFounding(now int64, from *peer, b *message.Accept) {
	if b.Ballot.Round < from.founding {
		return // already given up
	}
	ok := founderOf(b.Set.ID) == from.Boot && b.Ballot.Boot == from.Boot && m.acceptable(now, b.Set)
	if ok {
		r := m.record
		if r.Founding.Zero() || r.Round < b.Ballot.Round {
			r.Founding, r.Round = b.Set, b.Ballot.Round
		}
		if !m.onDisk(now, r) {
			return // the founder sends it again
		}
		ok = r.Round == b.Ballot.Round
	}
	m.send(from.Peer, &message.Accepted{Version: b.Set.Version, Ballot: b.Ballot, OK: ok})
}

// acceptable reports whether this process may accept s: it has accepted no other founding, and hears all members of s, none
// of which knows a set.
func (m *Machine) acceptable(now int64, s message.Set) bool {
	held := m.record.Founding
	if !m.founds() || m.founder != nil || !validSet(s) || len(s.Members) != m.c.Expect || m.isVoid(s.ID) || !held.Zero() && held.ID != s.ID {
		return false
	}
	candidates := m.candidates(now)
	for _, name := range s.Members {
		if !slices.ContainsFunc(candidates, func(p message.Peer) bool { return p.Name == name }) {
			return false
		}
	}
	return s.Has(m.c.Self.Name)
}

// Forget removes name from the voter set without a majority, on the operator's command. The error is a member.Rejection.
func (m *Machine) Forget(now int64, name string) error {
	m.now = now
	switch p := m.latest(name); {
	case m.set.Zero():
		return member.ErrNoSet
	case name == m.c.Self.Name:
		return member.ErrThisNode
	case !m.set.Has(name):
		return member.ErrNotVoter
	case p != nil && m.heardRecently(now, p):
		return member.ErrAlive
	case len(m.set.Members) == 1:
		return member.ErrLastVoter
	}
	m.operatorSet = m.reassign(withoutMember(m.set, name), name)
	m.adoptOperatorSet(now)
	return nil
}

// Bootstrap founds a new voter set with only this process, on the operator's command. The error is member.ErrHasQuorum.
func (m *Machine) Bootstrap(now int64) error {
	m.now = now
	if now < m.until {
		return member.ErrHasQuorum
	}
	if m.set.ID == m.freshID() || m.record.Set.ID == m.freshID() {
		m.founded++
	}
	m.founder = nil
	m.operatorSet = message.Set{ID: m.freshID(), Version: 1, Members: []string{m.c.Self.Name}}
	m.adoptOperatorSet(now)
	return nil
}

// adoptOperatorSet adopts the set made by Forget or Bootstrap once it is on disk.
func (m *Machine) adoptOperatorSet(now int64) {
	s := m.operatorSet
	if s.Zero() {
		return
	}
	if s.ID == m.set.ID && s.Version <= m.set.Version {
		m.operatorSet = message.Set{} // superseded by another version
		return
	}
	if m.installSet(now, s) {
		m.operatorSet = message.Set{}
	}
}

// recovery gives a restarted voter its vote back. It has lost its promises and acceptances, so it asks all other members
// and takes the latest of theirs: a proposer has recorded its own proposal, and a member that has heard this boot counts no
// vote of an older one. If a member does not respond, the vote stays suspended until that member would be removed from the
// set.
type recovery struct {
	needed bool
	until  int64
	asked  int64
}

// recover requests the missing reports.
func (m *Machine) recover(now int64) {
	r := &m.recovery
	if !r.needed {
		return
	}
	if now >= r.until || m.allReported() {
		r.needed = false
		return
	}
	if r.asked > now-int64(resend)-3*m.longestRTT()/2 {
		return
	}
	r.asked = now
	// The lowest ballot outbids no other, and the response reports the acceptor's state in any case.
	b := &message.Prepare{ID: m.set.ID, Version: m.set.Version + 1, Ballot: message.Ballot{Boot: m.c.Self.Boot}}
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.reportedVersion != b.Version {
			m.send(p.Peer, b)
		}
	}
}

// takePromise takes a member's promise and acceptance.
func (m *Machine) takePromise(now int64, from *peer, b *message.Promise) {
	if !m.recovery.needed {
		return
	}
	a := m.nextAcceptor()
	a.promise(b.Ballot)
	if follows(m.set, b.Accepted) && a.acceptedBallot.Compare(b.Under) < 0 {
		a.accepted, a.acceptedBallot = b.Accepted, b.Under
	}
	from.reportedVersion = b.Version
	m.recover(now)
}

func (m *Machine) allReported() bool {
	for _, name := range m.set.Members {
		if name == m.c.Self.Name {
			continue
		}
		if p := m.latest(name); p == nil || p.reportedVersion != m.set.Version+1 {
			return false
		}
	}
	return true
}

// Waiting describes what a process without a voter set waits for.
type Waiting struct {
	// May: it may take part in founding a set of Expect processes; see Config.Expect and MayFound.
	May    bool
	Expect int
	// Have are the names of the processes that can found a set with this one, itself included. Others expect another
	// number.
	Have   []string
	Others []Expecting
	// Know are the processes that know a set in which they have no quorum. Silent are those in the view that are not heard.
	Know, Silent []message.Peer
	// Missed: other processes still address an earlier boot of this one.
	Missed bool
	// Accepted is the founding that this process has accepted and that is not in force.
	Accepted message.Set
	// CannotStore are the names of the processes that take no part because their disks fail.
	CannotStore []string
}

// Expecting is a process with another Expect.
type Expecting struct {
	Name   string
	Expect int
}

// Waiting returns what this process waits for while it knows no set.
func (m *Machine) Waiting(now int64) Waiting {
	w := Waiting{May: m.founds(), Expect: m.c.Expect, Missed: m.earlierBootKnown(now), Accepted: m.record.Founding, Have: []string{m.c.Self.Name}}
	for _, p := range m.peers {
		switch {
		case p.sent == never || !m.heardRecently(now, p):
			if p.inView {
				w.Silent = append(w.Silent, p.Peer)
			}
		case p.cannotStore:
			w.CannotStore = append(w.CannotStore, p.Name)
		case !p.setless:
			w.Know = append(w.Know, p.Peer)
		case p.expect == m.c.Expect:
			w.Have = append(w.Have, p.Name)
		default:
			w.Others = append(w.Others, Expecting{p.Name, p.expect})
		}
	}
	slices.Sort(w.Have)
	return w
}
