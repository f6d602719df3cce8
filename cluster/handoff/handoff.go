package handoff

import (
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// closes freezes partitions whose next owner, the channel's peer, has all changes but a few, and packs their closes with the
// rest. From then on this process decides nothing there, and takes a partition back only when the peer rejects the close.
func (k *packing) closes() {
	ch, m := k.ch, k.m
	for len(ch.closes) > 0 && k.room() > 0 && m.hasQuorum() {
		t := ch.closes[0]
		ch.closes = ch.closes[1:]
		p := t.part
		if p.ownership.previousOwner == ch.peer && m.now-p.ownership.since < fullListInterval || m.now < ch.notServing+fullListInterval {
			p.ownership.closeLater = true // offered again when the time has passed
			continue
		}
		if t.gone || !t.nextOwner || t.stage != complete || p.phase != owning || t.inFlight > 0 || len(t.pending) > maxCloseChanges {
			continue
		}
		if len(p.ownership.merging) > 0 { // maybe many changes, which the peer gets before the close
			m.mergeRests(p, func(message.Peer) bool { return true })
			m.drain(p)
			m.queueClose(t)
			continue
		}
		if guard.On(guard.Freeze) {
			m.c.Table.Seal(p.number)
		}
		h := &p.ownership
		seq := m.drain(p)
		t.pending = distinct(t.pending)
		part, left := k.export(t, t.pending, len(t.pending), closeBounds)
		if t.pending = left; len(left) > 0 {
			// The changes since the last drain do not fit into one message: send them as changes first, and the close
			// later.
			part.Epoch, part.Start, part.Seq = h.epoch, h.start, t.packed
			k.addPart(t, part)
			if guard.On(guard.Freeze) {
				m.c.Table.Open(p.number, seq)
			}
			continue
		}
		h.seq = seq
		p.enter(inHandoff)
		h.nextOwner, h.frozen = t, m.now
		h.next = message.Epoch{Gen: h.epoch.Gen + 1, Boot: ch.peer.Boot}
		p.known = knowledge{epoch: h.next, owner: ch.peer, since: m.now}
		m.routes++

		part.Kind, part.Epoch, part.Start, part.Seq, part.Next = message.Close, h.epoch, h.start, h.seq, h.next
		k.addPart(t, part)
		m.announce(p)
	}
}

// handoffAccepted ends a handoff at the old owner: t's peer owns p now, and the state here is a replica.
func (m *Machine) handoffAccepted(p *partition, t *target) {
	if p.phase != inHandoff || p.ownership.nextOwner != t {
		return
	}
	m.noteFreezeEnd(p)
	m.stats.HandedOff++
	mark := message.Mark{Epoch: p.ownership.next, Seq: p.ownership.seq}
	before := message.Mark{Epoch: p.ownership.epoch, Seq: p.ownership.seq}
	m.confirmHandoff(p)
	next := p.ownership.next
	for _, x := range p.ownership.targets {
		if x != t && x.begun && m.c.Replicas == 1 {
			m.dropAt(p, x.ch.peer, x.initialSync) // with two, dropLeftover drops theirs when the next owner has enough replicas
		}
	}
	m.sealAs(p, replica)
	p.state.mark, p.state.start, p.state.from, p.state.sync, p.state.closeAbandoned = mark, before, t.ch.peer, 1, false
	p.noteOwned(next)
	if p.known.epoch == next {
		p.known.status, p.known.start = ownerAnnounced, before
	}
}

// handoffAcceptedLate makes the state here a replica of p's owner if the owner took a close that this process had given up (as
// after a lapse). The owner counts it as a replica too. start is the beginning of the owner's epoch.
func (m *Machine) handoffAcceptedLate(p *partition, start message.Mark) {
	s, k := &p.state, &p.known
	if p.phase != replica && p.phase != divergent || !s.closeAbandoned || s.mark != start || k.epoch.Gen != start.Epoch.Gen+1 {
		return
	}
	s.release()
	p.enter(replica)
	s.mark.Epoch, s.start, s.from, s.sync, s.closeAbandoned = k.epoch, start, k.owner, 1, false
}

// handoffRejected takes p back, unless another process owns it at a higher epoch.
func (m *Machine) handoffRejected(p *partition, t *target, x message.Rejection) {
	if p.phase != inHandoff || p.ownership.nextOwner != t {
		return
	}
	m.noteFreezeEnd(p)
	h := p.ownership
	m.learn(p, x.Known, x.Owner)
	if p.phase != inHandoff {
		return // a higher epoch is known; p is no longer owned here
	}
	m.stats.HandoffsRejected++
	for _, o := range h.targets {
		o.gone = true // they follow the epoch that ended, and are synced again
	}
	m.c.Table.Record(p.number, 0, 0)
	m.becomeOwner(p, message.Epoch{Gen: h.next.Gen + 1, Boot: m.c.Self.Boot}, message.Mark{Epoch: h.epoch, Seq: h.seq})
	m.skipForAWhile(p, t.ch.peer)
	m.plan(p)
}

func (m *Machine) noteFreezeEnd(p *partition) {
	d := m.now - p.ownership.frozen
	m.stats.Freezes++
	m.stats.FrozenNanos += d
	m.stats.FrozenMax = max(m.stats.FrozenMax, d)
}

// takeClose makes this process owner of p if the close is valid. A generation once rejected is never accepted later,
// because the sender has continued after the rejection.
func (m *Machine) takeClose(from message.Peer, p *partition, part *message.Part) bool {
	s := &p.state
	rejected := p.rejected
	if !guard.On(guard.RejectionMemory) {
		rejected = 0
	}
	switch {
	case part.Next.Boot != m.c.Self.Boot, part.Next.Gen <= rejected,
		guard.On(guard.EpochCheck) && part.Next.Less(p.known.epoch),
		p.phase != replica && p.phase != divergent,
		guard.On(guard.Checksum) && s.sum != part.Sum:
		p.rejected = max(p.rejected, part.Next.Gen)
		if !p.isOwned() && s.sum != part.Sum {
			m.stats.Damaged++
			m.dropState(p) // it is not a valid replica
		}
		return false
	}
	m.stats.Received++
	s.loss = m.decodeLoss(part.Loss, s.loss)
	start := message.Mark{Epoch: part.Epoch, Seq: part.Seq}
	// The previous owner has the same state, and remains a replica until another one is complete.
	previousOwner := &target{
		part: p, ch: m.channel(from), kind: message.InitialSync, stage: complete, begun: true, inSync: true,
		drained: part.Seq, packed: part.Seq, acked: part.Seq,
	}
	m.becomeOwner(p, part.Next, start, previousOwner)
	p.ownership.previousOwner, p.ownership.since = from, m.now
	return true
}
