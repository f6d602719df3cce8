package handoff

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

// drainAll looks for changes in all shards, and hands them to their targets.
func (m *Machine) drainAll() {
	m.c.Table.Changed(func(shard int) { m.drain(&m.parts[shard]) })
}

// drain takes what has changed in p's shard to p's targets, and returns the number of the
// last change.
func (m *Machine) drain(p *partition) uint64 {
	keys, seq, since := m.c.Table.Drain(p.number, m.keys[:0])
	m.keys = keys
	if len(keys) == 0 || len(p.hold.targets) == 0 {
		for _, t := range p.hold.targets {
			if len(t.pending) == 0 && t.stage != waiting {
				t.level = seq // changes that nobody needs to have
			}
		}
		return seq
	}
	p.hold.spans = append(p.hold.spans, changes{seq: seq, since: since})
	for _, t := range p.hold.targets {
		if t.stage == waiting {
			continue // its filling will have them
		}
		t.pending = append(t.pending, keys...)
		t.level = seq
		m.queue(t)
	}
	return seq
}

// confirm works out what a complete copy of p has, and lets the table decide by it.
func (m *Machine) confirm(p *partition) {
	h := &p.hold
	have, any := uint64(0), false
	for _, t := range h.targets {
		if t.stage == complete {
			have, any = max(have, t.acked), true
		}
	}
	// Also when the next copy is complete by then: both may be cut off, while a majority goes on from the last one.
	if (!any || h.orphaned != 0) && m.orphaned(p) {
		m.journal(p)
		return
	}
	h.orphaned = 0
	h.forgetSpans()
	if !any {
		m.c.Table.Confirm(p.number, math.MaxInt64)
		if !m.awaitsReplica(p) {
			m.confirmed[p.number].Store(math.MaxUint64)
		} else if m.confirmed[p.number].Load() == math.MaxUint64 {
			m.confirmed[p.number].Store(h.start.Seq)
		}
		m.journal(p)
		return
	}
	h.replicated = true
	oldest := int64(math.MaxInt64)
	if i := h.spansUpTo(have); i < len(h.spans) {
		oldest = h.spans[i].since
	}
	m.c.Table.Confirm(p.number, oldest)
	m.confirmed[p.number].Store(have)
	m.journal(p)
}

// awaitsReplica reports whether changes of p by sync rules are unconfirmed while no complete replica has them: where there are
// other voters, from when p has first had a replica or was taken over. Before, as when a second node joins, the initial sync
// would hold them up, and nothing is worse than it was.
func (m *Machine) awaitsReplica(p *partition) bool { return m.several && p.hold.replicated }

// countVoters looks again at what needs a replica when there are other voters, or none any more.
func (m *Machine) countVoters() {
	several := len(m.c.Quorum.Set().Members) > 1
	if several == m.several {
		return
	}
	m.several = several
	for i := range m.parts {
		if p := &m.parts[i]; p.role == holding {
			m.confirm(p)
		}
	}
}

// spansUpTo returns how many spans are of changes up to seq.
func (h *hold) spansUpTo(seq uint64) int {
	i, _ := slices.BinarySearchFunc(h.spans, seq+1, func(c changes, seq uint64) int { return cmp.Compare(c.seq, seq) })
	return i
}

// forgetSpans forgets what every target has. What only some have is kept: should these be
// let go, it counts as unconfirmed again.
func (h *hold) forgetSpans() {
	all := uint64(math.MaxUint64 - 1)
	for _, t := range h.targets {
		if t.stage != waiting {
			all = min(all, t.acked)
		}
	}
	if h.spans = h.spans[h.spansUpTo(all):]; len(h.spans) == 0 {
		h.spans = nil
	}
}

// orphaned reports whether p has lost its last complete copy, and no majority has heard
// from this process since. Then it may be this process that is cut off, and what it
// decided without a copy would be lost: the gate stays.
func (m *Machine) orphaned(p *partition) bool {
	h := &p.hold
	if h.gated && h.orphaned == 0 {
		h.orphaned = m.now
		m.orphans = true
	}
	return h.orphaned != 0 && m.c.Quorum.Renewed() < h.orphaned
}

