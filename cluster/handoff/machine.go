// Package handoff decides which partitions this process holds, and who has copies
// of them: epochs, initial syncs, the swap, claims and divergent copies. docs/protocol.md has the
// rules.
//
// Machine is a pure step function over a bucket.Table: it takes the time, messages and
// the view, seals and opens shards, and leaves messages to be sent. It starts no
// goroutine, and its owner calls it from one; the table may be used by others
// meanwhile. Whether the process may decide at all is cluster/quorum's.
package handoff

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sluice-project/sluice/internal/message"
)

// View is what the machine knows of members and ring. Slices are not changed by either side.
type View struct {
	// Members are all living members in any state, this process among them, sorted by name.
	Members []message.Peer
	// Owner is who should hold each partition, a place in Members or -1.
	Owner []int
	// Replica is who should have this process's copy of each partition, a place in
	// Members or -1.
	Replica []int
	// Second is who should have the second one, where two are wanted, a place in Members or -1. May be nil.
	Second []int
	// Serves has for each of Members whether it may hold partitions.
	Serves []bool
}

// Machine is the partitions' side of one process. Not safe for concurrent use, except
// for Confirmed.
type Machine struct {
	c     Config
	born  int64
	now   int64
	parts []partition
	// confirmed and terms are what Confirmed and Term return.
	confirmed, terms []atomic.Uint64

	view   View
	living map[message.Peer]bool // of view.Members
	// replan: targets may have changed. flush: look for changes at the next tick.
	replan, flush bool
	// orphans: some partition may be; renewed is what quorum.Machine.Renewed returned when they were last looked at.
	orphans   bool
	renewed   int64
	flushed   int64 // when changes were last looked for
	ticked    int64 // when Tick was last called
	patrolled int64 // when the slow round was last made

	channels     []*channel // sorted by peer
	pace         pace
	initialSyncs uint64                 // the last number of an initial sync
	keys         []key                  // working space of drain
	wanted       []message.Peer         // and of plan
	blank        *message.TransferBatch // the next one

	// What was said about holdings, here and by others.
	said      uint64
	changed   []int // partitions to be announced
	digested  int64
	listeners map[message.Peer]bool // have had a full list
	heard     map[message.Peer]*list

	// Claims and what was granted.
	claims            uint64 // the last number of a claim
	asking            []*asking
	pendingGrants     uint64
	untold            bool // something is to be made pending grants
	pendingGrantsSent map[message.Peer]sentPendingGrants
	restored          bool // others may have later snapshots, and are waited for
	clusterID         string
	lapses            uint64 // of the quorum, when they were last looked at
	several           bool   // there are other voters

	out    []message.Envelope
	routes uint64
	stats  Stats
}

// New returns a machine that holds nothing; it seals all shards of the table.
// c must be valid.
func New(c Config, now int64) *Machine {
	m := &Machine{
		c: c.withDefaults(), born: now, now: now,
		parts: make([]partition, c.Partitions), confirmed: make([]atomic.Uint64, c.Partitions), terms: make([]atomic.Uint64, c.Partitions),
		living: map[message.Peer]bool{}, listeners: map[message.Peer]bool{},
		heard: map[message.Peer]*list{}, pendingGrantsSent: map[message.Peer]sentPendingGrants{},
		restored: c.Recorded, blank: new(message.TransferBatch),
	}
	for i := range m.parts {
		m.parts[i].number = i
		m.confirmed[i].Store(math.MaxUint64)
		c.Table.Seal(i)
	}
	return m
}

// ClusterID tells which voter set's ID the restored partitions are of; empty if none. If the process is in another by now, they are divergent copies.
func (m *Machine) ClusterID(id string) { m.clusterID = id }

