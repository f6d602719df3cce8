package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

const (
	// attempt is how long a founder waits for the acceptances before it gives its round up, and declining how long a process
	// whose acceptance did not come is chosen last.
	attempt   = time.Second
	declining = 3 * time.Second
	// pause is the wait between two rounds of a founder, in which the others hear that the first is over.
	pause = 300 * time.Millisecond
	// turn is how much later each process founds than the one with the next lower name.
	turn = time.Second
	// gone is the silence after which a founder is taken to be gone.
	gone = 3 * time.Second
	// maxVoid bounds the foundings that a process remembers to take no part in.
	maxVoid = 8
)

// founder is this process's own round of founding. A voter set is founded by Config.Expect processes at once: each accepts one
// founding at a time, and the set is in force when all have. So if Expect is more than half of the processes that ever start without a
// set, no two foundings come into force: they would have a process in common. docs/protocol.md has the whole argument.
type founder struct {
	set         message.Set
	peers       []message.Peer // all but this process
	accepted    []message.Peer
	began, sent int64
}

// MayFound says whether the machine may take part in founding a set, if it knows none and Config.Expect is above 0. It may once join targets
// were asked and SetView has told who was found, unless one has rejected this process. Before the first call it may not.
func (m *Machine) MayFound(now int64, may bool) {
	m.now = now
	switch {
	case !may:
		m.mayFound = never
	case m.mayFound == never:
		m.mayFound = now
	}
	m.found(now)
}

// founds reports whether this process may take part in founding a set.
func (m *Machine) founds() bool {
	return m.set.Zero() && m.record.Set.Zero() && m.c.Expect > 0 && m.mayFound != never
}

// found does what is due of founding.
func (m *Machine) found(now int64) {
	if !m.set.Zero() {
		m.founder = nil
		return
	}
	if m.founder != nil {
		m.pursueFounding(now)
		return
	}
	m.review(now)
	candidates := m.candidates(now)
	if !m.founds() || !m.record.Founding.Zero() || len(candidates) < m.c.Expect || m.isMissed(now) || len(m.unheard(now)) > 0 {
		m.enough = never
		return
	}
	if m.enough == never {
		m.enough = now
	}
	rank := slices.Index(candidates, m.c.Self)
	if now-m.enough >= int64(rank)*int64(turn) && now >= m.nextRound {
		m.beginFounding(now, slices.Delete(candidates, rank, rank+1))
	}
}

// notForThisRun notes that a process which knows a set speaks to an earlier run of this one: gossip has not told it yet that there is
// another, and will. It may be the first to reach a node that was restarted and asks nobody.
func (m *Machine) notForThisRun(now int64, e message.Envelope) {
	h, ok := e.Body.(*message.Heartbeat)
	if ok && e.To.Name == m.c.Self.Name && e.From.Name != m.c.Self.Name && !h.Set.Zero() {
		m.missedAt = now
	}
}

// isMissed reports whether others have known an earlier run of this process just now.
func (m *Machine) isMissed(now int64) bool { return m.missedAt > now-int64(memory) }

