package handoff

import (
	"fmt"
	"slices"

	"github.com/sluicecluster/sluice/internal/message"
)

// phase is the relation of this process to one partition. A claim is tracked separately; see claimStage.
type phase uint8

const (
	// absent: no counters of the partition are here.
	absent phase = iota
	// syncing: the counters are incomplete, from an initial sync or a claim's fetch.
	syncing
	// replica: complete counters, which the owner may keep up to date.
	replica
	// divergent: a complete state with decisions made here that may be in no other history. It is merged into the owner's.
	divergent
	// owning: this process decides; its shard is open.
	owning
	// inHandoff: this process was the owner, and a close to the next owner is in flight (the end of a handoff).
	inHandoff

	phases = iota
)

func (p phase) String() string {
	return [...]string{"absent", "syncing", "replica", "divergent", "owning", "in handoff"}[p]
}

// transitions are all changes of phase with their causes; docs/internals/design.md shows them.
var transitions = []struct {
	from, to phase
	cause    string
}{
	{absent, syncing, "the first part of an initial sync arrives, or of the state that a takeover fetches"},
	{absent, replica, "a snapshot is restored, or a fetched state replaces the local one"},
	{absent, divergent, "a snapshot of an owner is restored"},
	{absent, owning, "a takeover completes and no process has a state"},
	{syncing, replica, "the last part has arrived and the checksum matches"},
	{syncing, absent, "the initial sync restarts, the owner drops it, its counters or checksum are wrong, or the voter set is dissolved"},
	{syncing, owning, "a takeover completes and no process has a complete state"},
	{replica, absent, "the owner or this node drops it, a new initial sync begins, or its counters or checksum are wrong"},
	{replica, divergent, "the partition got an owner without these counters, or the voter set is dissolved"},
	{replica, owning, "a close is accepted, or a takeover completes"},
	{divergent, replica, "the owner has all of these decisions"},
	{divergent, absent, "the owner has merged it, a new initial sync begins, or its counters or checksum are wrong"},
	{divergent, owning, "a close is accepted, or a takeover completes"},
	{owning, inHandoff, "the next owner has all counters and the close is sent"},
	{owning, divergent, "a higher epoch is known, quorum has lapsed, or the voter set is dissolved"},
	{inHandoff, replica, "the next owner has accepted the close, or a later handoff is known"},
	{inHandoff, owning, "the next owner has rejected the close"},
	{inHandoff, divergent, "a takeover by another process is known, quorum has lapsed, or the voter set is dissolved"},
}

var allowed = func() (a [phases][phases]bool) {
	for _, t := range transitions {
		a[t.from][t.to] = true
	}
	return a
}()

// enter changes the phase of p along a transition, or keeps it; anything else panics.
func (p *partition) enter(to phase) {
	if p.phase != to && !allowed[p.phase][to] {
		panic(fmt.Sprintf("handoff: partition %d: %v to %v is no transition", p.number, p.phase, to))
	}
	p.phase = to
}

// isOwned reports whether this process owns p, or did until it sent a close.
func (p *partition) isOwned() bool { return p.phase >= owning }

// completeness returns how complete p's counters are here.
func (p *partition) completeness() message.Completeness {
	switch p.phase {
	case absent:
		return message.None
	case syncing:
		return message.Partial
	}
	return message.Complete
}

// State describes one partition at this process, for snapshots and tools.
type State struct {
	Partition   int
	Mark, Start message.Mark
	// Owned: the process owns it, or did when it last had decisions made here.
	Owned    bool
	Complete bool
	// InitialSync is the number of the initial sync of a replica. While it and the mark's epoch are unchanged, counters are
	// added to the shard and none is dropped.
	InitialSync uint64
	// LostOf is the epoch whose counters are lost, since LostSince; zero if none.
	LostOf    message.Epoch
	LostSince int64
	// LastOwned is the highest epoch at which a process is known to have owned it, also where it is
	// absent; zero if none.
	LastOwned message.Epoch
}

// Follows reports whether s is a later point of the same state as before: whatever was read from the shard in between
// contains all of before.
func (s State) Follows(before State) bool {
	return s.Partition == before.Partition && s.Mark.Epoch == before.Mark.Epoch && s.InitialSync == before.InitialSync
}

// State returns the state of partition i. ok is false if it is absent.
func (m *Machine) State(i int) (s State, ok bool) {
	p := &m.parts[i]
	if p.isOwned() {
		return State{Partition: i, Mark: m.markOf(p), Start: p.ownership.start, Owned: true, Complete: true,
			LostOf: p.ownership.loss.last, LostSince: p.ownership.loss.since, LastOwned: p.lastOwned}, true
	}
	x := &p.state
	return State{
		Partition: i, Mark: x.mark, Start: x.start, Owned: p.phase == divergent, Complete: p.completeness() == message.Complete, InitialSync: x.initialSync,
		LostOf: x.loss.last, LostSince: x.loss.since, LastOwned: p.lastOwned,
	}, p.phase != absent
}

// States appends all states to list.
func (m *Machine) States(list []State) []State {
	for i := range m.parts {
		if s, ok := m.State(i); ok {
			list = append(list, s)
		}
	}
	return list
}

// Restore declares that shard p has a complete state as of mark, loaded from a snapshot; held says whether the process
// owned p then. Call it before the first SetView.
func (m *Machine) Restore(p int, mark, start message.Mark, held bool) {
	x := &m.parts[p]
	as := replica
	if held {
		as = divergent
	}
	x.enter(as)
	x.state = state{mark: mark, start: start}
	x.known = knowledge{epoch: mark.Epoch, status: ownerReleased}
	x.noteOwned(mark.Epoch)
	m.restored = true
}

// RestoreLost declares that the restored state of p lacks the counters of an epoch, since the given time.
func (m *Machine) RestoreLost(p int, of message.Epoch, since int64) {
	if of != (message.Epoch{}) {
		m.parts[p].state.loss = loss{last: of, lastCertain: of, since: since}
	}
}

// gathered reports whether the wait for processes with later snapshots is over: all voters have been present at once, or
// gatherTimeout has passed.
func (m *Machine) gathered() bool {
	if !m.restored {
		return true
	}
	if m.now-m.started >= gatherTimeout {
		m.restored = false
		return true
	}
	for _, name := range m.c.Quorum.Set().Members {
		if !slices.ContainsFunc(m.view.Members, func(p message.Peer) bool { return p.Name == name }) {
			return false
		}
	}
	m.restored = false // a voter lost from now on has crashed
	return true
}