// SetView tells who lives and who should hold what.
func (m *Machine) SetView(now int64, v View) {
	m.now = now
	m.view = v
	clear(m.living)
	for _, p := range v.Members {
		m.living[p] = true
	}
	for p := range m.listeners {
		if !m.living[p] {
			delete(m.listeners, p)
		}
	}
	for _, ch := range m.channels {
		if !m.reachable(ch.peer) {
			m.letGo(ch)
		}
	}
	m.forgetGone()
	m.replan = true
	m.patrolled = now - patrol // what is lost is claimed at the next tick
	m.routes++
}

// Step takes a message; types that are not its own are ignored, and so is what was not
// sent to this process or comes from another cluster ID.
func (m *Machine) Step(now int64, e message.Envelope) {
	m.now = now
	m.joinClusterID()
	m.lapse()
	if e.To != m.c.Self || e.ClusterID != m.clusterID || m.clusterID == "" {
		return
	}
	switch b := e.Body.(type) {
	case *message.Holdings:
		m.takeHoldings(e.From, b)
	case *message.PendingGrants:
		m.takePendingGrants(e.From, b)
	case *message.Claim:
		m.takeClaim(e.From, b)
	case *message.Grant:
		m.takeGrant(e.From, b)
	case *message.Fetch:
		m.takeFetch(e.From, b)
	case *message.TransferBatch:
		m.takeTransferBatch(e.From, b)
	case *message.AcceptLoss:
		m.acceptLoss()
	case *message.Receipt:
		m.takeReceipt(e.From, b)
	}
	m.publish() // before anybody is acknowledged again
}

// patrol is the time between two looks at everything that changes slowly.
const patrol = int64(100e6)

// Tick does what is due at now. Call it after every step and view, every 20 ms while something goes on, and else every 100 ms.
func (m *Machine) Tick(now int64) {
	m.now = now
	m.joinClusterID()
	if m.clusterID == "" {
		return
	}
	m.lapse()
	if m.ticked != 0 && now-m.ticked > 3*patrol {
		// This process was stopped: receipts may wait to be taken, and nobody has stalled.
		for _, ch := range m.channels {
			ch.progress = now
		}
	}
	m.ticked = now
	m.countVoters()
	slow := now-m.patrolled >= patrol
	if slow {
		m.patrolled = now
		m.lookAround()
	}
	if m.replan {
		m.replan = false
		for i := range m.parts {
			m.plan(&m.parts[i])
		}
	}
	if m.flush || now-m.flushed >= int64(m.c.Flush) {
		m.flush, m.flushed = false, now
		m.drainAll()
	}
	m.adopt()
	m.claimDue(slow)
	m.publish()
	m.tellPendingGrants()
	m.inTurn(func(ch *channel) {
		m.resend(ch)
		m.pump(ch)
	})
	m.tellHoldings()
}

// Flush makes the next Tick send changes at once: a check waits for them.
func (m *Machine) Flush() { m.flush = true }

// Take returns the messages to be sent since the last call.
func (m *Machine) Take() []message.Envelope {
	out := m.out
	m.out = nil
	return out
}

// joinClusterID drops everything that belongs to a set that was dissolved. What was held, and complete copies of it,
// become divergent copies, to be brought to the owners of the new set.
func (m *Machine) joinClusterID() {
	set := m.c.Quorum.Set()
	if set.ID == m.clusterID {
		return
	}
	first := m.clusterID == ""
	m.clusterID = set.ID
	if first {
		return
	}
	for i := range m.parts {
		p := &m.parts[i]
		if p.isOwned() {
			m.terms[i].Add(1)
			m.keep(p, divergent)
		}
		p.known, p.claim, p.rejected, p.promised, p.told = knowledge{}, nil, 0, message.Epoch{}, 0
		none := message.Epoch{}
		p.owned, p.formerly, p.own, p.before, p.granted = none, none, none, none, nil
		m.uproot(p)
	}
	for _, ch := range m.channels {
		m.letGo(ch)
	}
	m.asking = nil
	clear(m.heard)
	clear(m.listeners)
	m.routes++
}