// candidates returns the processes that a set can be founded with, this one among them, by name: those that are heard, know no
// set and expect as many. None if a process is heard that knows a set: this one is to join it.
func (m *Machine) candidates(now int64) []message.Peer {
	all := []message.Peer{m.c.Self}
	for _, p := range m.peers {
		switch {
		case p.sent == never || !m.speaks(now, p):
		case !p.setless:
			return nil
		case p.expect == m.c.Expect:
			all = append(all, p.Peer)
		}
	}
	slices.SortFunc(all, func(a, b message.Peer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// unheard returns the processes that have to say first whether they know a set: that gossip does not show one any more says nothing, because
// this process may be the one that is cut off. Who founds alone needs no acceptance that could be lacking, so it waits for as long
// as gossip shows them.
func (m *Machine) unheard(now int64) (peers []message.Peer) {
	waited := now-m.mayFound >= int64(m.c.FoundAfter)
	for _, p := range m.peers {
		if p.sent == never && (!waited || p.inView && m.c.Expect == 1) {
			peers = append(peers, p.Peer)
		}
	}
	return peers
}

// beginFounding begins a round with the first of the others.
func (m *Machine) beginFounding(now int64, others []message.Peer) {
	late := func(p message.Peer) int {
		if i, ok := m.find(p); ok && m.peers[i].declined > now-int64(declining) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(others, func(a, b message.Peer) int { return cmp.Compare(late(a), late(b)) })
	others = others[:m.c.Expect-1]
	names := []string{m.c.Self.Name}
	for _, p := range others {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	m.founder = &founder{
		set: message.Set{ID: m.freshID(), Version: 1, Members: names}, peers: others, began: now, sent: never,
	}
	m.pursueFounding(now)
}

// pursueFounding asks for the acceptances that lack, makes the set this process's own when all have come, and gives the round
// up when one does not come.
func (m *Machine) pursueFounding(now int64) {
	f := m.founder
	if len(f.accepted) == len(f.peers) {
		m.adopt(now, f.set)
		return
	}
	if now-f.began >= int64(attempt) {
		m.giveUp(now)
		return
	}
	if f.sent > now-int64(resend) {
		return
	}
	f.sent = now
	for _, p := range f.lacking() {
		m.send(p, &message.Accept{Set: f.set, Ballot: m.foundingBallot()})
	}
}

func (f *founder) lacking() []message.Peer {
	return slices.DeleteFunc(slices.Clone(f.peers), func(p message.Peer) bool { return slices.Contains(f.accepted, p) })
}

func (m *Machine) foundingBallot() message.Ballot {
	return message.Ballot{Round: m.foundingRound, Boot: m.c.Self.Boot}
}

// giveUp ends this process's round, in which the set will not come into force. Heartbeats say so.
func (m *Machine) giveUp(now int64) {
	for _, p := range m.founder.lacking() {
		if i, ok := m.find(p); ok {
			m.peers[i].declined = now
		}
	}
	m.founder, m.pulse = nil, nil
	m.foundingRound++
	m.nextRound, m.enough = now+int64(pause), never // of two founders the lower name comes first now
	m.beatAll(now)
}

// foundingAccepted takes an answer to this process's own proposal.
func (m *Machine) foundingAccepted(now int64, from *peer, b *message.Accepted) {
	f := m.founder
	if f == nil || b.Ballot != m.foundingBallot() || !slices.Contains(f.peers, from.Peer) || slices.Contains(f.accepted, from.Peer) {
		return
	}
	if !b.OK {
		from.declined = now
		m.giveUp(now)
		return
	}
	f.accepted = append(f.accepted, from.Peer)
	m.found(now)
}

// acceptFounding answers a founder's proposal. It says yes when the disk has it.
func (m *Machine) acceptFounding(now int64, from *peer, b *message.Accept) {
	if b.Ballot.Round < from.founding {
		return // given up meanwhile
	}
	ok := founderOf(b.Set.ID) == from.Boot && b.Ballot.Boot == from.Boot && m.acceptable(now, b.Set)
	if ok {
		r := m.record
		if r.Founding.Zero() || r.Round < b.Ballot.Round {
			r.Founding, r.Round = b.Set, b.Ballot.Round
		}
		if !m.onDisk(now, r) {
			return // the founder asks again
		}
		ok = r.Round == b.Ballot.Round
	}
	m.send(from.Peer, &message.Accepted{Version: b.Set.Version, Ballot: b.Ballot, OK: ok})
}

// acceptable reports whether this process may accept s: it has accepted no other founder's, and hears all of s, none of whom knows a set.
func (m *Machine) acceptable(now int64, s message.Set) bool {
	held := m.record.Founding
	if !m.founds() || m.founder != nil || !sound(s) || len(s.Members) != m.c.Expect || m.isVoid(s.ID) || !held.Zero() && held.ID != s.ID {
		return false
	}
	candidates := m.candidates(now)
	for _, name := range s.Members {
		if !slices.ContainsFunc(candidates, func(p message.Peer) bool { return p.Name == name }) {
			return false
		}
	}
	return s.Has(m.c.Self.Name)
}

// Forget takes name out of the set without asking a majority, by hand.
// It fails when there is no set, when name is not in it, is this process, or lives.
func (m *Machine) Forget(now int64, name string) error {
	m.now = now
	switch p := m.latest(name); {
	case m.set.Zero():
		return fmt.Errorf("quorum: forget %q: this node knows no voter set yet; ask a node that does", name)
	case name == m.c.Self.Name:
		return fmt.Errorf("quorum: forget %q: it is this node; stop it, or ask another node", name)
	case !m.set.Has(name):
		return fmt.Errorf("quorum: forget %q: it is not counted; counted are %s", name, strings.Join(m.set.Members, ", "))
	case p != nil && m.speaks(now, p):
		return fmt.Errorf("quorum: forget %q: it lives, heard from %v ago; stop it first", name, time.Duration(now-p.heard))
	case len(m.set.Members) == 1:
		return fmt.Errorf("quorum: forget %q: nobody else is counted; start it again, or start all other nodes without their snapshots", name)
	}
	m.byHand = without(m.set, name)
	m.obey(now)
	return nil
}

// Bootstrap makes this process found a voter set of its own, by hand. It fails where it has quorum.
func (m *Machine) Bootstrap(now int64) error {
	m.now = now
	if now < m.until {
		return errors.New("quorum: bootstrap: this node has quorum in its voter set")
	}
	if m.set.ID == m.freshID() || m.record.Set.ID == m.freshID() {
		m.founded++
	}
	m.founder = nil
	m.byHand = message.Set{ID: m.freshID(), Version: 1, Members: []string{m.c.Self.Name}}
	m.obey(now)
	return nil
}

// obey makes the set that was made by hand this process's, once the disk has it.
func (m *Machine) obey(now int64) {
	s := m.byHand
	if s.Zero() {
		return
	}
	if s.ID == m.set.ID && s.Version <= m.set.Version {
		m.byHand = message.Set{} // another version came first
		return
	}
	if m.adopt(now, s) {
		m.byHand = message.Set{}
	}
}

// recovery gives a process that was restarted within a set its vote back. What it
// promised and accepted is lost, so it asks all other members, and takes over the
// latest of what they have: whoever proposed has noted it, and who has heard of this
// boot counts no vote of an older one. If a member does not answer, it waits until
// that would be forgotten.
type recovery struct {
	needed bool
	until  int64
	asked  int64
}

// recover asks, as long as it is needed.
func (m *Machine) recover(now int64) {
	r := &m.recovery
	if !r.needed {
		return
	}
	if now >= r.until || m.allTold() {
		r.needed = false
		return
	}
	if r.asked > now-int64(resend)-3*m.slowest()/2 {
		return
	}
	r.asked = now
	// The lowest of ballots: it is in nobody's way, and the answer tells all the same.
	b := &message.Prepare{ID: m.set.ID, Version: m.set.Version + 1, Ballot: message.Ballot{Boot: m.c.Self.Boot}}
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.told != b.Version {
			m.send(p.Peer, b)
		}
	}
}

// told takes in what a member has promised and accepted.
func (m *Machine) told(now int64, from *peer, b *message.Promise) {
	if !m.recovery.needed {
		return
	}
	a := m.instance()
	a.promise(b.Ballot)
	if follows(m.set, b.Accepted) && a.under.Compare(b.Under) < 0 {
		a.accepted, a.under = b.Accepted, b.Under
	}
	from.told = b.Version
	m.recover(now)
}

func (m *Machine) allTold() bool {
	for _, name := range m.set.Members {
		if name == m.c.Self.Name {
			continue
		}
		if p := m.latest(name); p == nil || p.told != m.set.Version+1 {
			return false
		}
	}
	return true
}

// Waiting says what a process waits for that knows no set.
type Waiting struct {
	// May: it may take part in founding a set with Expect processes; see Config.Expect and MayFound.
	May    bool
	Expect int
	// Have are the names of those that a set can be founded with, this process among them. Others expect another number: so many.
	Have   []string
	Others []Expecting
	// Know are the processes that are heard and know a set in which they have no quorum. Silent are those that gossip shows and that are not
	// heard.
	Know, Silent []message.Peer
	// Missed: others speak to an earlier run of this process.
	Missed bool
	// Accepted is the founding that it has accepted and that is not in force.
	Accepted message.Set
}

// Expecting is a process that would found a set with another number of processes.
type Expecting struct {
	Name   string
	Expect int
}

// Waiting returns what this process waits for as long as it knows no set.
func (m *Machine) Waiting(now int64) Waiting {
	w := Waiting{May: m.founds(), Expect: m.c.Expect, Missed: m.isMissed(now), Accepted: m.record.Founding, Have: []string{m.c.Self.Name}}
	for _, p := range m.peers {
		switch {
		case p.sent == never || !m.speaks(now, p):
			if p.inView {
				w.Silent = append(w.Silent, p.Peer)
			}
		case !p.setless:
			w.Know = append(w.Know, p.Peer)
		case p.expect == m.c.Expect:
			w.Have = append(w.Have, p.Name)
		default:
			w.Others = append(w.Others, Expecting{p.Name, p.expect})
		}
	}
	slices.Sort(w.Have)
	return w
}
