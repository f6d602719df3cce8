package handoff

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// drainAll collects the changes of all shards for their targets.
func (m *Machine) drainAll() {
	m.c.Table.Changed(func(shard int) { m.drain(&m.parts[shard]) })
}

// drain collects the changes of p's shard for p's targets, and returns the number of the last change.
func (m *Machine) drain(p *partition) uint64 {
	keys, seq, since := m.c.Table.Drain(p.number, m.keys[:0])
	m.keys = keys
	if len(keys) == 0 || len(p.ownership.targets) == 0 {
		for _, t := range p.ownership.targets {
			if len(t.pending) == 0 && t.stage != waiting {
				t.drained = seq // changes that no target needs
			}
		}
		return seq
	}
	p.ownership.spans = append(p.ownership.spans, changes{seq: seq, since: since})
	for _, t := range p.ownership.targets {
		if t.stage == waiting {
			continue // its initial sync will include them
		}
		t.repeats = t.repeats || len(t.pending) > 0
		t.pending = append(t.pending, keys...)
		t.drained = seq
		m.queueChanges(t)
	}
	return seq
}

// confirm computes which changes of p are confirmed by complete replicas, and updates the table.
func (m *Machine) confirm(p *partition) {
	h := &p.ownership
	m.joinInSync(p)
	have, any := h.replicatedUpTo()
	if m.awaitsMajority(p) {
		m.journal(p)
		return
	}
	h.forgetSpans()
	if !any {
		oldest := int64(math.MaxInt64)
		if slices.ContainsFunc(h.targets, func(t *target) bool { return t.stage == complete }) {
			oldest = h.oldestAfter(h.confirmed) // that replica lacks changes that were confirmed
		}
		m.c.Table.Confirm(p.number, oldest)
		if !m.awaitsReplica(p) {
			m.confirmed[p.number].Store(math.MaxUint64)
		} else if m.confirmed[p.number].Load() == math.MaxUint64 {
			m.confirmed[p.number].Store(h.start.Seq)
		}
		m.journal(p)
		return
	}
	h.replicated, h.confirmed = true, max(h.confirmed, have)
	m.c.Table.Confirm(p.number, h.oldestAfter(have))
	m.confirmed[p.number].Store(have)
	m.journal(p)
}

// oldestAfter returns when the first drained change after seq was made, math.MaxInt64 if there is
// none.
func (h *ownership) oldestAfter(seq uint64) int64 {
	if i := h.spansUpTo(seq); i < len(h.spans) {
		return h.spans[i].since
	}
	return math.MaxInt64
}

// awaitsReplica reports whether changes of p by sync rules stay unconfirmed while no complete replica has them: where there
// are other voters, once p has had a replica or was taken over. Before that, as when a second node joins, waiting for the
// initial sync would only delay checks.
func (m *Machine) awaitsReplica(p *partition) bool { return m.otherVoters && p.ownership.replicated }

// countVoters updates all owned partitions when other voters appear or disappear.
func (m *Machine) countVoters() {
	several := len(m.c.Quorum.Set().Members) > 1
	if several == m.otherVoters {
		return
	}
	m.otherVoters = several
	for i := range m.parts {
		if p := &m.parts[i]; p.phase == owning {
			m.confirm(p)
		}
	}
}

// spansUpTo returns the number of spans with changes up to seq.
func (h *ownership) spansUpTo(seq uint64) int {
	i, _ := slices.BinarySearchFunc(h.spans, seq+1, func(c changes, seq uint64) int { return cmp.Compare(c.seq, seq) })
	return i
}

// forgetSpans removes spans that every target has. The others are kept: if the targets that have them are abandoned, they
// count as unconfirmed again.
func (h *ownership) forgetSpans() {
	all := uint64(math.MaxUint64 - 1)
	for _, t := range h.targets {
		if t.stage != waiting {
			all = min(all, t.acked)
		}
	}
	if h.spans = slices.Delete(h.spans, 0, h.spansUpTo(all)); len(h.spans) == 0 {
		h.spans = emptied(h.spans)
	}
}

// journal sets in the table which changes of p are recorded, and the gate.
func (m *Machine) journal(p *partition) {
	h := &p.ownership
	what, gate := bucket.RecordNothing, time.Duration(0)
	for _, t := range h.targets {
		if t.stage == waiting {
			continue
		}
		if what = max(what, bucket.RecordLasting); t.nextOwner {
			what = bucket.RecordAll
		}
		if t.stage == complete && gate == 0 {
			gate = m.gateOf(p)
		}
	}
	if h.untold != 0 && gate == 0 {
		what, gate = max(what, bucket.RecordLasting), m.c.Gate
	}
	if p.phase != owning || what == h.journal && gate == h.gate {
		return
	}
	h.journal, h.gate = what, gate
	m.c.Table.Record(p.number, what, gate)
}

// plan chooses the nodes that get p's counters, and abandons other targets.
func (m *Machine) plan(p *partition) {
	if p.phase != owning || m.view.Owner == nil {
		return
	}
	h := &p.ownership
	for i := len(h.targets) - 1; i >= 0; i-- {
		if t := h.targets[i]; !m.canReceive(p, t.ch.peer) {
			m.abandon(t)
		}
	}
	want := m.owner(p)
	handsOff := want != m.c.Self && m.canReceive(p, want)
	wanted := append(m.wanted[:0], want)
	if !handsOff {
		wanted = m.replicas(p, wanted[:0])
	}
	if m.wanted = wanted; len(wanted) == 0 {
		return
	}
	m.addWanted(p, wanted)
	m.dropSurplus(p, wanted, handsOff)
	for _, t := range h.targets {
		switch handsOff := handsOff && t.ch.peer == want; {
		case !handsOff:
			t.nextOwner = false
		case !t.nextOwner:
			m.makeNextOwner(t)
		}
	}
	m.journal(p)
}

