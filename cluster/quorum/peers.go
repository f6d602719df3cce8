package quorum

import (
	"slices"

	"github.com/sluicecluster/sluice/internal/message"
)

// peer is the state of another process.
type peer struct {
	message.Peer
	inView        bool
	since         int64 // when it was added or last heard
	heard         int64 // when it was last heard
	first         int64 // when it was first heard, if ever
	heartbeatSent int64 // when the last heartbeat was sent to it

	// introduced: the full list of its owned partitions has been processed.
	introduced bool
	// grantsTaken is its newest pending grant that has been processed.
	grantsTaken uint64
	// inSyncTaken is the number of its newest change of in-sync replicas that this process knows.
	inSyncTaken uint64

	// From its last heartbeat; sent is never without one.
	sent       int64
	setless    bool
	clusterID  string
	version    uint64 // of its set
	wish       message.Wish
	grantsSeen uint64
	inSync     uint64 // as in message.Heartbeat
	isolated   bool
	ackTTL     int64 // how long its acknowledgements count; Config.Timeout before the first heartbeat
	// As in message.Heartbeat. lacking is since when it has reported noQuorum in this process's set.
	noQuorum bool
	lacking  int64
	expect   int
	founding uint64
	void     []string
	// As in message.Heartbeat.
	cannotStore bool
	// pass is what it asks for in the version after this process's set; see Pass.
	pass message.Role
	// declined is when it last failed to accept this process's founding.
	declined int64

	// acked is the last acknowledgement sent to it, nil if none.
	acked *message.Ack

	// answeredSent and ackedSent are the times at which the newest answered and the newest acknowledged heartbeat were sent.
	// Its acknowledgements expire at until.
	answeredSent, ackedSent, until int64
	rtt                            Estimate
	// here and there are clock differences; see clocks.go.
	here, there windowMin
	// reportedVersion is the version for which it last reported what it has accepted.
	reportedVersion uint64
}

// SetView sets the peers in the gossip view, in any state, without this process.
func (m *Machine) SetView(now int64, peers []message.Peer) {
	m.now = now
	for _, p := range m.peers {
		if p.inView && !slices.Contains(peers, p.Peer) {
			p.inView = false
		}
	}
	for _, id := range peers {
		if p := m.addPeer(id); p != nil && !p.inView {
			p.inView = true
			m.sendHeartbeat(now, p)
		}
	}
}

// Lives reports whether p is this process, or was heard recently (see silence), is not isolated and is not outvoted.
func (m *Machine) Lives(now int64, p message.Peer) bool {
	if p == m.c.Self {
		return true
	}
	i, ok := m.find(p)
	return ok && m.lives(now, m.peers[i])
}

// Living returns the live peers, sorted.
func (m *Machine) Living(now int64) []message.Peer {
	var living []message.Peer
	for _, p := range m.peers {
		if m.lives(now, p) {
			living = append(living, p.Peer)
		}
	}
	return living
}

// Listens reports whether p takes messages: it was heard recently (see silence) and is not isolated. It may lack quorum.
func (m *Machine) Listens(now int64, p message.Peer) bool {
	i, ok := m.find(p)
	return ok && m.listens(now, m.peers[i])
}

// NoneDecides reports whether no voter has quorum, as far as this process can know in its grace: a majority including
// itself has reported no quorum, or a quarter of the grace has passed without a heartbeat of a voter that has quorum.
func (m *Machine) NoneDecides(now int64) bool {
	if m.unproven {
		return false
	}
	without := 1
	for _, p := range m.peers {
		switch {
		case !m.set.Has(p.Name) || p.sent == never || !m.heardRecently(now, p):
		case p.setless || p.noQuorum:
			without++
		default:
			return false
		}
	}
	return without >= m.set.Majority() || now >= m.graceUntil-3*int64(grace)/4
}

// Outvoted returns the peers that listen but do not count as live, because they lack quorum where this process has it.
func (m *Machine) Outvoted(now int64) []message.Peer {
	var outvoted []message.Peer
	for _, p := range m.peers {
		if m.listens(now, p) && m.outvoted(now, p) {
			outvoted = append(outvoted, p.Peer)
		}
	}
	return outvoted
}

// Shares reports whether p's last heartbeat had this process's cluster ID.
func (m *Machine) Shares(p message.Peer) bool {
	i, ok := m.find(p)
	return ok && m.peers[i].clusterID == m.set.ID
}

