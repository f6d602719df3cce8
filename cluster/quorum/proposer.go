package quorum

import (
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

const (
	// ballotTimeout is how long a ballot may go without progress, in addition to two round trips. stagger is added for every
	// lower name, so that two proposers do not outbid each other forever.
	ballotTimeout = 500 * time.Millisecond
	stagger       = 100 * time.Millisecond
)

// proposal is this process's attempt to get the next version agreed.
type proposal struct {
	ballot message.Ballot
	// set is the proposed set, or the one that a voter has accepted under the highest ballot.
	set            message.Set
	acceptedBallot message.Ballot
	// votes are the names that have promised (accepted, if accepting).
	accepting bool
	votes     []string
	// outbid: a voter has promised a higher ballot.
	outbid           bool
	sent, progressed int64
}

// propose starts, repeats or gives up a ballot.
func (m *Machine) propose(now int64) {
	if p := m.proposal; p != nil {
		rank, _ := slices.BinarySearch(m.set.Members, m.c.Self.Name)
		if p.progressed > now-int64(ballotTimeout+time.Duration(rank)*stagger)-2*m.longestRTT() {
			if p.sent <= now-int64(resend)-3*m.longestRTT()/2 && !p.outbid {
				m.continueBallot(now)
			}
			return
		}
		m.proposal = nil
	}
	// An optimization: a ballot would wait, as continueBallot counts no own vote before this process may accept the next version.
	if m.failing || !m.coordinates(now) || !m.mayAcceptNext(now) {
		return
	}
	s, ok := m.nextVersion(now)
	if a := m.nextAcceptor(); !ok && !a.accepted.Zero() {
		// A ballot has ended without a result. A later one must not have its set then, when other members may be down.
		s, ok = a.accepted, true
	}
	if ok {
		m.round++
		m.proposal = &proposal{ballot: message.Ballot{Round: m.round, Boot: m.c.Self.Boot}, set: s, progressed: now}
		m.continueBallot(now)
	}
}

// continueBallot casts this process's own vote and requests the missing ones. It records the vote even where it does not count, so
// that a recovering voter can learn of it.
func (m *Machine) continueBallot(now int64) {
	p, a := m.proposal, m.nextAcceptor()
	p.sent = now
	if !p.accepting {
		if !a.promise(p.ballot) {
			p.outbid = true
			return
		}
		if m.votes(now) {
			p.prefer(a.accepted, a.acceptedBallot)
			p.vote(now, m.c.Self.Name)
		}
		if len(p.votes) < m.set.Majority() {
			m.sendToMissing(&message.Prepare{ID: m.set.ID, Version: p.set.Version, Ballot: p.ballot})
			return
		}
		p.accepting, p.votes = true, nil
	}
	if !a.accept(p.set, p.ballot) {
		p.outbid = true
		return
	}
	if m.votes(now) && m.mayAcceptNext(now) {
		p.vote(now, m.c.Self.Name)
	}
	if len(p.votes) >= m.set.Majority() {
		m.installSet(now, p.set)
		return
	}
	m.sendToMissing(&message.Accept{Set: p.set, Ballot: p.ballot})
}

// sendToMissing sends b to the members whose votes are missing.
func (m *Machine) sendToMissing(b message.Body) {
	for _, name := range m.set.Members {
		if slices.Contains(m.proposal.votes, name) {
			continue
		}
		if q := m.latest(name); q != nil {
			m.send(q.Peer, b)
		}
	}
}

// prefer takes the set that a voter has accepted under the highest ballot so far.
func (p *proposal) prefer(s message.Set, under message.Ballot) {
	if !s.Zero() && p.acceptedBallot.Compare(under) < 0 {
		p.set, p.acceptedBallot = s, under
	}
}

func (p *proposal) vote(now int64, name string) {
	if !slices.Contains(p.votes, name) {
		p.votes, p.progressed = append(p.votes, name), now
	}
}

// promise handles a response to Prepare. clusterID is the sender's.
func (m *Machine) promise(now int64, from *peer, clusterID string, b *message.Promise) {
	if clusterID == m.set.ID && b.Version == m.set.Version+1 {
		m.takePromise(now, from, b)
	}
	p := m.votedFor(from, b.Version, b.Ballot, b.OK)
	if p == nil || p.accepting {
		return
	}
	if follows(m.set, b.Accepted) {
		p.prefer(b.Accepted, b.Under)
	}
	p.vote(now, from.Name)
	if len(p.votes) >= m.set.Majority() {
		m.continueBallot(now)
	}
}

// accepted handles a response to Accept.
func (m *Machine) accepted(now int64, from *peer, b *message.Accepted) {
	if b.Version == 1 {
		m.foundingAccepted(now, from, b)
		return
	}
	p := m.votedFor(from, b.Version, b.Ballot, b.OK)
	if p == nil || !p.accepting {
		return
	}
	p.vote(now, from.Name)
	if len(p.votes) >= m.set.Majority() {
		m.installSet(now, p.set)
	}
}

// votedFor returns the proposal if the response is a vote for it, else nil.
func (m *Machine) votedFor(from *peer, version uint64, b message.Ballot, ok bool) *proposal {
	m.round = max(m.round, b.Round)
	p := m.proposal
	if p == nil || version != p.set.Version || !m.set.Has(from.Name) {
		return nil
	}
	if !ok && p.ballot.Compare(b) < 0 {
		p.outbid = true
	}
	if !ok || p.outbid || p.ballot != b {
		return nil
	}
	return p
}

// coordinatorSilence is the silence after which a member is skipped as coordinator; longer if its ackTTL is.
const coordinatorSilence = time.Second

// coordinates reports whether this process proposes changes: it has the lowest name of the live members. Members that wish
// to leave come last, so that a remaining member is the first to know that they may.
func (m *Machine) coordinates(now int64) bool {
	lowest := ""
	for _, name := range m.set.Members {
		wish := m.wish
		if name != m.c.Self.Name {
			p := m.latest(name)
			if p == nil || p.isolated || m.outvoted(now, p) || p.heard < now-max(int64(coordinatorSilence), m.silence(p)) {
				continue
			}
			wish = p.wish
		}
		if wish != message.Leave {
			return name == m.c.Self.Name
		}
		if lowest == "" {
			lowest = name
		}
	}
	return lowest == m.c.Self.Name
}

// nextVersion returns the next version if a change is due: first leaves, then joins, then members to forget, then roles to pass on. The coordinator never
// removes itself: if all leave, it remains.
func (m *Machine) nextVersion(now int64) (message.Set, bool) {
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.wish == message.Leave {
			return m.reassign(withoutMember(m.set, name), name), true
		}
	}
	for _, p := range m.peers {
		if p.wish == message.Join && m.joinable(now, p) {
			return withMember(m.set, p.Name), true
		}
	}
	for i, name := range m.set.Members {
		if name != m.c.Self.Name && m.memberHeard[i] <= now-int64(m.c.ForgetAfter) {
			return m.reassign(withoutMember(m.set, name), name), true
		}
	}
	return m.passed()
}

// joinable reports whether p may become a voter: it is alive and acknowledges this process. An unreachable voter could cost
// the others their majority.
func (m *Machine) joinable(now int64, p *peer) bool {
	return !m.set.Has(p.Name) && m.lives(now, p) && p.until >= now
}
