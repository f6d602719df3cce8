package handoff

import (
	"slices"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

func (m *Machine) takeClaim(from message.Peer, b *message.Claim) {
	m.send(from, m.answerClaim(from, b))
}

// takeGrant takes from's grant of p to this process, which claims p.
func (m *Machine) takeGrant(from message.Peer, p *partition, part *message.ClaimResponsePart) {
	c := p.claim
	if slices.Contains(c.granted, from) {
		return
	}
	c.granted = append(c.granted, from)
	p.noteOwned(part.LastOwned) // also for a later claim, if this one fails
	p.noteInSync(part.LastOwned, part.InSync)
	if p.lastOwned.Less(part.MaybeOwned) && !slices.Contains(c.maybeOwned, part.MaybeOwned) {
		c.maybeOwned = append(c.maybeOwned, part.MaybeOwned)
	}
	if from == m.c.Self {
		c.maybeOwned = append(c.maybeOwned, p.maybeOwned...) // those of processes that grant this claim do not count
	}
	if part.Has != message.None {
		c.states = append(c.states, offer{from, part.Has, part.State, part.Sync})
	}
}

// answerClaim answers a claim or probe of this process or another one, and promises what it grants to a claim: processes that
// have not seen the grant get no acknowledgement from here any more. It promises nothing to a probe: if one process rejected a
// claim, the promises of the others would remain and depose a live owner.
func (m *Machine) answerClaim(claimer message.Peer, b *message.Claim) *message.ClaimResponse {
	g := &message.ClaimResponse{ID: b.ID, Probe: b.Probe, Votes: m.c.Quorum.Promises(m.now), Version: m.c.Quorum.Set().Version}
	for _, c := range b.Parts {
		if c.Partition < 0 || c.Partition >= len(m.parts) {
			continue
		}
		p := &m.parts[c.Partition]
		epoch := message.Epoch{Gen: c.Gen, Boot: claimer.Boot}
		part := message.ClaimResponsePart{
			Partition: c.Partition, Known: p.known.epoch, Owner: p.known.owner, OK: m.mayGrant(p, claimer, epoch),
		}
		if part.OK && !b.Probe {
			m.learn(p, epoch, claimer)
			if p.isOwned() {
				m.stepDown(p, epoch.Gen) // reached only if the epoch is not checked
			}
			if p.promised != epoch {
				p.promised = epoch
				m.makePendingGrants(p)
			}
			part.LastOwned, part.MaybeOwned, part.InSync = p.lastOwned, m.lastMaybeOwned(p), p.inSync
			if !p.foreign() {
				part.Has, part.State, part.Sync = p.completeness(), p.state.mark, p.state.sync
			}
		}
		g.Parts = append(g.Parts, part)
	}
	if !b.Probe {
		g.Acked = m.c.Quorum.Acked(m.now, m.nextGrantsSeq())
	}
	return g
}

// lastMaybeOwned returns the highest epoch granted to a process that may have owned p unnoticed. For itself, this process
// knows whether it has.
func (m *Machine) lastMaybeOwned(p *partition) (last message.Epoch) {
	for _, e := range p.maybeOwned {
		if last.Less(e) && !m.neverOwned(p, e) {
			last = e
		}
	}
	return last
}

// mayGrant reports whether claimer may own p at epoch. A repeated grant is fine: the epoch may have been granted
// before, or be known from pending grants, even to a claimer that has started again.
func (m *Machine) mayGrant(p *partition, claimer message.Peer, epoch message.Epoch) bool {
	return p.known.epoch == epoch && !p.isOwned() || m.mayGrantNew(p, claimer, epoch)
}

// mayGrantNew reports whether claimer may own p at an epoch that was not granted before.
func (m *Machine) mayGrantNew(p *partition, claimer message.Peer, epoch message.Epoch) bool {
	k := &p.known
	switch {
	case k.epoch.Gen >= epoch.Gen,
		p.phase == owning && !m.c.Quorum.LacksQuorum(m.now), // without quorum, the claimer may have it and the state here
		p.phase == inHandoff && m.lives(p.ownership.nextOwner.ch.peer):
		return false
	case m.recentlyConfirmed(p) && k.status != ownerReleased && !m.stranded(k) && k.owner != claimer && k.owner != m.c.Self:
		// The owner seems to be alive; perhaps only the claimer does not hear it.
		heard := m.c.Quorum.Heard(k.owner)
		return heard == never || m.now-heard > m.trustFor(k.owner)
	}
	return true
}

// recentlyConfirmed reports whether p's ownership was confirmed recently: by the owner itself, or by processes that know it or have
// granted its claim.
func (m *Machine) recentlyConfirmed(p *partition) bool {
	k := &p.known
	return k.status == ownerAnnounced || p.promised != k.epoch && m.now-k.since <= 2*fullListInterval+3*m.c.Quorum.RTT(k.owner)
}

// sentPendingGrants is the last message of pending grants to a peer.
type sentPendingGrants struct {
	seq uint64
	at  int64
}

// makePendingGrants includes p's known epoch in the next pending grants, whether it was granted here or learned. The
// granters may leave the voter set, so the remaining voters must know it and pass it on.
func (m *Machine) makePendingGrants(p *partition) { p.grantsSeq, m.unpublished = m.grantsSeq+1, true }

// nextGrantsSeq returns the sequence number that will cover all grants so far.
func (m *Machine) nextGrantsSeq() uint64 {
	if m.unpublished {
		return m.grantsSeq + 1
	}
	return m.grantsSeq
}

// publishGrants gives new pending grants a number. From then on heartbeats that have not seen it are not acknowledged.
func (m *Machine) publishGrants() {
	if !m.unpublished {
		return
	}
	m.unpublished = false
	m.grantsSeq++
	if guard.On(guard.Promise) {
		m.c.Quorum.AwaitSeen(m.grantsSeq)
	}
}

// sendPendingGrants sends the pending grants to the peers that have not seen them.
func (m *Machine) sendPendingGrants() {
	if m.grantsSeq == 0 {
		return
	}
	for _, d := range m.c.Quorum.Awaited() {
		last := m.pendingGrantsSent[d.Peer]
		if last.seq == m.grantsSeq && m.now-last.at < m.answerAfter(d.Peer) {
			continue
		}
		m.pendingGrantsSent[d.Peer] = sentPendingGrants{m.grantsSeq, m.now}
		b := &message.PendingGrants{Seq: m.grantsSeq}
		for i := range m.parts {
			if p := &m.parts[i]; p.grantsSeq > d.Seen {
				b.Grants = append(b.Grants, message.PendingGrant{Partition: i, Gen: p.known.epoch.Gen, Claimer: p.known.owner})
			}
		}
		m.send(d.Peer, b)
	}
}

// takePendingGrants learns the grants that from has made or learned.
func (m *Machine) takePendingGrants(from message.Peer, b *message.PendingGrants) {
	for _, g := range b.Grants {
		if g.Partition >= 0 && g.Partition < len(m.parts) {
			m.learn(&m.parts[g.Partition], message.Epoch{Gen: g.Gen, Boot: g.Claimer.Boot}, g.Claimer)
		}
	}
	m.c.Quorum.Saw(from, b.Seq)
}
