package quorum

import (
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

const (
	// patience is how long a ballot may go without progress, beside two round trips, and stagger how much
	// more for every lower name, so that two proposers do not outbid each other for ever.
	patience = 500 * time.Millisecond
	stagger  = 100 * time.Millisecond
)

// proposal is this process's attempt to have the next version agreed on.
type proposal struct {
	ballot message.Ballot
	// set is what this process wants, or what has been accepted of others, of that
	// what was accepted under the highest ballot.
	set   message.Set
	under message.Ballot
	// votes are the names that have promised, or accepted when accepting.
	accepting bool
	votes     []string
	// outbid: a higher ballot has been promised somewhere.
	outbid      bool
	sent, moved int64
}

// propose begins, repeats or gives up a ballot, as is due.
func (m *Machine) propose(now int64) {
	if p := m.proposal; p != nil {
		rank, _ := slices.BinarySearch(m.set.Members, m.c.Self.Name)
		if p.moved > now-int64(patience+time.Duration(rank)*stagger)-2*m.slowest() {
			if p.sent <= now-int64(resend)-3*m.slowest()/2 && !p.outbid {
				m.pursue(now)
			}
			return
		}
		m.proposal = nil
	}
	// What guards is that pursue counts no own vote before this process is settled. Here that only spares a ballot that would
	// wait for this vote.
	if m.failing || !m.coordinates(now) || !m.settled(now) {
		return
	}
	if s, ok := m.due(now); ok {
		m.round++
		m.proposal = &proposal{ballot: message.Ballot{Round: m.round, Boot: m.c.Self.Boot}, set: s, moved: now}
		m.pursue(now)
	}
}

// pursue casts this process's own vote, notes it even where it does not count, so
// that who asks for what was accepted is told, and asks for the votes that lack.
func (m *Machine) pursue(now int64) {
	p, a := m.proposal, m.instance()
	p.sent = now
	if !p.accepting {
		if !a.promise(p.ballot) {
			p.outbid = true
			return
		}
		if m.votes(now) {
			p.prefer(a.accepted, a.under)
			p.vote(now, m.c.Self.Name)
		}
		if len(p.votes) < m.set.Majority() {
			m.ask(&message.Prepare{ID: m.set.ID, Version: p.set.Version, Ballot: p.ballot})
			return
		}
		p.accepting, p.votes = true, nil
	}
	if !a.accept(p.set, p.ballot) {
		p.outbid = true
		return
	}
	if m.votes(now) && m.settled(now) {
		p.vote(now, m.c.Self.Name)
	}
	if len(p.votes) >= m.set.Majority() {
		m.adopt(now, p.set)
		return
	}
	m.ask(&message.Accept{Set: p.set, Ballot: p.ballot})
}

// ask sends b to the members whose votes lack.
func (m *Machine) ask(b message.Body) {
	for _, name := range m.set.Members {
		if slices.Contains(m.proposal.votes, name) {
			continue
		}
		if q := m.latest(name); q != nil {
			m.send(q.Peer, b)
		}
	}
}

// prefer takes over what a voter has accepted if it is the latest of that.
func (p *proposal) prefer(s message.Set, under message.Ballot) {
	if !s.Zero() && p.under.Compare(under) < 0 {
		p.set, p.under = s, under
	}
}

func (p *proposal) vote(now int64, name string) {
	if !slices.Contains(p.votes, name) {
		p.votes, p.moved = append(p.votes, name), now
	}
}

// promise takes an answer to a Prepare, whose sender knows the given cluster ID.
func (m *Machine) promise(now int64, from *peer, clusterID string, b *message.Promise) {
	if clusterID == m.set.ID && b.Version == m.set.Version+1 {
		m.told(now, from, b)
	}
	p := m.answered(from, b.Version, b.Ballot, b.OK)
	if p == nil || p.accepting {
		return
	}
	if follows(m.set, b.Accepted) {
		p.prefer(b.Accepted, b.Under)
	}
	p.vote(now, from.Name)
	if len(p.votes) >= m.set.Majority() {
		m.pursue(now)
	}
}

// accepted takes an answer to an Accept.
func (m *Machine) accepted(now int64, from *peer, b *message.Accepted) {
	if b.Version == 1 {
		m.foundingAccepted(now, from, b)
		return
	}
	p := m.answered(from, b.Version, b.Ballot, b.OK)
	if p == nil || !p.accepting {
		return
	}
	p.vote(now, from.Name)
	if len(p.votes) >= m.set.Majority() {
		m.adopt(now, p.set)
	}
}

// answered returns the proposal if an answer is a vote for it.
func (m *Machine) answered(from *peer, version uint64, b message.Ballot, ok bool) *proposal {
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

// recent is the silence after which a member is not waited for to coordinate, longer where its lease is.
const recent = time.Second

// coordinates reports whether it is for this process to propose changes: it has the
// lowest name of the living members. Those who wish to leave come last, so that who
// stays is the first to know that they may.
func (m *Machine) coordinates(now int64) bool {
	lowest := ""
	for _, name := range m.set.Members {
		wish := m.wish
		if name != m.c.Self.Name {
			p := m.latest(name)
			if p == nil || p.isolated || m.outvoted(now, p) || p.heard < now-max(int64(recent), m.silence(p)) {
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

// due returns the version that should follow, if one should: leaves, then joins, then
// members that have been missed for long. The coordinator never takes itself out: if
// all leave, it is what remains.
func (m *Machine) due(now int64) (message.Set, bool) {
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.wish == message.Leave {
			return without(m.set, name), true
		}
	}
	for _, p := range m.peers {
		if p.wish == message.Join && m.joinable(now, p) {
			return with(m.set, p.Name), true
		}
	}
	for i, name := range m.set.Members {
		if name != m.c.Self.Name && m.missed[i] <= now-int64(m.c.ForgetAfter) {
			return without(m.set, name), true
		}
	}
	return message.Set{}, false
}

// joinable reports whether p can be counted: it lives, and it acknowledges. To count
// one that cannot be reached could cost the others their majority.
func (m *Machine) joinable(now int64, p *peer) bool {
	return !m.set.Has(p.Name) && m.lives(now, p) && p.until >= now
}