// addWanted starts the initial sync to a wanted node without a copy, one at a time. A node with the state from before a
// takeover comes last: it drops that state when the sync begins, and until another replica is complete it may be all that
// remains after a crash.
func (m *Machine) addWanted(p *partition, wanted []message.Peer) {
	h := &p.ownership
	next := message.Peer{}
	for _, peer := range wanted {
		switch i := slices.IndexFunc(h.targets, func(t *target) bool { return t.ch.peer == peer }); {
		case i >= 0 && h.targets[i].stage != complete:
			return
		case i < 0 && (next == message.Peer{} || slices.Contains(h.former, next)):
			next = peer
		}
	}
	if next != (message.Peer{}) {
		h.targets = append(h.targets, m.addTarget(p, next, message.InitialSync))
	}
}

// dropSurplus abandons targets that are not wanted. A complete replica stays until the wanted ones are complete and cover
// everything that is confirmed, or until the handoff if one is next. While no replica is complete, syncs to unwanted nodes
// continue.
func (m *Machine) dropSurplus(p *partition, wanted []message.Peer, handsOff bool) {
	h := &p.ownership
	_, copied := h.replicatedUpTo()
	upToDate := 0
	for _, t := range h.targets {
		if t.inSync && slices.Contains(wanted, t.ch.peer) {
			upToDate++
		}
	}
	enough := upToDate == len(wanted) && !handsOff
	h.surplus = false
	for i := len(h.targets) - 1; i >= 0; i-- {
		t := h.targets[i]
		if slices.Contains(wanted, t.ch.peer) {
			continue
		}
		useless := t.stage == waiting || copied
		if t.stage == complete {
			useless = enough
		}
		if useless {
			m.abandon(t)
		} else {
			h.surplus = true
		}
	}
	m.dropLeft(p, enough, copied)
	h.surplus = h.surplus && !handsOff // the handoff ends it
}

// dropLeft tells nodes to drop what abandoned targets have left there, also those that could not be reached meanwhile: complete
// copies when there are enough replicas, others when there is one.
func (m *Machine) dropLeft(p *partition, enough, copied bool) {
	h := &p.ownership
	h.left = slices.DeleteFunc(h.left, func(x leftCopy) bool {
		switch {
		case slices.ContainsFunc(h.targets, func(t *target) bool { return t.ch.peer == x.peer && t.begun }):
			return true // another initial sync has replaced it
		case !m.canReceive(p, x.peer):
			return false
		case x.complete && !enough, !x.complete && !copied:
			h.surplus = true
			return false
		}
		m.dropAt(p, x.peer, x.initialSync)
		return true
	})
}

// dropAt tells peer to drop what an initial sync of p has left there.
func (m *Machine) dropAt(p *partition, peer message.Peer, initialSync uint64) {
	ch := m.channel(peer)
	ch.drops = append(ch.drops, message.Part{Partition: p.number, Kind: message.Drop, InitialSync: initialSync, Epoch: p.ownership.epoch})
}

// canReceive reports whether peer can get p's counters.
func (m *Machine) canReceive(p *partition, peer message.Peer) bool {
	if peer == (message.Peer{}) || peer == m.c.Self || peer == p.ownership.skipped || !m.reachable(peer) {
		return false
	}
	return !m.channel(peer).unavailable
}

// replicas appends the nodes that should have replicas of p: first those of the view, then other members, then voters that
// only gossip considers dead, since without a replica a crash here would lose everything. The second replica goes only to a
// serving node, because a leaving one waits until its replicas are not needed.
func (m *Machine) replicas(p *partition, list []message.Peer) []message.Peer {
	add := func(peer message.Peer, serves bool) {
		if len(list) < m.c.Replicas && m.canReceive(p, peer) && (len(list) == 0 || serves && list[0] != peer) {
			list = append(list, peer)
		}
	}
	at := func(i int) { add(m.memberAt(i), i >= 0 && i < len(m.view.Serves) && m.view.Serves[i]) }
	at(m.view.Replica[p.number])
	if m.view.Second != nil {
		at(m.view.Second[p.number])
	}
	n := len(m.view.Members)
	for i := range n {
		at((p.number + i) % n)
	}
	if len(list) < m.c.Replicas {
		m.forUnseen(func(peer message.Peer) { add(peer, true) })
	}
	return list
}

// wantedReplicas returns the wanted number of complete replicas: the number of other serving nodes, at most Replicas.
func (m *Machine) wantedReplicas() int {
	others := 0
	for i, p := range m.view.Members {
		if p != m.c.Self && i < len(m.view.Serves) && m.view.Serves[i] {
			others++
		}
	}
	return min(others, m.c.Replicas)
}

// completeReplicas counts p's complete replicas on nodes that are heard.
func (m *Machine) completeReplicas(p *partition) (n int) {
	for _, t := range p.ownership.targets {
		if t.stage == complete && m.c.Quorum.Lives(m.now, t.ch.peer) {
			n++
		}
	}
	return n
}
