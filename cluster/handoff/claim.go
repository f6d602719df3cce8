package handoff

import (
	"math"
	"slices"

	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

const never = math.MinInt64

// asking is one claim message, for many partitions, and who has answered it.
type asking struct {
	id    uint64
	parts []int
	sent  int64
	acked []ackedBy // as those who granted anything say
}

// ackedBy is until when the acknowledgement that a granter gave to a process may count, in this process's time.
type ackedBy struct {
	granter, boot string
	until         int64
}

// claim is this process's claim of one partition.
type claim struct {
	gen  uint64
	from *asking
	// granted are who has, voters those of them who count towards a majority.
	granted, voters []message.Peer
	// states are those that were offered, the best first.
	states []offer
	stage  claimStage
	until  int64 // sitting
	// fetching: when the best was last asked or has sent something, and how often in vain.
	asked int64
	tries int
	// earlier are epochs that the granters have granted to others before.
	earlier []message.Epoch
	coming  *arrival // what is fetched and not whole yet, where it is kept beside the shard
}

// maxTries is how often a state is asked for in vain before the claim begins anew: whoever
// has offered it may have lost it.
const maxTries = 4

type claimStage uint8

const (
	probing   claimStage = iota // who would grant it?
	gathering                   // who does?
	sitting                     // until nobody absent can have quorum
	fetching
)

// offer is a state that a granter has.
type offer struct {
	peer message.Peer
	has  message.Completeness
	mark message.Mark
}

// claimDue claims what has no living owner and should be here, and goes on with claims
// under way. slow says that it is time to look for what is lost.
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

// mayClaim reports whether this process may claim anything now.
func (m *Machine) mayClaim() bool {
	return m.view.Owner != nil && m.gathered() && m.may() && m.c.Quorum.Promises(m.now) && m.acquainted()
}

// claimLost claims what the ring gives to this process and nobody alive holds.
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

// grantSelf grants this process what all others have granted it. Not before: a grant is
// pending grants, and would depose an owner whom only this process does not hear.
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

// claimProbed claims what everybody would grant.
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

// ask sends a to everybody else, as a probe of what is only probed yet.
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

// askLate asks who has come, or come back, since a claim was granted by all who had to: it may have the
// best state, perhaps as the owner that was cut off. Who has granted all of a is asked, by a claim of nothing, whether those whom it has
// acknowledged know of that by now.
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

// takeGrant counts the grants of one process.
func (m *Machine) takeGrant(from message.Peer, g *message.Grant) {
	i := slices.IndexFunc(m.asking, func(a *asking) bool { return a.id == g.ID })
	if i < 0 {
		return
	}
	a := m.asking[i]
	if len(g.Parts) == 0 && !g.Probe { // made after it has granted all of a
		a.acked = slices.DeleteFunc(a.acked, func(x ackedBy) bool { return x.granter == from.Boot })
	}
	for _, x := range g.Acked {
		a.noteAcked(from.Boot, x.Boot, m.now+min(max(x.Left, 0), m.c.Quorum.LongestExpiry()))
	}
	// Who knows a later version of the set may have agreed to the next but one already, without word of
	// this claim: its promise comes too late for this process's version.
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
				p.claim = nil // claimed anew, above it, should it still be lost
			}
			continue
		}
		if votes && !slices.Contains(c.voters, from) {
			c.voters = append(c.voters, from) // perhaps later than it granted, when its grace is over
		}
		if slices.Contains(c.granted, from) {
			continue
		}
		c.granted = append(c.granted, from)
		p.noteOwned(part.Owned) // also for whoever claims next, should this claim come to nothing
		if p.owned.Less(part.Granted) && !slices.Contains(c.earlier, part.Granted) {
			c.earlier = append(c.earlier, part.Granted)
		}
		if from == m.c.Self {
			c.earlier = append(c.earlier, p.granted...) // of those who grant this claim, none counts
		}
		if part.Has != message.None {
			c.states = append(c.states, offer{from, part.Has, part.State})
		}
	}
}

// noteAcked notes until when an acknowledgement that a granter gave to a process may count.
func (a *asking) noteAcked(granter, boot string, until int64) {
	i := slices.IndexFunc(a.acked, func(x ackedBy) bool { return x.granter == granter && x.boot == boot })
	if i < 0 {
		a.acked = append(a.acked, ackedBy{granter, boot, until})
		return
	}
	a.acked[i].until = max(a.acked[i].until, until)
}

// advance takes p's claim as far as it can go.
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
		p.claim = nil // claimed anew: what is there then, perhaps from others, is the best there is
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

// agreed reports whether everybody needed has granted c: a majority of the set, of whom
// own may be missing, and every living member but this process.
func (m *Machine) agreed(c *claim, own int) bool {
	if guard.On(guard.ClaimMajority) && m.votes(c)+own < m.c.Quorum.Set().Majority() {
		return false
	}
	for _, p := range m.view.Members {
		if p != m.c.Self && !slices.Contains(c.granted, p) && m.concerned(p) {
			return false
		}
	}
	// Who is heard and not in the view may have the only state, unless it knows no set: it was just started, without a disk, and
	// can grant nothing before gossip shows it.
	for _, p := range m.c.Quorum.Living(m.now) {
		if m.c.Quorum.Set().Has(p.Name) && m.c.Quorum.Shares(p) && !slices.Contains(c.granted, p) {
			return false
		}
	}
	return true
}

// awaits reports whether c waits for the word of a process that is back and may have owned p unheard. It is asked with the next askLate.
func (m *Machine) awaits(p *partition, c *claim) (yes bool) {
	if m.now < c.until+2*m.answersAfter() {
		m.asked(func(q message.Peer) {
			yes = yes || slices.ContainsFunc(c.earlier, func(e message.Epoch) bool { return e.Boot == q.Boot && p.owned.Less(e) && !c.grantedBy(e.Boot) })
		})
	}
	return yes
}

// grantedBy reports whether the process of a boot has granted c.
func (c *claim) grantedBy(boot string) bool {
	return slices.ContainsFunc(c.granted, func(p message.Peer) bool { return p.Boot == boot })
}

// votes counts the members that have voted for c, in whatever run.
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

// concerned reports whether p may have anything to do with partitions of this cluster ID: it is
// counted, or has shown that it knows the set.
func (m *Machine) concerned(p message.Peer) bool {
	return m.c.Quorum.Set().Has(p.Name) || m.c.Quorum.Shares(p)
}

// safeFrom returns the time from which nobody who has not granted c can have quorum.
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

// better orders offers: complete before partial, then the later mark, then that of the process that
// decided there, which has what is not replicated too, then this process's own.
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

// win makes this process the owner of what it has claimed, with the best state that there is, of which it has so much.
func (m *Machine) win(p *partition, has message.Completeness) {
	c := p.claim
	start := message.Mark{}
	p.state.loss = m.missing(p, c, has)
	switch has {
	case message.None:
		m.stats.Fresh++
		m.c.Table.DropShard(p.number)
	case message.Partial:
		// What it lacks may be with an owner or a replica that comes back, and is then to be merged.
	default:
		start = p.state.mark
	}
	m.stats.Claims++
	m.open(p, message.Epoch{Gen: c.gen, Boot: m.c.Self.Boot}, start)
}
