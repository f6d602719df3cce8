package handoff

import (
	"math"
	"slices"

	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

const never = math.MinInt64

// asking is one claim message for many partitions, with its responses.
type asking struct {
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
	gen  uint64
	from *asking
	// granted are the processes that granted it; voters are those whose grant counts towards a majority.
	granted, voters []message.Peer
	// states are the offered states, best first from fetching on.
	states []offer
	stage  claimStage
	until  int64 // end of sitting
	// asked is when the best state was last requested or made progress; tries counts requests without a response.
	asked int64
	tries int
	// earlier are epochs that granters have granted to other processes before.
	earlier  []message.Epoch
	incoming *arrival // the state being fetched, if it is kept beside the shard
}

// maxTries is the number of unanswered fetches after which the claim starts again, since the offered state may be lost.
const maxTries = 4

type claimStage uint8

const (
	probing   claimStage = iota // ask which processes would grant it, without a promise
	gathering                   // request the grants
	sitting                     // wait until no process that is absent can have quorum
	fetching
)

// offer is a state that a granter has offered.
type offer struct {
	peer message.Peer
	has  message.Completeness
	mark message.Mark
}

// claimDue claims partitions that have no live owner and belong here, and continues claims. slow: search for lost
// partitions too.
func (m *Machine) claimDue(slow bool) {
	if slow && m.mayClaim() {
		m.claimLost()
	}
	kept := m.asking[:0]
	for _, a := range m.asking {
		a.parts = slices.DeleteFunc(a.parts, func(i int) bool {
			p := &m.parts[i]
			if c := p.claim; c == nil || c.from != a {
				return true
			} else if c.stage <= gathering && !m.lost(p) {
				p.claim = nil // its owner is back
				return true
			}
			return false
		})
		if len(a.parts) == 0 {
			continue
		}
		kept = append(kept, a)
		m.claimProbed(a)
		m.grantSelf(a)
		for _, i := range a.parts {
			m.advance(&m.parts[i])
		}
		if m.now-a.sent >= m.answersAfter() {
			m.ask(a)
		}
	}
	clear(m.asking[len(kept):])
	m.asking = kept
}

// mayClaim reports whether this process may claim partitions now.
func (m *Machine) mayClaim() bool {
	return m.view.Owner != nil && m.gathered() && m.may() && m.c.Quorum.Promises(m.now) && m.heardAllHoldings()
}

// claimLost claims partitions that the ring assigns to this process and no live process owns.
func (m *Machine) claimLost() {
	var a *asking
	for i := range m.parts {
		p := &m.parts[i]
		if p.phase == owning || p.claim != nil || m.owner(p) != m.c.Self || !m.lost(p) ||
			p.phase == handingOver && m.lives(p.hold.nextOwner.ch.peer) {
			continue
		}
		if a == nil {
			m.claims++
			a = &asking{id: m.claims}
		}
		a.parts = append(a.parts, i)
		p.claim = &claim{gen: message.NextClaim(p.known.epoch.Gen), from: a}
	}
	if a != nil {
		m.asking = append(m.asking, a)
		m.ask(a)
	}
}

// grantSelf grants this process's own claims after all other processes have. An earlier grant would create pending grants
// and could depose an owner that only this process does not hear.
func (m *Machine) grantSelf(a *asking) {
	b := &message.Claim{ID: a.id}
	for _, i := range a.parts {
		c := m.parts[i].claim
		if c.stage == gathering && !slices.Contains(c.granted, m.c.Self) && m.agreed(c, 1) {
			b.Parts = append(b.Parts, message.Claimed{Partition: i, Gen: c.gen})
		}
	}
	if len(b.Parts) > 0 {
		m.takeGrant(m.c.Self, m.grant(m.c.Self, b))
	}
}

// claimProbed claims what all processes would grant.
func (m *Machine) claimProbed(a *asking) {
	claims := false
	for _, i := range a.parts {
		p := &m.parts[i]
		c := p.claim
		if c.stage != probing || !m.agreed(c, 1) || !m.wouldPromise(p, m.c.Self, message.Epoch{Gen: c.gen, Boot: m.c.Self.Boot}) {
			continue
		}
		*c, claims = claim{gen: c.gen, from: a, stage: gathering}, true
	}
	if claims {
		m.ask(a)
	}
}

// ask sends a to all other processes, with separate messages for probes and claims.
func (m *Machine) ask(a *asking) {
	a.sent = m.now
	for _, stage := range []claimStage{probing, gathering} {
		b := &message.Claim{ID: a.id, Probe: stage == probing}
		for _, i := range a.parts {
			if c := m.parts[i].claim; c != nil && c.from == a && c.stage == stage {
				b.Parts = append(b.Parts, message.Claimed{Partition: i, Gen: c.gen})
			}
		}
		if len(b.Parts) == 0 {
			continue
		}
		m.asked(func(to message.Peer) { m.send(to, b) })
	}
	m.asked(func(to message.Peer) { m.askLate(a, to) })
}

// askLate asks processes that have come (back) since the claim was fully granted: one may have the best state, perhaps as
// the disconnected owner. A process that has granted all of a gets an empty claim, to learn whether the processes it
// acknowledged know of the grant by now.
func (m *Machine) askLate(a *asking, to message.Peer) {
	b, granted, waits := &message.Claim{ID: a.id}, true, false
	for _, i := range a.parts {
		c := m.parts[i].claim
		switch {
		case c == nil || c.from != a || c.stage > sitting:
		case c.stage < sitting:
			granted = false
		case !slices.Contains(c.granted, to):
			b.Parts = append(b.Parts, message.Claimed{Partition: i, Gen: c.gen})
		default:
			waits = waits || slices.ContainsFunc(a.acked, func(x ackedBy) bool { return x.granter == to.Boot && !c.grantedBy(x.boot) })
		}
	}
	if len(b.Parts) > 0 || granted && waits {
		m.send(to, b)
	}
}

// takeGrant processes the grants of one process.
func (m *Machine) takeGrant(from message.Peer, g *message.Grant) {
	i := slices.IndexFunc(m.asking, func(a *asking) bool { return a.id == g.ID })
	if i < 0 {
		return
	}
	a := m.asking[i]
	if len(g.Parts) == 0 && !g.Probe { // an empty response: it has granted all of a
		a.acked = slices.DeleteFunc(a.acked, func(x ackedBy) bool { return x.granter == from.Boot })
	}
	for _, x := range g.Acked {
		a.noteAcked(from.Boot, x.Boot, m.now+min(max(x.Left, 0), m.c.Quorum.LongestExpiry()))
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
		if c == nil || c.from != a || g.Probe != (c.stage == probing) || c.stage > sitting {
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
		if slices.Contains(c.granted, from) {
			continue
		}
		c.granted = append(c.granted, from)
		p.noteOwned(part.Owned) // also for a later claim, if this one fails
		if p.owned.Less(part.Granted) && !slices.Contains(c.earlier, part.Granted) {
			c.earlier = append(c.earlier, part.Granted)
		}
		if from == m.c.Self {
			c.earlier = append(c.earlier, p.granted...) // those of processes that grant this claim do not count
		}
		if part.Has != message.None {
			c.states = append(c.states, offer{from, part.Has, part.State})
		}
	}
}

// noteAcked notes when an acknowledgement of granter to boot can no longer count.
func (a *asking) noteAcked(granter, boot string, until int64) {
	i := slices.IndexFunc(a.acked, func(x ackedBy) bool { return x.granter == granter && x.boot == boot })
	if i < 0 {
		a.acked = append(a.acked, ackedBy{granter, boot, until})
		return
	}
	a.acked[i].until = max(a.acked[i].until, until)
}

// advance continues p's claim as far as possible.
func (m *Machine) advance(p *partition) {
	c := p.claim
	if c == nil {
		return
	}
	if c.stage == gathering && slices.Contains(c.granted, m.c.Self) && m.agreed(c, 0) {
		c.stage, c.until = sitting, m.safeFrom(c)
	}
	if c.stage == sitting {
		c.until = min(c.until, m.safeFrom(c))
	}
	if c.stage == sitting && m.now >= c.until && m.may() && !m.awaits(p, c) {
		c.stage, c.asked = fetching, never
		slices.SortStableFunc(c.states, m.better)
	}
	if c.stage != fetching {
		return
	}
	if len(c.states) > 0 && !m.lives(c.states[0].peer) && !m.c.Quorum.Listens(m.now, c.states[0].peer) {
		p.claim = nil // claimed again: the new offers are then the best there are
		return
	}
	if len(c.states) == 0 || c.states[0].peer == m.c.Self {
		m.win(p, p.completeness())
	} else if c.asked == never || m.now-c.asked >= 5*m.answerAfter(c.states[0].peer) {
		if c.asked, c.tries = m.now, c.tries+1; c.tries > maxTries {
			p.claim = nil
			return
		}
		m.send(c.states[0].peer, &message.Fetch{Partition: p.number, Gen: c.gen, State: c.states[0].mark})
	}
}

// agreed reports whether c is granted by all that must: a majority of the voter set, of which own may be missing, and every
// live member but this process.
func (m *Machine) agreed(c *claim, own int) bool {
	if guard.On(guard.ClaimMajority) && m.votes(c)+own < m.c.Quorum.Set().Majority() {
		return false
	}
	for _, p := range m.view.Members {
		if p != m.c.Self && !slices.Contains(c.granted, p) && m.concerned(p) {
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

// awaits reports whether c waits for a process that is back and may have owned p unnoticed. askLate asks it.
func (m *Machine) awaits(p *partition, c *claim) (yes bool) {
	if m.now < c.until+2*m.answersAfter() {
		m.asked(func(q message.Peer) {
			yes = yes || slices.ContainsFunc(c.earlier, func(e message.Epoch) bool { return e.Boot == q.Boot && p.owned.Less(e) && !c.grantedBy(e.Boot) })
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

// concerned reports whether p may know partitions of this cluster ID: it is a voter, or has shown that it knows the set.
func (m *Machine) concerned(p message.Peer) bool {
	return m.c.Quorum.Set().Has(p.Name) || m.c.Quorum.Shares(p)
}

// safeFrom returns the time from which no process that has not granted c can have quorum.
func (m *Machine) safeFrom(c *claim) int64 {
	until := m.now
	if !guard.On(guard.ClaimWait) {
		return until
	}
	for _, x := range c.from.acked {
		if !c.grantedBy(x.boot) {
			until = max(until, x.until)
		}
	}
	return until
}

// better orders offers: complete before partial, then by mark, then first the process that made the decisions of that mark,
// which also has unreplicated changes, then this process.
func (m *Machine) better(a, b offer) int {
	if a.has != b.has {
		return int(b.has) - int(a.has)
	}
	if c := b.mark.Compare(a.mark); c != 0 {
		return c
	}
	if decided := a.peer.Boot == a.mark.Epoch.Boot; decided != (b.peer.Boot == b.mark.Epoch.Boot) {
		if decided {
			return -1
		}
		return 1
	}
	switch m.c.Self {
	case a.peer:
		return -1
	case b.peer:
		return 1
	}
	return comparePeers(a.peer, b.peer)
}

// win makes this process owner of the claimed p. has is the completeness of the best state found.
func (m *Machine) win(p *partition, has message.Completeness) {
	c := p.claim
	start := message.Mark{}
	p.state.loss = m.missing(p, c, has)
	switch has {
	case message.None:
		m.stats.Fresh++
		m.c.Table.DropShard(p.number)
	case message.Partial:
		// A returning owner or replica may have the missing counters; they are merged then.
	default:
		start = p.state.mark
	}
	m.stats.Claims++
	m.open(p, message.Epoch{Gen: c.gen, Boot: m.c.Self.Boot}, start)
}