// lookAround notices what changes without a message.
func (m *Machine) lookAround() {
	m.tendLosses()
	for _, ch := range m.channels {
		unfit := m.stalled(ch) || m.c.Quorum.Wishes(ch.peer) == message.Leave || !m.reachable(ch.peer)
		if unfit != ch.unfit {
			ch.unfit = unfit
			m.replan = true
			if unfit {
				m.letGo(ch)
			}
		}
	}
	for i := range m.parts {
		p := &m.parts[i]
		h := &p.hold
		if h.shunned != (message.Peer{}) && m.now >= h.shunnedUntil {
			h.shunned = message.Peer{}
			m.replan = true
		}
		if h.later && m.now-h.since >= int64(m.c.Digest) {
			h.later = false
			for _, t := range h.targets {
				m.offer(t)
			}
		}
		m.mergeDivergent(p)
		m.dropLeftover(p)
	}
}

// send leaves a message in the outbox.
func (m *Machine) send(to message.Peer, b message.Body) {
	m.out = append(m.out, message.Envelope{From: m.c.Self, To: to, ClusterID: m.clusterID, Body: b})
}

// others calls f with every living member but this process.
func (m *Machine) others(f func(message.Peer)) {
	for _, p := range m.view.Members {
		if p != m.c.Self {
			f(p)
		}
	}
}

// serves reports whether this process may hold partitions, as far as its view says.
func (m *Machine) serves() bool {
	i := slices.Index(m.view.Members, m.c.Self)
	return i < 0 || i >= len(m.view.Serves) || m.view.Serves[i]
}

func (m *Machine) lives(p message.Peer) bool { return m.living[p] }

// reachable reports whether p can have counters sent: it is in the view, or a voter that is heard and of which the view has no
// other run.
func (m *Machine) reachable(p message.Peer) bool {
	return m.lives(p) || m.c.Quorum.Set().Has(p.Name) && m.c.Quorum.Lives(m.now, p) &&
		!slices.ContainsFunc(m.view.Members, func(q message.Peer) bool { return q.Name == p.Name })
}

// unseen calls f with every member of the set that is heard and not in the view.
func (m *Machine) unseen(f func(message.Peer)) {
	for _, p := range m.c.Quorum.Living(m.now) {
		if m.c.Quorum.Set().Has(p.Name) && !m.lives(p) {
			f(p)
		}
	}
}

// asked calls f with all that are to be asked for a claim: the other members, and who is heard and not in the view, as a voter or one
// until of late. Of these, the ones that lack quorum need not grant it, and may have the best state.
func (m *Machine) asked(f func(message.Peer)) {
	m.others(f)
	m.unseen(f)
	for _, p := range m.c.Quorum.Outvoted(m.now) {
		if m.concerned(p) && !m.lives(p) {
			f(p)
		}
	}
}

// may reports whether this process has quorum to decide.
func (m *Machine) may() bool { return m.now < m.c.Quorum.QuorumUntil() }

// at returns the member at place i of the view, or none.
func (m *Machine) at(i int) message.Peer {
	if i < 0 {
		return message.Peer{}
	}
	return m.view.Members[i]
}

// owner returns who should hold p by the ring; none before the first view.
func (m *Machine) owner(p *partition) message.Peer {
	if m.view.Owner == nil {
		return message.Peer{}
	}
	return m.at(m.view.Owner[p.number])
}

func comparePeers(a, b message.Peer) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return strings.Compare(a.Boot, b.Boot)
}

// channel returns the channel to p, made if need be.
func (m *Machine) channel(p message.Peer) *channel {
	i, ok := slices.BinarySearchFunc(m.channels, p, func(ch *channel, p message.Peer) int { return comparePeers(ch.peer, p) })
	if !ok {
		m.channels = slices.Insert(m.channels, i, &channel{peer: p, notServing: never})
	}
	return m.channels[i]
}
