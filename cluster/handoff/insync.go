package handoff

import (
	"math"
	"slices"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// In-sync replicas. An owner that stops sending changes to a replica leaves a copy that looks
// complete: nothing in it says that later changes exist. If links fail one by one, a majority can
// be left with only this copy, while the owner and its present replica are in the minority. So the
// owner announces which replicas are in sync, and counts no change as replicated that a replica
// left out may lack until a majority of the voters knows about it. A majority that grants a claim
// then has a process that knows that the copy is out of date, and the takeover counts as a loss of
// counters. Apache Kafka's in-sync replicas are the same idea, with a controller in the place of
// the majority.

// replicatedUpTo returns the change up to which all in-sync replicas have p. any is false if there
// is none.
func (h *ownership) replicatedUpTo() (seq uint64, any bool) {
	seq, most := uint64(math.MaxUint64), uint64(0)
	for _, t := range h.targets {
		if t.inSync {
			seq, any = min(seq, t.acked), true
			most = max(most, t.acked)
		}
	}
	if !guard.On(guard.SecondReplica) {
		seq = most
	}
	return seq, any
}

// joinInSync counts the complete replicas of p that have everything that is or was confirmed as in
// sync.
func (m *Machine) joinInSync(p *partition) {
	h := &p.ownership
	seq, any := h.replicatedUpTo()
	for _, t := range h.targets {
		if t.stage == complete && !t.inSync && t.acked >= h.confirmed && (!any || t.acked >= seq) {
			t.inSync = true
			m.changeInSync(p)
		}
	}
}

// changeInSync announces the in-sync replicas of p, which have changed.
func (m *Machine) changeInSync(p *partition) {
	m.inSyncChanges++
	p.ownership.inSyncNumber = m.inSyncChanges
	m.announceLater(p)
}

// leaveOut announces that p has no other in-sync replicas than its targets any more, and counts
// nothing more as replicated until a majority knows that.
func (m *Machine) leaveOut(p *partition) {
	m.changeInSync(p)
	p.ownership.untold, m.anyUntold = m.inSyncChanges, true
}

// inSync returns the in-sync replicas of p, owned here. One that finds no place counts as out of
// date.
func (h *ownership) inSync() message.InSync {
	s, n := message.InSync{Number: h.inSyncNumber}, 0
	for _, t := range h.targets {
		if t.inSync && n < len(s.Syncs) {
			s.Syncs[n] = t.initialSync + 1
			n++
		}
	}
	return s
}

// awaitsMajority reports whether too few voters know that a replica of p has been left out.
func (m *Machine) awaitsMajority(p *partition) bool {
	h := &p.ownership
	if h.untold != 0 && (!guard.On(guard.InSync) || m.c.Quorum.InSyncKnown() >= h.untold) {
		h.untold = 0
	}
	return h.untold != 0
}

// recheckInSync confirms changes of the partitions whose in-sync replicas a majority knows by now.
func (m *Machine) recheckInSync() {
	if !m.anyUntold {
		return
	}
	m.anyUntold = false
	for i := range m.parts {
		p := &m.parts[i]
		switch h := &p.handedOff; {
		case h.number == 0:
		case h.announced.Gen>>message.Handoffs < p.known.epoch.Claims():
			*h = handedOff{} // claimed since, and those who have granted that do not report it any more
			m.localTerms[i].Add(1)
		case m.c.Quorum.InSyncKnown() >= h.number:
			m.confirmed[i].Store(h.seq)
			*h = handedOff{}
		}
		m.anyUntold = m.anyUntold || p.handedOff.number != 0
		if p.phase != owning || p.ownership.untold == 0 {
			continue
		}
		m.confirm(p)
		m.anyUntold = m.anyUntold || p.ownership.untold != 0
	}
}

// handedOff is what a former owner announces of a handoff until a majority knows it: the in-sync
// replicas that have the last changes. A claim that has not heard of it would continue from another
// replica as if nothing were missing.
type handedOff struct {
	number    uint64 // of the list that a majority must know, 0 if nothing waits for one
	seq       uint64 // the last change
	announced message.OwnedPartition
}

// confirmHandoff confirms the last changes of p, which the next owner has taken, when a majority
// knows of all replicas that lack some.
func (m *Machine) confirmHandoff(p *partition) {
	h := &p.ownership
	for _, t := range h.targets {
		if t == h.nextOwner || t.acked >= h.seq || !t.inSync && !(t.begun && t.stage == ending) {
			continue
		}
		t.inSync = false
		m.leaveOut(p)
	}
	if !m.awaitsMajority(p) {
		m.confirmed[p.number].Store(h.seq)
		return
	}
	p.handedOff = handedOff{number: h.untold, seq: h.seq, announced: message.OwnedPartition{
		Partition: p.number, Gen: h.epoch.Gen, Start: h.start, NextOwner: h.nextOwner.ch.peer, Loss: m.encodeLoss(&h.loss), InSync: h.inSync(),
	}}
	m.anyUntold = true
}

// newVoters makes partitions with in-sync replicas wait again until a majority, now of other
// voters, knows them.
func (m *Machine) newVoters() {
	version := m.c.Quorum.Set().Version
	if version == m.version {
		return
	}
	m.version = version
	for i := range m.parts {
		h := &m.parts[i].ownership
		if _, any := h.replicatedUpTo(); any {
			h.untold, m.anyUntold = h.inSyncNumber, true
		}
	}
}

// behind reports whether partitions here wait until to knows their in-sync replicas, and the last
// list seems lost.
func (m *Machine) behind(to message.Peer) bool {
	return m.anyUntold && m.c.Quorum.InSyncSeen(to) < m.told && m.now-m.gotFullList[to] >= 3*m.answerAfter(to)
}

// noteInSync notes the in-sync replicas of p that the owner at epoch, or a process that knows them,
// has reported.
func (p *partition) noteInSync(epoch message.Epoch, s message.InSync) {
	if epoch == p.lastOwned && p.inSync.Number < s.Number {
		p.inSync = s
	}
}

// sawInSync reports to the owner that this process knows the changes of in-sync replicas in b.
func (m *Machine) sawInSync(from message.Peer, known *announcements, b *message.OwnedPartitions) {
	if !b.Full && known.inSync < b.After {
		return // a list is missing
	}
	for _, h := range b.Partitions {
		if h.Partition < 0 || h.Partition >= len(m.parts) {
			continue
		}
		p := &m.parts[h.Partition]
		if h.InSync.Number > known.inSync && h.Gen>>message.Handoffs < p.known.epoch.Claims() {
			return // granted to a claimer before, which did not learn this
		}
	}
	known.inSync = max(known.inSync, b.UpTo)
	m.c.Quorum.SawInSync(from, known.inSync, b.Awaits)
}

// outdated reports whether a claim knows that the state offered is an out-of-date replica of the
// last owner.
func (p *partition) outdated(o *offer) bool {
	return guard.On(guard.InSync) && o.sync != 0 && o.mark.Epoch == p.lastOwned && p.inSync.Excludes(o.sync-1)
}

// lacksConfirmed reports whether a claim from best, of these offers, may lack confirmed changes: best
// is out of date, and nobody has offered an in-sync replica with fewer changes. A replica in its
// initial sync when the list was made may have more than those that are known to be in sync.
func (p *partition) lacksConfirmed(best *offer, offers []offer) bool {
	return p.outdated(best) && !slices.ContainsFunc(offers, func(o offer) bool {
		return o.sync != 0 && o.has == message.Complete && o.mark.Epoch == best.mark.Epoch && o.mark.Compare(best.mark) <= 0 && !p.outdated(&o)
	})
}
