package handoff

import (
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

// takeClaim answers from's claim. What it grants is a promise: whoever has not seen it
// gets no acknowledgement from here any more.
func (m *Machine) takeClaim(from message.Peer, b *message.Claim) {
	if b.Probe {
		m.send(from, m.wouldGrant(from, b))
		return
	}
	m.send(from, m.grant(from, b))
}

// wouldGrant works out the answer to a probe, and promises nothing. A claim that one
// process rejects would leave the promises of others behind, and they depose an owner.
func (m *Machine) wouldGrant(claimer message.Peer, b *message.Claim) *message.Grant {
	g := &message.Grant{
		ID: b.ID, Probe: true, Votes: m.c.Quorum.Promises(m.now), Version: m.c.Quorum.Set().Version,
	}
	for _, c := range b.Parts {
		if c.Partition < 0 || c.Partition >= len(m.parts) {
			continue
		}
		p := &m.parts[c.Partition]
		epoch := message.Epoch{Gen: c.Gen, Boot: claimer.Boot}
		g.Parts = append(g.Parts, message.GrantPart{
			Partition: c.Partition, Known: p.known.epoch, Owner: p.known.owner,
			OK: m.wouldPromise(p, claimer, epoch),
		})
	}
	return g
}

// grant works out the answer to a claim of this process or another one.
func (m *Machine) grant(claimer message.Peer, b *message.Claim) *message.Grant {
	g := &message.Grant{ID: b.ID, Votes: m.c.Quorum.Promises(m.now), Version: m.c.Quorum.Set().Version}
	for _, c := range b.Parts {
		if c.Partition < 0 || c.Partition >= len(m.parts) {
			continue
		}
		p := &m.parts[c.Partition]
		epoch := message.Epoch{Gen: c.Gen, Boot: claimer.Boot}
		part := message.GrantPart{Partition: c.Partition, Known: p.known.epoch, Owner: p.known.owner}
		if part.OK = m.wouldPromise(p, claimer, epoch); part.OK {
			m.learn(p, epoch, claimer)
			if p.isOwned() {
				m.stepDown(p, epoch.Gen) // only where the epoch is not checked
			}
			if p.promised != epoch {
				p.promised = epoch
				m.makePendingGrants(p)
			}
			part.Owned, part.Granted = p.owned, m.lastGranted(p)
			if !p.uprooted() {
				part.Has, part.State = p.completeness(), p.state.mark
			}
		}
		g.Parts = append(g.Parts, part)
	}
	g.Acked = m.c.Quorum.Acked(m.now, m.nextPendingGrants())
	return g
}

// lastGranted returns the highest epoch that was granted to a process which may have owned p unheard. This one knows whether it has.
func (m *Machine) lastGranted(p *partition) (last message.Epoch) {
	for _, e := range p.granted {
		if last.Less(e) && !m.neverOwned(p, e) {
			last = e
		}
	}
	return last
}

// wouldPromise reports whether claimer may have p at epoch, for the first time or once more: the
// epoch may have been granted before, or heard of in somebody's pending grants. A claimer hears so of its own
// claim when it has begun anew.
func (m *Machine) wouldPromise(p *partition, claimer message.Peer, epoch message.Epoch) bool {
	return p.known.epoch == epoch && !p.isOwned() || m.grants(p, claimer, epoch)
}

// grants reports whether claimer may have p at epoch.
func (m *Machine) grants(p *partition, claimer message.Peer, epoch message.Epoch) bool {
	k := &p.known
	switch {
	case k.epoch.Gen >= epoch.Gen,
		p.phase == owning && !m.c.Quorum.LacksQuorum(m.now), // else the claimer may have it, and what is here
		p.phase == handingOver && m.lives(p.hold.nextOwner.ch.peer):
		return false
	case m.present(p) && k.basis != released && !m.stranded(k) && k.owner != claimer && k.owner != m.c.Self:
		// Its owner seems to be there; perhaps the claimer alone does not hear it.
		heard := m.c.Quorum.Heard(k.owner)
		return heard == never || m.now-heard > m.trustFor(k.owner)
	}
	return true
}

// present reports whether somebody has said of late that p has an owner: itself, or others who
// know it by itself or have granted it a claim.
func (m *Machine) present(p *partition) bool {
	k := &p.known
	return k.basis == announced || p.promised != k.epoch && m.now-k.since <= 2*int64(m.c.Digest)+3*m.c.Quorum.RTT(k.owner)
}

// sentPendingGrants is what was last told to a peer.
type sentPendingGrants struct {
	seq uint64
	at  int64
}

// makePendingGrants makes what is known of p known to everybody, with the next publish: what was granted here,
// and also what was heard of. Those who granted it may leave the set, and who is left must know it and pass it on.
func (m *Machine) makePendingGrants(p *partition) { p.told, m.untold = m.pendingGrants+1, true }

// nextPendingGrants returns the number of the pending grants that has all grants so far.
func (m *Machine) nextPendingGrants() uint64 {
	if m.untold {
		return m.pendingGrants + 1
	}
	return m.pendingGrants
}

// publish makes the next pending grants of what there is for it: whose heartbeats have not seen it gets no
// acknowledgement from here.
func (m *Machine) publish() {
	if !m.untold {
		return
	}
	m.untold = false
	m.pendingGrants++
	if guard.On(guard.Promise) {
		m.c.Quorum.AwaitSeen(m.pendingGrants)
	}
}

// tellPendingGrants sends the pending grants to those who have not seen it.
func (m *Machine) tellPendingGrants() {
	if m.pendingGrants == 0 {
		return
	}
	for _, d := range m.c.Quorum.Awaited() {
		last := m.pendingGrantsSent[d.Peer]
		if last.seq == m.pendingGrants && m.now-last.at < m.answerAfter(d.Peer) {
			continue
		}
		m.pendingGrantsSent[d.Peer] = sentPendingGrants{m.pendingGrants, m.now}
		b := &message.PendingGrants{Seq: m.pendingGrants}
		for i := range m.parts {
			if p := &m.parts[i]; p.told > d.Seen {
				b.Grants = append(b.Grants, message.Granted{Partition: i, Gen: p.known.epoch.Gen, Claimer: p.known.owner})
			}
		}
		m.send(d.Peer, b)
	}
}

// takePendingGrants learns what from has granted or heard of.
func (m *Machine) takePendingGrants(from message.Peer, b *message.PendingGrants) {
	for _, g := range b.Grants {
		if g.Partition >= 0 && g.Partition < len(m.parts) {
			m.learn(&m.parts[g.Partition], message.Epoch{Gen: g.Gen, Boot: g.Claimer.Boot}, g.Claimer)
		}
	}
	m.c.Quorum.Saw(from, b.Seq)
}
