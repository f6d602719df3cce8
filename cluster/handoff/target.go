package handoff

import (
	"slices"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

type key = bucket.KeyAt

// stage is the progress of a target.
type stage uint8

const (
	// waiting for its turn.
	waiting stage = iota
	// sending: its counters are being packed.
	sending
	// ending: the last part is packed but not confirmed.
	ending
	// complete: it follows all changes.
	complete
)

// target is the sending of one partition to one peer.
type target struct {
	part        *partition
	ch          *channel
	kind        message.Kind // InitialSync, Answer or Merge
	initialSync uint64
	nextOwner   bool
	gen         uint64 // of the claim that an Answer is for

	stage stage
	begun bool
	// inSync: it is an in-sync replica; see insync.go.
	inSync bool
	keys   []key // still to pack
	// pending are changed keys to be packed again; queued says whether the channel knows. drained is the number of the last
	// change in pending: the target has all changes up to it once pending is packed and confirmed.
	pending []key
	repeats bool // pending may have keys twice
	queued  bool
	drained uint64
	// packed and acked are the change numbers last packed and last confirmed.
	packed, acked uint64
	inFlight      int // parts in flight
	sum           uint64
	// ended: the end of a Merge was confirmed. gone: abandoned.
	ended, gone bool
}

// addTarget starts sending p's counters to peer.
func (m *Machine) addTarget(p *partition, peer message.Peer, kind message.Kind) *target {
	m.initialSyncs++
	m.stats.InitialSyncs++
	t := &target{part: p, ch: m.channel(peer), kind: kind, initialSync: m.initialSyncs}
	t.ch.waiting = append(t.ch.waiting, t)
	return t
}

func (t *target) moveToFront() {
	if i := slices.Index(t.ch.waiting, t); i > 0 {
		t.ch.waiting = slices.Insert(slices.Delete(t.ch.waiting, i, i+1), 0, t)
	}
}

// abandon cancels t, unless it is the next owner of a close in flight.
func (m *Machine) abandon(t *target) {
	p := t.part
	if t.gone || p.phase == inHandoff && p.ownership.nextOwner == t {
		return
	}
	t.gone = true
	if p.state.merging == t {
		p.state.merging = nil
	}
	p.state.answers = slices.DeleteFunc(p.state.answers, func(a *target) bool { return a == t })
	if i := slices.Index(p.ownership.targets, t); i >= 0 {
		p.ownership.targets = slices.Delete(p.ownership.targets, i, i+1)
		if t.begun {
			p.ownership.left = append(p.ownership.left, leftCopy{t.ch.peer, t.initialSync, t.stage == complete})
			if t.inSync || t.stage == ending { // it may be complete there
				m.leaveOut(p)
			}
		}
		m.confirm(p)
		m.replan = true
	}
}

// startPacking starts packing t's counters. The journal must be on before the keys are listed, so that no change is missed.
func (m *Machine) startPacking(t *target) {
	t.stage = sending
	p := t.part
	if p.phase == owning {
		m.journal(p)
		m.drain(p)
	}
	t.keys = m.c.Table.Keys(p.number, nil)
	switch {
	case !p.isOwned():
		t.drained = p.state.mark.Seq
	case p.phase == inHandoff:
		t.drained = p.ownership.seq
	}
	// A completed initial sync has at least the state at its beginning.
	t.packed, t.acked = t.drained, t.drained
}

// makeNextOwner makes t the next owner. A replica may lack changes of unreplicated requests, which are not journaled, so every
// counter is sent again.
func (m *Machine) makeNextOwner(t *target) {
	t.nextOwner = true
	if t.stage == waiting {
		t.moveToFront()
		return
	}
	m.journal(t.part)
	m.drain(t.part)
	t.repeats = len(t.pending) > 0
	t.pending = m.c.Table.Keys(t.part.number, t.pending)
	m.queueChanges(t)
	m.queueClose(t)
}

// queueChanges adds t to its channel's list of changes.
func (m *Machine) queueChanges(t *target) {
	if !t.queued && len(t.pending) > 0 {
		t.queued = true
		t.ch.changed = append(t.ch.changed, t)
	}
}

// queueClose queues t for a close if it is the next owner and has all known changes.
func (m *Machine) queueClose(t *target) {
	if t.nextOwner && t.stage == complete && t.inFlight == 0 && len(t.pending) == 0 && !slices.Contains(t.ch.closes, t) {
		t.ch.closes = append(t.ch.closes, t)
	}
}

// takenPart processes the peer's acceptance of part.
func (m *Machine) takenPart(t *target, part *message.Part) {
	p := t.part
	switch part.Kind {
	case message.Close:
		m.handoffAccepted(p, t)
		return
	case message.Merge:
		// Receipts may arrive in another order than the parts were sent.
		if t.ended = t.ended || part.End; t.ended && t.inFlight == 0 {
			m.stats.Merged++ // the owner has all of it
			m.dropState(p)
			m.routes++
		}
		return
	case message.Answer:
		return
	}
	t.acked = max(t.acked, part.Seq)
	if part.End {
		t.stage = complete
		m.replan = true
	}
	if t.stage == complete {
		m.confirm(p)
		m.queueClose(t)
		m.replan = m.replan || p.ownership.surplus
	}
}

// rejectedPart processes the peer's rejection of part.
func (m *Machine) rejectedPart(t *target, part *message.Part, x message.Rejection) {
	p := t.part
	if part.Kind == message.Close {
		m.handoffRejected(p, t, x)
		return
	}
	m.skipForAWhile(p, t.ch.peer)
	m.abandon(t)
	if part.Kind == message.InitialSync {
		m.learn(p, x.Known, x.Owner)
	}
}

// skipForAWhile skips peer as a target of p for a while, since the reason of a rejection takes time to pass.
func (m *Machine) skipForAWhile(p *partition, peer message.Peer) {
	p.ownership.skipped, p.ownership.skippedUntil = peer, m.now+5*resendTimeout
}
