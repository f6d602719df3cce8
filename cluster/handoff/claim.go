package handoff

import (
	"cmp"
	"math"
	"slices"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

const never = math.MinInt64

// claimRequest is one Claim message for many partitions, with what its responses reported.
type claimRequest struct {
	id    uint64
	parts []int
	sent  int64
	acked []ackedBy // as reported by granters
}

// ackedBy is when (on this process's clock) an acknowledgement of a granter to a process can no longer count.
type ackedBy struct {
	granter, boot string
	until         int64
}

// claim is this process's claim of a partition.
type claim struct {
	gen     uint64
	request *claimRequest
	// granted are the processes that granted it; voters are those whose grant counts towards a majority.
	granted, voters []message.Peer
	// states are the offered states, best first from fetching on.
	states    []offer
	stage     claimStage
	waitUntil int64 // end of waitingOut
	// fetchedAt is when the best state was last requested or made progress; tries counts requests without a response.
	fetchedAt int64
	tries     int
	// maybeOwned are epochs that granters have granted to other processes before; see partition.maybeOwned.
	maybeOwned []message.Epoch
	fetched    *fetchedState // the state being fetched, if it is kept beside the shard
}

// maxTries is the number of unanswered fetches after which the claim starts again, since the offered state may be lost.
const maxTries = 4

type claimStage uint8

const (
	probing    claimStage = iota // send a probe: which processes would grant it, without a promise
	requesting                   // request the grants
	waitingOut                   // wait until no process that is absent can have quorum
	fetching
)

// offer is a state that a granter has offered.
type offer struct {
	peer message.Peer
	has  message.Completeness
	mark message.Mark
	sync uint64 // as in state
}

// continueClaims claims partitions that have no live owner and belong here, and continues claims. slow: search for lost
// partitions too.
func (m *Machine) continueClaims(slow bool) {
	if slow && m.mayClaim() {
		m.claimLost()
	}
	kept := m.claimRequests[:0]
	for _, req := range m.claimRequests {
		req.parts = slices.DeleteFunc(req.parts, func(i int) bool {
			p := &m.parts[i]
			if c := p.claim; c == nil || c.request != req {
				return true
			} else if c.stage <= requesting && !m.ownerless(p) {
				p.claim = nil // its owner is back
				return true
			}
			return false
		})
		if len(req.parts) == 0 {
			continue
		}
		kept = append(kept, req)
		m.claimProbed(req)
		m.grantSelf(req)
		for _, i := range req.parts {
			m.advanceClaim(&m.parts[i])
		}
		if m.now-req.sent >= m.longestAnswerAfter() {
			m.sendClaims(req)
		}
	}
	clear(m.claimRequests[len(kept):])
	m.claimRequests = kept
}

// mayClaim reports whether this process may claim partitions now.
func (m *Machine) mayClaim() bool {
	return m.view.Owner != nil && m.gathered() && m.hasQuorum() && m.c.Quorum.Promises(m.now) && m.heardAllOwned()
}

// claimLost claims partitions that no live process owns, and that the ring assigns to this process or
// the others await from it.
func (m *Machine) claimLost() {
	var req *claimRequest
	for i := range m.parts {
		p := &m.parts[i]
		if p.phase == owning || p.claim != nil || m.owner(p) != m.c.Self && !m.awaited(p) || !m.ownerless(p) ||
			p.phase == inHandoff && m.lives(p.ownership.nextOwner.ch.peer) {
			continue
		}
		if req == nil {
			m.claims++
			req = &claimRequest{id: m.claims}
		}
		req.parts = append(req.parts, i)
		p.claim = &claim{gen: m.nextClaim(p), request: req}
	}
	if req != nil {
		m.claimRequests = append(m.claimRequests, req)
		m.sendClaims(req)
	}
}

// awaited reports whether others wait for this process to become the owner of p: they granted a claim
// of it that has ended, because this process granted one of another process at the same time. The ring
// may have assigned p to that one since, which waits as they do (see ownerless).
func (m *Machine) awaited(p *partition) bool {
	return p.known.owner == m.c.Self && p.known.status == ownerGranted && m.serves()
}

// grantSelf grants this process's own claims after all other processes have. An earlier grant would create pending grants
// and could depose an owner that only this process does not hear.
func (m *Machine) grantSelf(req *claimRequest) {
	b := &message.Claim{ID: req.id}
	for _, i := range req.parts {
		c := m.parts[i].claim
		if c.stage == requesting && !slices.Contains(c.granted, m.c.Self) && m.hasAllGrants(c, 1) {
			b.Parts = append(b.Parts, message.Claimed{Partition: i, Gen: c.gen})
		}
	}
	if len(b.Parts) > 0 {
		m.takeClaimResponse(m.c.Self, m.answerClaim(m.c.Self, b))
	}
}

// claimProbed claims what all processes would grant.
func (m *Machine) claimProbed(req *claimRequest) {
	claims := false
	for _, i := range req.parts {
		p := &m.parts[i]
		c := p.claim
		if c.stage != probing || !m.hasAllGrants(c, 1) || !m.mayGrant(p, m.c.Self, message.Epoch{Gen: c.gen, Boot: m.c.Self.Boot}) {
			continue
		}
		*c, claims = claim{gen: c.gen, request: req, stage: requesting}, true
	}
	if claims {
		m.sendClaims(req)
	}
}

// sendClaims sends req to all recipients, with separate messages for probes and claims.
func (m *Machine) sendClaims(req *claimRequest) {
	req.sent = m.now
	for _, stage := range []claimStage{probing, requesting} {
		b := &message.Claim{ID: req.id, Probe: stage == probing}
		for _, i := range req.parts {
			if c := m.parts[i].claim; c != nil && c.request == req && c.stage == stage {
				b.Parts = append(b.Parts, message.Claimed{Partition: i, Gen: c.gen})
			}
		}
		if len(b.Parts) == 0 {
			continue
		}
		m.claimRecipients(func(to message.Peer) { m.send(to, b) })
	}
	m.claimRecipients(func(to message.Peer) { m.sendLateClaims(req, to) })
}

// sendLateClaims sends req to a process that has come (back) since the claim was fully granted: it may have the best state,
// perhaps as the disconnected owner. A process that has granted all of req gets an empty claim, which asks whether the
// processes that it acknowledged know of the grant by now.
func (m *Machine) sendLateClaims(req *claimRequest, to message.Peer) {
	b, granted, waits := &message.Claim{ID: req.id}, true, false
	for _, i := range req.parts {
		c := m.parts[i].claim
		switch {
		case c == nil || c.request != req || c.stage > waitingOut:
		case c.stage < waitingOut:
			granted = false
		case !slices.Contains(c.granted, to):
			b.Parts = append(b.Parts, message.Claimed{Partition: i, Gen: c.gen})
		default:
			waits = waits || slices.ContainsFunc(req.acked, func(x ackedBy) bool { return x.granter == to.Boot && !c.grantedBy(x.boot) })
		}
	}
	if len(b.Parts) > 0 || granted && waits {
		m.send(to, b)
	}
}

// takeClaimResponse processes one process's response to a probe or claim.
func (m *Machine) takeClaimResponse(from message.Peer, g *message.ClaimResponse) {
	i := slices.IndexFunc(m.claimRequests, func(req *claimRequest) bool { return req.id == g.ID })
	if i < 0 {
		return
	}
	req := m.claimRequests[i]
	if len(g.Parts) == 0 && !g.Probe { // an empty response: it has granted all of req
		req.acked = slices.DeleteFunc(req.acked, func(x ackedBy) bool { return x.granter == from.Boot })
	}
	for _, x := range g.Acked {
		req.noteAcked(from.Boot, x.Boot, m.now+min(max(x.Left, 0), m.c.Quorum.LongestExpiry()))
	}
	// A granter with a later version of the voter set may already have agreed to the version after that without this claim,
	// so its vote comes too late to count in this process's version.
	votes := g.Votes && g.Version <= m.c.Quorum.Set().Version
	for _, part := range g.Parts {
		if part.Partition < 0 || part.Partition >= len(m.parts) {
			continue
		}
		p := &m.parts[part.Partition]
		c := p.claim
		if c == nil || c.request != req || g.Probe != (c.stage == probing) || c.stage > waitingOut {
			continue
		}
		if !part.OK {
			m.learn(p, part.Known, part.Owner)
			if part.Known.Gen >= c.gen && part.Owner != m.c.Self {
				p.claim = nil // claimed again with a higher epoch if it is still lost
			}
			continue
		}
		if votes && !slices.Contains(c.voters, from) {
			c.voters = append(c.voters, from) // may come after its grant, when its grace ends
		}
		m.takeGrant(from, p, &part)
	}
}

// noteAcked notes when an acknowledgement of granter to boot can no longer count.
func (req *claimRequest) noteAcked(granter, boot string, until int64) {
	i := slices.IndexFunc(req.acked, func(x ackedBy) bool { return x.granter == granter && x.boot == boot })
	if i < 0 {
		req.acked = append(req.acked, ackedBy{granter, boot, until})
		return
	}
	req.acked[i].until = max(req.acked[i].until, until)
}

// advanceClaim continues p's claim as far as possible.
func (m *Machine) advanceClaim(p *partition) {
	c := p.claim
	if c == nil {
		return
	}
	if c.stage == requesting && slices.Contains(c.granted, m.c.Self) && m.hasAllGrants(c, 0) {
		c.stage, c.waitUntil = waitingOut, m.safeFrom(c)
	}
	if c.stage == waitingOut {
		c.waitUntil = min(c.waitUntil, m.safeFrom(c))
	}
	if c.stage == waitingOut && m.now >= c.waitUntil && m.hasQuorum() && !m.awaitsFormerOwner(p, c) {
		c.stage, c.fetchedAt = fetching, never
		slices.SortStableFunc(c.states, func(a, b offer) int { return m.better(p, a, b) })
	}
	if c.stage != fetching {
		return
	}
	if len(c.states) > 0 && !m.lives(c.states[0].peer) && !m.c.Quorum.Listens(m.now, c.states[0].peer) {
		p.claim = nil // claimed again: the new offers are then the best there are
		return
	}
	if len(c.states) == 0 || c.states[0].peer == m.c.Self {
		m.completeClaim(p, offer{m.c.Self, p.completeness(), p.state.mark, p.state.sync})
	} else if c.fetchedAt == never || m.now-c.fetchedAt >= 5*m.answerAfter(c.states[0].peer) {
		if c.fetchedAt, c.tries = m.now, c.tries+1; c.tries > maxTries {
			p.claim = nil
			return
		}
		m.send(c.states[0].peer, &message.Fetch{Partition: p.number, Gen: c.gen, State: c.states[0].mark})
	}
}

// hasAllGrants reports whether c is granted by all that must: a majority of the voter set and every other live member.
// ownVote is 1 before this process has granted its own claim, which it does last, and 0 after.
func (m *Machine) hasAllGrants(c *claim, ownVote int) bool {
	if guard.On(guard.ClaimMajority) && m.votes(c)+ownVote < m.c.Quorum.Set().Majority() {
		return false
	}
	for _, p := range m.view.Members {
		if p != m.c.Self && !slices.Contains(c.granted, p) && m.mayKnowPartitions(p) {
			return false
		}
	}
	// A voter that is heard but not in the view may have the only state. One that knows no set was just started without a
	// disk and has none.
	for _, p := range m.c.Quorum.Living(m.now) {
		if m.c.Quorum.Set().Has(p.Name) && m.c.Quorum.Shares(p) && !slices.Contains(c.granted, p) {
			return false
		}
	}
	return true
}

// awaitsFormerOwner reports whether c waits for a process that is back and may have owned p unnoticed (see sendLateClaims).
func (m *Machine) awaitsFormerOwner(p *partition, c *claim) (yes bool) {
	if m.now < c.waitUntil+2*m.longestAnswerAfter() {
		m.claimRecipients(func(q message.Peer) {
			yes = yes || slices.ContainsFunc(c.maybeOwned, func(e message.Epoch) bool { return e.Boot == q.Boot && p.lastOwned.Less(e) && !c.grantedBy(e.Boot) })
		})
	}
	return yes
}

// grantedBy reports whether the process with this boot ID has granted c.
func (c *claim) grantedBy(boot string) bool {
	return slices.ContainsFunc(c.granted, func(p message.Peer) bool { return p.Boot == boot })
}

// votes counts the members that have voted for c, each name once.
func (m *Machine) votes(c *claim) (n int) {
	set := m.c.Quorum.Set()
	for i, p := range c.voters {
		again := slices.ContainsFunc(c.voters[:i], func(q message.Peer) bool { return q.Name == p.Name })
		if set.Has(p.Name) && !again {
			n++
		}
	}
	return n
}

// mayKnowPartitions reports whether p may know partitions of this cluster ID: it is a voter, or has shown that it knows the set.
func (m *Machine) mayKnowPartitions(p message.Peer) bool {
	return m.c.Quorum.Set().Has(p.Name) || m.c.Quorum.Shares(p)
}

// safeFrom returns the time from which no process that has not granted c can have quorum.
func (m *Machine) safeFrom(c *claim) int64 {
	until := m.now
	if !guard.On(guard.ClaimWait) {
		return until
	}
	for _, x := range c.request.acked {
		if !c.grantedBy(x.boot) {
			until = max(until, x.until)
		}
	}
	return until
}

// better orders offers for p: complete before partial, then by mark, then in-sync before out-of-date
// replicas, then first the process that made the decisions of that mark, which also has unreplicated
// changes, then this process.
func (m *Machine) better(p *partition, a, b offer) int {
	outdated := func(o offer) int {
		if p.outdated(&o) {
			return 1
		}
		return 0
	}
	rank := func(o offer) (n int) {
		if o.peer.Boot == o.mark.Epoch.Boot {
			n = 2
		}
		if o.peer == m.c.Self {
			n++
		}
		return n
	}
	return cmp.Or(cmp.Compare(b.has, a.has), b.mark.Compare(a.mark), cmp.Compare(outdated(a), outdated(b)), cmp.Compare(rank(b), rank(a)), a.peer.Compare(b.peer))
}

// completeClaim makes this process owner of the claimed p. best is the best state found, which p
// has now.
func (m *Machine) completeClaim(p *partition, best offer) {
	c := p.claim
	start := message.Mark{}
	p.state.loss = m.lossAfter(p, c, &best)
	switch best.has {
	case message.None:
		m.stats.WithoutState++
		m.c.Table.DropShard(p.number)
	case message.Partial:
		// A returning owner or replica may have the missing counters; they are merged then.
	default:
		start = p.state.mark
	}
	m.stats.Takeovers++
	m.becomeOwner(p, message.Epoch{Gen: c.gen, Boot: m.c.Self.Boot}, start)
}
