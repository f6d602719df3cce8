package handoff

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Stats counts since New, except for what is marked as of now.
type Stats struct {
	// HandedOver and Received were swaps, TakenBack swaps that were rejected.
	HandedOver, Received, TakenBack uint64
	// Claims were completed, Fresh of them without any state.
	Claims, Fresh uint64
	// Losses are claims that were completed without the state that there was, LossesBack losses that ended because it came back.
	Losses, LossesBack uint64
	// SteppedDown are partitions lost to a higher epoch, Merged divergent copies of this process
	// that their owners have taken in.
	SteppedDown, Merged uint64
	// Initial syncs were begun, Rejected parts of this process's transfer batches rejected, Damaged
	// initial syncs of others that could not be read or did not add up.
	InitialSyncs, Rejected, Damaged uint64
	// Counters and Bytes went out in transfer batches. TooLarge counts how often one was left out because no message takes it.
	Counters, Bytes, TooLarge uint64
	// Freezes are ended ones, FrozenNanos how long all of them took together, FrozenMax
	// the longest (ns).
	Freezes                uint64
	FrozenNanos, FrozenMax int64
	// Now: partitions held; of these without a complete copy at a node that is heard, and with fewer complete copies than
	// wanted, or than there are other nodes that serve; being handed over just now; copies of others' partitions, divergent copies
	// not yet merged, claims under way.
	Holding, Unprotected, Below, Closing, Copies, Divergent, Claiming int
	// Lost are partitions that are held and lack counters, now; LostSince is the last time at which counters of these were lost, LostEnds
	// when that no longer counts for any of them (math.MaxInt64: it has no end by itself).
	Lost                int
	LostSince, LostEnds int64
}

// Stats returns the machine's counts.
func (m *Machine) Stats() Stats {
	s, enough := m.stats, m.enough()
	for i := range m.parts {
		p := &m.parts[i]
		switch p.phase {
		case owning:
			s.Holding++
			if l := &p.hold.loss; *l != (loss{}) {
				s.Lost++
				s.LostSince, s.LostEnds = max(s.LostSince, l.since), max(s.LostEnds, m.lossEnds(p))
			}
			n := m.completeReplicas(p)
			if n == 0 {
				s.Unprotected++
			}
			if n < enough {
				s.Below++
			}
		case handingOver:
			s.Closing++
		case divergent:
			s.Divergent++
		case syncing, replica:
			s.Copies++
		}
		if p.claim != nil {
			s.Claiming++
		}
	}
	return s
}

// Routes returns a number that changes whenever an answer of Owner or Holds may have.
func (m *Machine) Routes() uint64 { return m.routes }

// Owner returns who holds p, as far as known: this process while it does, the next owner
// while a close to it is on its way. Zero if unknown.
func (m *Machine) Owner(p int) message.Peer {
	k := &m.parts[p].known
	if k.basis == released {
		return message.Peer{}
	}
	return k.owner
}

// Holds reports whether this process holds p.
func (m *Machine) Holds(p int) bool { return m.parts[p].phase == owning }

// Confirmed returns the number of the last change of p that a complete copy has had, or
// math.MaxUint64 if p needs none. Safe for concurrent use.
func (m *Machine) Confirmed(p int) uint64 { return m.confirmed[p].Load() }

// AwaitsReplica reports whether changes of p by sync rules are confirmed only when a replica has them, while this process holds it.
func (m *Machine) AwaitsReplica(p int) bool {
	return m.parts[p].phase == owning && m.awaitsReplica(&m.parts[p])
}

// Gate returns how long a change of p may be unconfirmed while this process holds it and has a replica, 0 if it has none.
func (m *Machine) Gate(p int) time.Duration { return m.parts[p].hold.gate }

// Term counts how often this process has begun to hold p, and was deposed. What was decided in
// one term is confirmed only while that lasts, or when it ends with a hand-off. Safe for
// concurrent use.
func (m *Machine) Term(p int) uint64 { return m.terms[p].Load() }

// Held returns of how many partitions this process has what nobody else may have: those
// it holds or is handing over, divergent copies that it has not brought to their owners, states
// that a claimer may yet fetch, and what an owner is handing over to it: that one could not
// know whether this process has taken it.
func (m *Machine) Held() int {
	n := 0
	for i := range m.parts {
		p := &m.parts[i]
		claimed := p.phase != absent && p.known.basis == granted
		inherits := p.known.nextOwner == m.c.Self && !m.lost(p)
		if p.phase >= divergent || claimed || inherits {
			n++
		}
	}
	return n
}

// Needed returns of how many partitions the copy that this process has is all that a crash of their owner
// would leave, or has left, as far as it knows. An owner says so when it has another copy, if there is
// anybody to have one; what nobody holds is needed until it is claimed, if there is anybody to claim it.
func (m *Machine) Needed() int {
	able := make(map[message.Peer]bool)
	for i, p := range m.view.Members {
		if i < len(m.view.Serves) && m.view.Serves[i] && p != m.c.Self {
			able[p] = true
		}
	}
	m.unseen(func(p message.Peer) { able[p] = true })
	n := 0
	for i := range m.parts {
		p := &m.parts[i]
		if p.phase != replica && p.phase != divergent {
			continue
		}
		k, others := &p.known, len(able)
		lost := m.lost(p)
		if able[k.owner] && !lost {
			others--
		}
		if passed := k.basis == announced && !lost && p.state.mark.Epoch.Less(k.epoch); others > 0 && !passed {
			n++
		}
	}
	return n
}