// Heard returns when p was last heard: now for this process, math.MinInt64 if never, or if p is isolated or outvoted.
func (m *Machine) Heard(p message.Peer) int64 {
	if p == m.c.Self {
		return m.now
	}
	if i, ok := m.find(p); ok && !m.peers[i].isolated && !m.outvoted(m.now, m.peers[i]) {
		return m.peers[i].heard
	}
	return never
}

// Wishes returns the wish of p's last heartbeat.
func (m *Machine) Wishes(p message.Peer) message.Wish {
	if p == m.c.Self {
		return m.wish
	}
	if i, ok := m.find(p); ok {
		return m.peers[i].wish
	}
	return message.Stay
}

// lives reports whether p can decide, or may be able to soon.
func (m *Machine) lives(now int64, p *peer) bool { return m.listens(now, p) && !m.outvoted(now, p) }

// listens reports whether p was heard recently and is not isolated. An isolated process takes no new state.
func (m *Machine) listens(now int64, p *peer) bool { return !p.isolated && m.heardRecently(now, p) }

// outvoted reports whether p has lacked quorum for a third of its ackTTL while this process has had it in the same set: most
// voters do not reach p, so its partitions have no decider and it must not block a takeover. If both lacked quorum
// recently, p may have regained it without having said so; if p is not introduced, it lacks quorum because this process
// does not acknowledge it.
func (m *Machine) outvoted(now int64, p *peer) bool {
	long := p.ackTTL / 3
	return p.introduced && p.noQuorum && p.clusterID == m.set.ID && p.lacking < now-long && m.lackedAt < now-long && now < m.until
}

func (m *Machine) heardRecently(now int64, p *peer) bool { return p.heard >= now-m.silence(p) }

func (m *Machine) getsHeartbeats(p *peer) bool { return p.inView || m.set.Has(p.Name) }

// noteHeard notes a message from a process. It returns nil if the message must be ignored.
func (m *Machine) noteHeard(now int64, from message.Peer) *peer {
	m.now = now
	p := m.addPeer(from)
	if p == nil {
		return nil
	}
	if p.heard == never {
		p.first = now
		m.supersede(p)
	}
	p.since, p.heard, m.heard = now, now, now
	if i, ok := slices.BinarySearch(m.set.Members, p.Name); ok {
		m.memberHeard[i] = now
	}
	return p
}

// addPeer returns the peer called id, adding it if necessary. It returns nil if id cannot be another live process: name or
// boot is empty, the name is this process's, or a newer boot of that name was heard recently. An older boot that is heard
// while the newer one is silent was started later, with a clock that was set back.
func (m *Machine) addPeer(id message.Peer) *peer {
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
		if m.heardRecently(m.now, p) {
			return nil
		}
	}
	p := &peer{
		Peer: id, since: m.now, heard: never, heartbeatSent: never, sent: never, answeredSent: never, ackedSent: never, until: never, ackTTL: int64(m.c.Timeout), declined: never,
	}
	p.here, p.there = newMin(), newMin()
	m.peers = slices.Insert(m.peers, i, p)
	return p
}

// supersede handles p's first message: it removes other boots of its name that were heard before, and older ones.
func (m *Machine) supersede(p *peer) {
	member := m.set.Has(p.Name)
	m.peers = slices.DeleteFunc(m.peers, func(q *peer) bool {
		if q == p || q.Name != p.Name || q.Boot > p.Boot && q.heard == never {
			return false
		}
		if member {
			// Acknowledgements belong to the name: the new boot's grace covers the old boot's.
			p.ackedSent, p.until = max(p.ackedSent, q.ackedSent), max(p.until, q.until)
		}
		return true
	})
	if member {
		// The new boot does not know the old boot's vote, so it must not be counted.
		m.proposal = nil
	}
}

// dropOutsiders removes peers that are neither in the view nor heard recently.
func (m *Machine) dropOutsiders(now int64) {
	m.peers = slices.DeleteFunc(m.peers, func(p *peer) bool {
		return !p.inView && p.since < now-int64(peerMemory)
	})
}

// find returns the index of p in peers, or where it would be inserted.
func (m *Machine) find(p message.Peer) (int, bool) {
	return slices.BinarySearchFunc(m.peers, p, func(q *peer, p message.Peer) int { return q.Compare(p) })
}

// latest returns the boot of name that was heard, else the newest in the view, nil if none is known.
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
