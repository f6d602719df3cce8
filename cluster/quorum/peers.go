package quorum

import (
	"slices"
	"strings"

	"github.com/sluice-project/sluice/internal/message"
)

// peer is what this process knows of another.
type peer struct {
	message.Peer
	inView bool
	since  int64 // when it was entered, or last heard from
	heard  int64 // when it was last heard from
	first  int64 // when it was first heard from, if it was
	beaten int64 // when a heartbeat was last sent to it

	// introduced: a full list of its holdings has been taken in.
	introduced bool
	// saw is the newest of its pending grants that has been taken in.
	saw uint64

	// What its last heartbeat said; sent is never if there was none.
	sent      int64
	setless   bool
	clusterID string
	wish      message.Wish
	seen      uint64
	isolated  bool
	lease     int64 // Config.Quorum before the first
	// noQuorum, expect, founding and void are as in message.Heartbeat; lacking is since when it has said noQuorum in this process's set.
	noQuorum bool
	lacking  int64
	expect   int
	founding uint64
	void     []string
	// declined is when it last did not accept this process's founding.
	declined int64

	// acked is the last acknowledgement given to it, nil if there was none.
	acked *message.Ack

	// answered is when the newest heartbeat was sent that it answered, reading when the newest was that it acknowledged, and until is
	// until when its acknowledgements last.
	answered, reading, until int64
	rtt                      Estimate
	// here and there are the differences of the clocks, see clocks.go.
	here, there least
	// told is the version up for agreement when it last told what it has accepted.
	told uint64
}

// SetView tells who gossip shows, this process left out, in any state.
func (m *Machine) SetView(now int64, peers []message.Peer) {
	m.now = now
	for _, p := range m.peers {
		if p.inView && !slices.Contains(peers, p.Peer) {
			p.inView = false
		}
	}
	for _, id := range peers {
		if p := m.enter(id); p != nil && !p.inView {
			p.inView = true
			m.beat(now, p)
		}
	}
}

// Lives reports whether p was heard from within Dead and is not left out, see lives, or is this process.
func (m *Machine) Lives(now int64, p message.Peer) bool {
	if p == m.c.Self {
		return true
	}
	i, ok := m.find(p)
	return ok && m.lives(now, m.peers[i])
}

// Living returns the peers that live, sorted.
func (m *Machine) Living(now int64) []message.Peer {
	var living []message.Peer
	for _, p := range m.peers {
		if m.lives(now, p) {
			living = append(living, p.Peer)
		}
	}
	return living
}

// Listens reports whether messages to p are of use: it was heard from within Dead, and is not isolated. It may have no quorum.
func (m *Machine) Listens(now int64, p message.Peer) bool {
	i, ok := m.find(p)
	return ok && m.listens(now, m.peers[i])
}

// NoneDecides reports whether no voter has quorum, as far as this process, in its grace, can know: a majority, itself included, has said
// so in its last heartbeats, or a quarter of the grace has passed in which none with quorum was heard.
func (m *Machine) NoneDecides(now int64) bool {
	without := 1
	for _, p := range m.peers {
		switch {
		case !m.set.Has(p.Name) || p.sent == never || !m.speaks(now, p):
		case p.setless || p.noQuorum:
			without++
		default:
			return false
		}
	}
	return without >= m.set.Majority() || now >= m.graceUntil-3*int64(m.c.Grace)/4
}

// Outvoted returns the peers that listen and do not live, because they lack quorum where this process has it.
func (m *Machine) Outvoted(now int64) []message.Peer {
	var outvoted []message.Peer
	for _, p := range m.peers {
		if m.listens(now, p) && m.outvoted(now, p) {
			outvoted = append(outvoted, p.Peer)
		}
	}
	return outvoted
}

// Shares reports whether p's last heartbeat has shown a set of this process's cluster ID.
func (m *Machine) Shares(p message.Peer) bool {
	i, ok := m.find(p)
	return ok && m.peers[i].clusterID == m.set.ID
}

// Heard returns when p was last heard from, math.MinInt64 if never, or if it is isolated or lacks quorum where this process has it. This
// process hears itself all the time.
func (m *Machine) Heard(p message.Peer) int64 {
	if p == m.c.Self {
		return m.now
	}
	if i, ok := m.find(p); ok && !m.peers[i].isolated && !m.outvoted(m.now, m.peers[i]) {
		return m.peers[i].heard
	}
	return never
}

// Wishes returns what p's last heartbeat wished.
func (m *Machine) Wishes(p message.Peer) message.Wish {
	if p == m.c.Self {
		return m.wish
	}
	if i, ok := m.find(p); ok {
		return m.peers[i].wish
	}
	return message.Stay
}

