package handoff

import (
	"slices"

	"github.com/sluice-project/sluice/internal/message"
)

// State is what this process has of one partition, for snapshots and tools.
type State struct {
	Partition   int
	Mark, Start message.Mark
	// Held: the process holds it, or did when it was last decided here.
	Held     bool
	Complete bool
	// Fill numbers the filling that a copy came with. While it and the mark's epoch stay the
	// same, counters are put into the shard and none of them is forgotten.
	Fill uint64
	// LostOf is the epoch whose counters it lacks, since when they are lost; zero if none are.
	LostOf    message.Epoch
	LostSince int64
}

// Follows reports whether s is the same state as before, perhaps further on: what was read of
// the shard between the two is all that before had.
func (s State) Follows(before State) bool {
	return s.Partition == before.Partition && s.Mark.Epoch == before.Mark.Epoch && s.Fill == before.Fill
}

// State returns what this process has of partition i, if it has anything.
func (m *Machine) State(i int) (s State, ok bool) {
	p := &m.parts[i]
	if p.isOwned() {
		return State{Partition: i, Mark: m.markOf(p), Start: p.hold.start, Held: true, Complete: true,
			LostOf: p.hold.loss.of, LostSince: p.hold.loss.since}, true
	}
	x := &p.state
	return State{
		Partition: i, Mark: x.mark, Start: x.start, Held: p.phase == divergent, Complete: p.completeness() == message.Complete, Fill: x.fill,
		LostOf: x.loss.of, LostSince: x.loss.since,
	}, p.phase != absent
}

// States appends all states that this process has to list.
func (m *Machine) States(list []State) []State {
	for i := range m.parts {
		if s, ok := m.State(i); ok {
			list = append(list, s)
		}
	}
	return list
}

// Restore tells that shard p of the table has a complete state as of mark, loaded from
// a snapshot; held says that the process held p then. Call it before the first SetView.
func (m *Machine) Restore(p int, mark, start message.Mark, held bool) {
	x := &m.parts[p]
	as := replica
	if held {
		as = divergent
	}
	x.enter(as)
	x.state = state{mark: mark, start: start}
	x.known = knowledge{epoch: mark.Epoch, basis: released}
	x.noteOwned(mark.Epoch)
	m.restored = true
}

// RestoreLost tells that the state of p that was restored lacks the counters of an epoch, since a time.
func (m *Machine) RestoreLost(p int, of message.Epoch, since int64) {
	if of != (message.Epoch{}) {
		m.parts[p].state.loss = loss{of: of, sure: of, since: since}
	}
}

// gathered reports whether nobody who may have a later snapshot is waited for any more: all
// of the set have been there at once, or time has passed.
func (m *Machine) gathered() bool {
	if !m.restored {
		return true
	}
	if m.now-m.born >= int64(m.c.Gather) {
		m.restored = false
		return true
	}
	for _, name := range m.c.Quorum.Set().Members {
		if !slices.ContainsFunc(m.view.Members, func(p message.Peer) bool { return p.Name == name }) {
			return false
		}
	}
	m.restored = false // who goes from now on has crashed
	return true
}
