package handoff

import (
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// unknownEpoch is the last owned epoch of a partition that was owned at an epoch which no record
// tells. It is below the epoch of every claim, so that a complete state of any epoch covers it.
var unknownEpoch = message.Epoch{Gen: 1}

// RestoreOwned declares that p, whose state is not restored, was owned at epoch or later. A
// takeover that finds no complete state of that epoch then lacks counters. Call it before the
// first SetView.
func (m *Machine) RestoreOwned(p int, epoch message.Epoch) {
	x := &m.parts[p]
	x.noteOwned(epoch)
	if epoch != unknownEpoch {
		x.known = knowledge{epoch: epoch, status: ownerReleased}
	}
}

// RestoreUnknown declares that every partition may have been owned, at epochs that this process
// does not know any more: its snapshot cannot be used. Call it before the first SetView.
func (m *Machine) RestoreUnknown() {
	for i := range m.parts {
		m.RestoreOwned(i, unknownEpoch)
	}
}

// nextClaim returns the generation of this process's next claim of p. Where no epoch is known
// though p was owned, it is the number of seconds since 1970 in claims, which is above every
// earlier one: a state that comes back later must not outrank the owner.
func (m *Machine) nextClaim(p *partition) uint64 {
	gen := p.known.epoch.Gen
	if p.lastOwned == unknownEpoch {
		gen = max(gen, uint64(max(0, m.started)/int64(time.Second))<<message.Handoffs)
	}
	return message.NextClaim(gen)
}
