package handoff

import (
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
)

// Stats are counts since New, except where they are current values.
type Stats struct {
	// Handoffs completed as old owner, as next owner, and rejected by the next owner.
	HandedOff, Received, HandoffsRejected uint64
	// Takeovers completed; WithoutState are those without any state.
	Takeovers, WithoutState uint64
	// Losses are claims won without the latest state; LossesBack are losses that ended because it came back.
	Losses, LossesBack uint64
	// SteppedDown are partitions given up for a higher epoch; Merged are own divergent states that their owners have
	// merged.
	SteppedDown, Merged uint64
	// InitialSyncs were started; Rejected are parts of own transfer batches that were rejected; Damaged are received
	// initial syncs that could not be decoded or had a wrong checksum.
	InitialSyncs, Rejected, Damaged uint64
	// Counters and Bytes sent in transfer batches. TooLarge counts counters left out because they fit into no message.
	Counters, Bytes, TooLarge uint64
	// Freezes that have ended, their total and longest duration (ns).
	Freezes                uint64
	FrozenNanos, FrozenMax int64
	// PartitionCounts are current.
	facts.PartitionCounts
	// LostSince is the latest time of a loss that PartitionCounts.Lost counts; LostEnds is when the last one stops counting
	// (math.MaxInt64 if it does not expire).
	LostSince, LostEnds int64
}

// Stats returns the machine's counts.
func (m *Machine) Stats() Stats {
	s, wanted := m.stats, m.wantedReplicas()
	for i := range m.parts {
		p := &m.parts[i]
		switch p.phase {
		case owning:
			s.Owned++
			if l := &p.ownership.loss; *l != (loss{}) {
				s.Lost++
				s.LostSince, s.LostEnds = max(s.LostSince, l.since), max(s.LostEnds, m.lossEnds(p))
			}
			n := m.completeReplicas(p)
			if n == 0 {
				s.Unprotected++
			}
			if n < wanted {
				s.BelowReplicas++
			}
		case inHandoff:
			s.HandingOver++
		case divergent:
			s.Divergent++
		case syncing, replica:
			s.Replicas++
		}
		if p.claim != nil {
			s.TakingOver++
		}
	}
	return s
}

// Routes returns a number that changes whenever a result of Owner or Owns may have changed.
func (m *Machine) Routes() uint64 { return m.routes }

// Owner returns the owner of p, as far as known; the next owner while a close to it is in flight. Zero if unknown.
func (m *Machine) Owner(p int) message.Peer {
	k := &m.parts[p].known
	if k.status == ownerReleased {
		return message.Peer{}
	}
	return k.owner
}

// Owns reports whether this process owns p.
func (m *Machine) Owns(p int) bool { return m.parts[p].phase == owning }

// Confirmed returns the number of p's last change that a complete replica has, math.MaxUint64 if p needs none. Safe for
// concurrent use.
func (m *Machine) Confirmed(p int) uint64 { return m.confirmed[p].Load() }

// AwaitsReplica reports whether this process owns p and changes by sync rules are confirmed only by a replica.
func (m *Machine) AwaitsReplica(p int) bool {
	return m.parts[p].phase == owning && m.awaitsReplica(&m.parts[p])
}

// Gate returns how long a change of p may be unconfirmed while this process owns it and has a replica, 0 without one.
func (m *Machine) Gate(p int) time.Duration { return m.parts[p].ownership.gate }

// LocalTerm counts how often this process has become owner of p and was deposed. It is no epoch and means nothing to other
// processes. A decision is confirmed only within its local term, or if that ends with a handoff. Safe for concurrent use.
func (m *Machine) LocalTerm(p int) uint64 { return m.localTerms[p].Load() }

// OnlyHere returns the number of partitions whose state may exist only here: owned or in a handoff, divergent and not yet
// merged, possibly still fetched by a claimer, or being received from an owner that cannot know whether this process took
// the close.
func (m *Machine) OnlyHere() int {
	n := 0
	for i := range m.parts {
		p := &m.parts[i]
		claimed := p.phase != absent && p.known.status == ownerGranted
		nextOwner := p.known.nextOwner == m.c.Self && !m.ownerless(p)
		if p.phase >= divergent || claimed || nextOwner {
			n++
		}
	}
	return n
}

// Needed returns the number of partitions whose copy here is all that a crash of the owner would leave, or has left, as far
// as known. It ends when the owner announces another complete copy, or the partition is claimed; nodes able to do so must
// exist.
func (m *Machine) Needed() int {
	able := make(map[message.Peer]bool)
	for i, p := range m.view.Members {
		if i < len(m.view.Serves) && m.view.Serves[i] && p != m.c.Self {
			able[p] = true
		}
	}
	m.forUnseen(func(p message.Peer) { able[p] = true })
	n := 0
	for i := range m.parts {
		p := &m.parts[i]
		if p.phase != replica && p.phase != divergent {
			continue
		}
		k, others := &p.known, len(able)
		lost := m.ownerless(p)
		if able[k.owner] && !lost {
			others--
		}
		if passed := k.status == ownerAnnounced && !lost && p.state.mark.Epoch.Less(k.epoch); others > 0 && !passed {
			n++
		}
	}
	return n
}