// adopt looks again at partitions that were orphaned, when the right has been renewed.
func (m *Machine) adopt() {
	renewed := m.c.Quorum.Renewed()
	if !m.orphans || renewed == m.renewed {
		return
	}
	m.renewed, m.orphans = renewed, false
	for i := range m.parts {
		if p := &m.parts[i]; p.role == holding && p.hold.orphaned != 0 {
			m.confirm(p)
			m.orphans = m.orphans || p.hold.orphaned != 0
		}
	}
}

// journal tells the table which changes of p are wanted, and whether they are urgent.
func (m *Machine) journal(p *partition) {
	h := &p.hold
	recording, all, gated := h.orphaned != 0, false, h.orphaned != 0
	for _, t := range h.targets {
		recording = recording || t.stage != waiting
		all = all || t.heir && t.stage != waiting
		gated = gated || t.stage == complete
	}
	gate := time.Duration(0)
	switch {
	case h.orphaned != 0:
		gate = m.c.Gate
	case gated:
		gate = m.gateOf(p)
	}
	if p.role != holding || recording == h.recording && all == h.all && gated == h.gated && gate == h.gate {
		return
	}
	h.recording, h.all, h.gated, h.gate = recording, all, gated, gate
	what := bucket.RecordNothing
	switch {
	case all:
		what = bucket.RecordAll
	case recording:
		what = bucket.RecordLasting
	}
	m.c.Table.Record(p.number, what, gate)
}

// plan decides who shall have p's counters, and lets go of whom else has them.
func (m *Machine) plan(p *partition) {
	if p.role != holding || m.view.Owner == nil {
		return
	}
	want := m.owner(p)
	inherits := want != m.c.Self && m.fit(p, want)
	if !inherits {
		want = m.standby(p)
	}
	var wanted *target
	for i := len(p.hold.targets) - 1; i >= 0; i-- {
		t := p.hold.targets[i]
		switch {
		case !m.fit(p, t.ch.peer):
			m.abandon(t)
		case t.ch.peer == want:
			wanted = t
		}
	}
	switch {
	case want == message.Peer{}:
		return
	case wanted == nil:
		wanted = m.addTarget(p, want, message.Fill)
		p.hold.targets = append(p.hold.targets, wanted)
	}
	copied := slices.ContainsFunc(p.hold.targets, func(t *target) bool { return t.stage == complete })
	for i := len(p.hold.targets) - 1; i >= 0; i-- {
		t := p.hold.targets[i]
		if t == wanted {
			continue
		}
		t.heir = false
		// The old copy stays until the new one has all that it has; until a hand-off, if
		// that is next. Where no copy is complete, whichever is first shall be.
		useless := t.stage == waiting || copied
		if t.stage == complete {
			useless = wanted.stage == complete && wanted.acked >= t.acked && !inherits
		}
		if useless {
			m.abandon(t)
			m.dropAt(t)
		}
	}
	if inherits && !wanted.heir {
		m.inherit(wanted)
	} else if !inherits {
		wanted.heir = false
	}
	m.journal(p)
}

// fit reports whether peer can have p's counters.
func (m *Machine) fit(p *partition, peer message.Peer) bool {
	if peer == (message.Peer{}) || peer == m.c.Self || peer == p.hold.shunned || !m.reachable(peer) {
		return false
	}
	return !m.channel(peer).unfit
}

// standby returns who shall have a copy of p: whom the ring names, else any other member, else a voter that gossip alone takes for
// dead: without a replica a crash here would lose all.
func (m *Machine) standby(p *partition) message.Peer {
	if i := m.view.Standby[p.number]; i >= 0 && m.fit(p, m.at(i)) {
		return m.at(i)
	}
	n := len(m.view.Members)
	for i := range n {
		if peer := m.view.Members[(p.number+i)%n]; m.fit(p, peer) {
			return peer
		}
	}
	var other message.Peer
	m.unseen(func(peer message.Peer) {
		if other == (message.Peer{}) && m.fit(p, peer) {
			other = peer
		}
	})
	return other
}

// dropAt tells t's peer that its copy is of no use any more.
func (m *Machine) dropAt(t *target) {
	if t.begun && t.kind == message.Fill {
		t.ch.drops = append(t.ch.drops, message.Part{
			Partition: t.part.number, Kind: message.Drop, Fill: t.fill, Epoch: t.part.hold.epoch,
		})
	}
}
