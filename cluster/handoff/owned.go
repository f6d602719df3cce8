package handoff

import (
	"slices"

	"github.com/sluicecluster/sluice/internal/message"
)

// announcements is the state of another process's announced partitions.
type announcements struct {
	seq  uint64
	full bool // a full list has arrived
	// inSync is the number of its newest change of in-sync replicas that has arrived, with all
	// before.
	inSync uint64
}

// announce sends p's ownership to all members at the end of the tick.
func (m *Machine) announce(p *partition) {
	m.routes++
	m.announceLater(p)
}

// announceLater is announce where the owner is the same as before.
func (m *Machine) announceLater(p *partition) {
	if !slices.Contains(m.changed, p.number) {
		m.changed = append(m.changed, p.number)
	}
}

// sendOwned sends changes to all members, and full lists periodically and to new members.
func (m *Machine) sendOwned() {
	due := m.now-m.digested >= fullListInterval
	if due {
		m.digested = m.now
	}
	var full, some *message.OwnedPartitions
	send := func(to message.Peer) {
		if _, got := m.gotFullList[to]; due || !got || m.behind(to) {
			m.gotFullList[to] = m.now
			if full == nil {
				full = m.ownedPartitions(true, nil)
			}
			m.send(to, full)
			return
		}
		if len(m.changed) == 0 {
			return
		}
		if some == nil {
			some = m.ownedPartitions(false, m.changed)
		}
		m.send(to, some)
	}
	m.forOthers(send)
	m.forUnseen(send)
	m.changed, m.told = m.changed[:0], m.inSyncChanges
}

// ownedPartitions lists the partitions that this process owns: all of them, or those in of.
func (m *Machine) ownedPartitions(full bool, of []int) *message.OwnedPartitions {
	m.ownedSeq++
	wanted := m.wantedReplicas()
	b := &message.OwnedPartitions{Seq: m.ownedSeq, Full: full, After: m.told, UpTo: m.inSyncChanges, Awaits: m.anyUntold}
	add := func(p *partition) {
		switch p.phase {
		case owning:
			b.Partitions = append(b.Partitions, message.OwnedPartition{
				Partition: p.number, Gen: p.ownership.epoch.Gen, Start: p.ownership.start, Loss: m.encodeLoss(&p.ownership.loss),
				Replicated: wanted > 0 && m.completeReplicas(p) >= wanted, InSync: p.ownership.inSync(),
			})
		case inHandoff:
			b.Partitions = append(b.Partitions, message.OwnedPartition{
				Partition: p.number, Gen: p.ownership.epoch.Gen, Start: p.ownership.start, NextOwner: p.ownership.nextOwner.ch.peer, Loss: m.encodeLoss(&p.ownership.loss),
				InSync: p.ownership.inSync(),
			})
		default:
			if p.handedOff.number != 0 {
				b.Partitions = append(b.Partitions, p.handedOff.announced)
			}
		}
	}
	if !full {
		for _, i := range of {
			add(&m.parts[i])
		}
		return b
	}
	for i := range m.parts {
		add(&m.parts[i])
	}
	return b
}

// receiveOwned learns which partitions from owns.
func (m *Machine) receiveOwned(from message.Peer, b *message.OwnedPartitions) {
	known := m.announced[from]
	if known == nil {
		known = new(announcements)
		m.announced[from] = known
	}
	if b.Seq <= known.seq {
		return // overtaken by a later list
	}
	known.seq = b.Seq
	has := make(map[int]bool, len(b.Partitions))
	for _, h := range b.Partitions {
		if h.Partition < 0 || h.Partition >= len(m.parts) {
			continue
		}
		p := &m.parts[h.Partition]
		has[h.Partition] = true
		epoch := message.Epoch{Gen: h.Gen, Boot: from.Boot}
		if m.learn(p, epoch, from) {
			m.noteAnnounced(p, from, h)
			p.noteInSync(epoch, h.InSync)
			continue
		}
		if epoch.Sane() {
			p.noteOwned(epoch)
			p.noteInSync(epoch, h.InSync)
		}
		if h.NextOwner != p.known.owner {
			// The sender does not know of the grant, or of the current owner.
			m.makePendingGrants(p)
		}
	}
	m.sawInSync(from, known, b)
	if !b.Full {
		return
	}
	for i := range m.parts {
		if k := &m.parts[i].known; k.owner == from && k.status == ownerAnnounced && !has[i] {
			k.status = ownerReleased
			m.routes++
		}
	}
	if !known.full {
		// It may have been unable to read this process's list when that arrived.
		known.full = true
		delete(m.gotFullList, from)
	}
	m.c.Quorum.Introduced(from)
}

// noteAnnounced notes that from itself announces p at the known epoch.
func (m *Machine) noteAnnounced(p *partition, from message.Peer, h message.OwnedPartition) {
	k := &p.known
	if k.owner != from || k.epoch.Gen != h.Gen {
		return
	}
	if k.status != ownerAnnounced {
		m.routes++
	}
	if k.nextOwner != h.NextOwner {
		k.nextOwnerSince = m.now
	}
	k.status, k.nextOwner, k.start, k.replicated = ownerAnnounced, h.NextOwner, h.Start, h.Replicated
	p.noteOwned(k.epoch)
	if p.phase == inHandoff && p.ownership.next == k.epoch {
		m.handoffAccepted(p, p.ownership.nextOwner)
	}
	m.handoffAcceptedLate(p, h.Start)
	if p.phase == divergent && p.containedIn(h.Start) {
		p.enter(replica)
	}
	m.offerLostState(p, from, h.Loss)
	if s := &p.state; !p.isOwned() && s.from == from && s.mark.Epoch == k.epoch {
		s.loss = m.decodeLoss(h.Loss, s.loss)
	}
}

// heardAllOwned reports whether every live member has sent its full list.
func (m *Machine) heardAllOwned() bool {
	ok := true
	m.forOthers(func(p message.Peer) {
		l := m.announced[p]
		ok = ok && (l != nil && l.full || !m.mayKnowPartitions(p))
	})
	return ok
}