// lives reports whether p was heard from just now, is not isolated, and is not outvoted: then it can decide, or may in a moment.
func (m *Machine) lives(now int64, p *peer) bool { return m.listens(now, p) && !m.outvoted(now, p) }

// listens reports whether p was heard from just now. One that says that it is isolated can be told
// nothing, and is no good to anybody until it hears again.
func (m *Machine) listens(now int64, p *peer) bool { return !p.isolated && m.speaks(now, p) }

// outvoted reports whether p has lacked quorum for a third of its lease in the set in which this process has had it for as long: most
// voters do not reach p. What it owns nobody can decide, so it must not stand in the way of a takeover. Where both lacked quorum just now,
// p may have it again and not have said so yet. One that is not introduced lacks it because this process does not acknowledge it.
func (m *Machine) outvoted(now int64, p *peer) bool {
	long := p.lease / 3
	return p.introduced && p.noQuorum && p.clusterID == m.set.ID && p.lacking < now-long && m.lackedAt < now-long && now < m.until
}

// speaks reports whether p was heard from just now.
func (m *Machine) speaks(now int64, p *peer) bool { return p.heard >= now-m.silence(p) }

// wanted reports whether heartbeats go to p.
func (m *Machine) wanted(p *peer) bool { return p.inView || m.set.Has(p.Name) }

// hear notes that a message of from came in. It returns nil if the message must be
// ignored.
func (m *Machine) hear(now int64, from message.Peer) *peer {
	m.now = now
	p := m.enter(from)
	if p == nil {
		return nil
	}
	if p.heard == never {
		p.first = now
		m.supersede(p)
	}
	p.since, p.heard, m.heard = now, now, now
	if i, ok := slices.BinarySearch(m.set.Members, p.Name); ok {
		m.missed[i] = now
	}
	return p
}

// enter returns what is known of id, from now on something. It returns nil for what
// cannot be another process: no name or boot, this process's name, or an older boot
// of a name than was just heard from. An older one that speaks when the newer is silent
// has started since, with a clock that was set back.
func (m *Machine) enter(id message.Peer) *peer {
	if id.Name == "" || id.Boot == "" || id.Name == m.c.Self.Name {
		return nil
	}
	i, ok := m.find(id)
	if ok {
		return m.peers[i]
	}
	for _, p := range m.peers[i:] {
		if p.Name != id.Name {
			break
		}
		if m.speaks(m.now, p) {
			return nil
		}
	}
	p := &peer{
		Peer: id, since: m.now, heard: never, beaten: never, sent: never, answered: never, reading: never, until: never, lease: int64(m.c.Timeout), declined: never,
	}
	p.here, p.there = newLeast(), newLeast()
	m.peers = slices.Insert(m.peers, i, p)
	return p
}

// supersede is for p's first message: other boots of its name that were heard before, and
// older ones, are gone.
func (m *Machine) supersede(p *peer) {
	member := m.set.Has(p.Name)
	m.peers = slices.DeleteFunc(m.peers, func(q *peer) bool {
		if q == p || q.Name != p.Name || q.Boot > p.Boot && q.heard == never {
			return false
		}
		if member {
			// Acknowledgements are of names: the new boot's grace covers the old one's.
			p.reading, p.until = max(p.reading, q.reading), max(p.until, q.until)
		}
		return true
	})
	if member {
		// The vote of an older boot is forgotten there, so it must not be counted here.
		m.proposal = nil
	}
}

// dropOutsiders forgets who is neither in the view nor was heard from lately.
func (m *Machine) dropOutsiders(now int64) {
	m.peers = slices.DeleteFunc(m.peers, func(p *peer) bool {
		return !p.inView && p.since < now-int64(memory)
	})
}

// find returns p's place in peers, or where it would be.
func (m *Machine) find(p message.Peer) (int, bool) {
	return slices.BinarySearchFunc(m.peers, p, func(q *peer, p message.Peer) int {
		if c := strings.Compare(q.Name, p.Name); c != 0 {
			return c
		}
		return strings.Compare(q.Boot, p.Boot)
	})
}

// latest returns the boot of name that was heard from, else the newest that the view
// shows, nil if none is known.
func (m *Machine) latest(name string) *peer {
	var latest *peer
	i, _ := m.find(message.Peer{Name: name})
	for _, p := range m.peers[i:] {
		if p.Name != name {
			break
		}
		if latest == nil || latest.heard == never || p.heard != never {
			latest = p
		}
	}
	return latest
}
