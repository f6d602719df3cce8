package handoff

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/sluicecluster/sluice/internal/message"
)

// View is the machine's input from membership and ring. Neither side may modify the slices.
type View struct {
	// Members are all live members in any state, this process included, sorted by name.
	Members []message.Peer
	// Owner is the assigned owner of each partition, an index into Members or -1.
	Owner []int
	// Replica is the replica node of each partition if this process owns it, an index into Members or -1.
	Replica []int
	// Second is the second replica node, where two are wanted; like Replica. May be nil.
	Second []int
	// Serves has for each member whether it may own partitions.
	Serves []bool
}

// Machine is the partition ownership state of one process. Not safe for concurrent use, except for Confirmed and LocalTerm.
type Machine struct {
	c       Config
	started int64
	now     int64
	parts   []partition
	// confirmed and localTerms are the results of Confirmed and LocalTerm.
	confirmed, localTerms []atomic.Uint64

	view   View
	living map[message.Peer]bool // of view.Members
	// replan: targets may have changed. flush: search for changes at the next tick.
	replan, flush bool
	flushed       int64 // last search for changes
	ticked        int64 // last Tick
	slowChecked   int64 // last slow round

	channels     []*channel // sorted by peer
	throttle     throttle
	initialSyncs uint64                 // number of the last initial sync
	keys         []key                  // buffer of drain
	wanted       []message.Peer         // buffer of plan
	nextBatch    *message.TransferBatch // the next batch

	// Announcements of owned partitions, own and others'.
	ownedSeq    uint64
	changed     []int // partitions to announce
	digested    int64
	gotFullList map[message.Peer]int64 // when each process last got a full list
	announced   map[message.Peer]*announcements

	// Claims and grants.
	claims            uint64 // number of the last claim
	claimRequests     []*claimRequest
	grantsSeq         uint64
	unpublished       bool // grants to include in the next pending grants
	pendingGrantsSent map[message.Peer]sentPendingGrants
	restored          bool // other processes may have later snapshots; wait for them
	clusterID         string
	lapses            uint64 // of the quorum, at the last check
	otherVoters       bool   // the voter set has some

	// inSyncChanges counts changes of in-sync replicas, told those in the last lists. anyUntold:
	// partitions may wait until a majority knows theirs. version is that of the voter set at the
	// last tick.
	inSyncChanges, told uint64
	anyUntold           bool
	version             uint64

	imports []importing // of different partitions

	out    []message.Envelope
	routes uint64
	stats  Stats
}

// New returns a machine that owns nothing; it seals all shards of the table. c must be valid.
func New(c Config, now int64) *Machine {
	m := &Machine{
		c: c.withDefaults(), started: now, now: now,
		parts: make([]partition, c.Partitions), confirmed: make([]atomic.Uint64, c.Partitions), localTerms: make([]atomic.Uint64, c.Partitions),
		living: map[message.Peer]bool{}, gotFullList: map[message.Peer]int64{},
		announced: map[message.Peer]*announcements{}, pendingGrantsSent: map[message.Peer]sentPendingGrants{},
		restored: c.Recorded, nextBatch: new(message.TransferBatch),
	}
	for i := range m.parts {
		m.parts[i].number = i
		m.confirmed[i].Store(math.MaxUint64)
		c.Table.Seal(i)
	}
	return m
}

// ClusterID sets the cluster ID of the restored partitions, empty if none. If the process joins another cluster ID, they
// become divergent.
func (m *Machine) ClusterID(id string) { m.clusterID = id }

// SetView sets the live members and the assignment of partitions.
func (m *Machine) SetView(now int64, v View) {
	m.now = now
	m.view = v
	clear(m.living)
	for _, p := range v.Members {
		m.living[p] = true
	}
	for p := range m.gotFullList {
		if !m.living[p] {
			delete(m.gotFullList, p)
		}
	}
	for _, ch := range m.channels {
		if !m.reachable(ch.peer) {
			m.abandonAll(ch)
		}
	}
	m.forgetGone()
	m.replan = true
	m.slowChecked = now - slowInterval // claim lost partitions at the next tick
	m.routes++
}

// Step processes a message. It ignores other types, messages to another process, and messages of another cluster ID.
func (m *Machine) Step(now int64, e message.Envelope) {
	m.now = now
	m.joinClusterID()
	m.lapse()
	if e.To != m.c.Self || e.ClusterID != m.clusterID || m.clusterID == "" {
		return
	}
	switch b := e.Body.(type) {
	case *message.OwnedPartitions:
		m.receiveOwned(e.From, b)
	case *message.PendingGrants:
		m.takePendingGrants(e.From, b)
	case *message.Claim:
		m.takeClaim(e.From, b)
	case *message.ClaimResponse:
		m.takeClaimResponse(e.From, b)
	case *message.Fetch:
		m.takeFetch(e.From, b)
	case *message.TransferBatch:
		m.takeTransferBatch(e.From, b)
	case *message.AcceptLoss:
		m.acceptLoss()
	case *message.Receipt:
		m.takeReceipt(e.From, b)
	}
	m.publishGrants() // before the next acknowledgement
}

// slowInterval is the interval (ns) of checks for slow changes.
const slowInterval = int64(100e6)

// Tick runs everything that is due at now. Call it after every step and view, every 20 ms while work is pending, otherwise
// every 100 ms.
func (m *Machine) Tick(now int64) {
	m.now = now
	m.joinClusterID()
	if m.clusterID == "" {
		return
	}
	m.lapse()
	if m.ticked != 0 && now-m.ticked > 3*slowInterval {
		// This process was suspended: receipts may be waiting, so no peer counts as stalled.
		for _, ch := range m.channels {
			ch.progress = now
		}
	}
	m.ticked = now
	m.countVoters()
	m.newVoters()
	slow := now-m.slowChecked >= slowInterval
	if slow {
		m.slowChecked = now
		m.slowChecks()
	}
	if m.replan {
		m.replan = false
		for i := range m.parts {
			m.plan(&m.parts[i])
		}
	}
	if m.flush || now-m.flushed >= flushInterval {
		m.flush, m.flushed = false, now
		m.drainAll()
	}
	m.recheckInSync()
	m.continueClaims(slow)
	m.publishGrants()
	m.sendPendingGrants()
	m.inTurn(func(ch *channel) {
		m.resend(ch)
		m.pump(ch)
	})
	m.sendOwned()
}

// Flush makes the next Tick send changes at once, because a check waits for them.
func (m *Machine) Flush() { m.flush = true }

// Take returns the messages to send since the last call.
func (m *Machine) Take() []message.Envelope {
	out := m.out
	m.out = nil
	return out
}

// joinClusterID drops all state of a dissolved cluster ID. Owned partitions and complete copies become divergent, to be
// merged at the owners in the new cluster ID.
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
			m.localTerms[i].Add(1)
			m.sealAs(p, divergent)
		}
		p.known, p.claim, p.rejected, p.promised, p.grantsSeq = knowledge{}, nil, 0, message.Epoch{}, 0
		none := message.Epoch{}
		p.lastOwned, p.ownedBefore, p.ownEpochs, p.maybeOwned = none, none, nil, nil
		p.inSync, p.handedOff = message.InSync{}, handedOff{}
		m.markForeign(p)
	}
	for _, ch := range m.channels {
		m.abandonAll(ch)
	}
	m.claimRequests = nil
	clear(m.announced)
	clear(m.gotFullList)
	m.routes++
}

// slowChecks handles changes that come without a message.
func (m *Machine) slowChecks() {
	m.updateLosses()
	for _, ch := range m.channels {
		unfit := m.stalled(ch) || m.c.Quorum.Wishes(ch.peer) == message.Leave || !m.reachable(ch.peer)
		if unfit != ch.unavailable {
			ch.unavailable = unfit
			m.replan = true
			if unfit {
				m.abandonAll(ch)
			}
		}
	}
	for i := range m.parts {
		p := &m.parts[i]
		h := &p.ownership
		if h.skipped != (message.Peer{}) && m.now >= h.skippedUntil {
			h.skipped = message.Peer{}
			m.replan = true
		}
		if h.closeLater && m.now-h.since >= fullListInterval {
			h.closeLater = false
			for _, t := range h.targets {
				m.queueClose(t)
			}
		}
		if p.phase == owning && len(h.merging) > 0 && m.hasQuorum() {
			m.mergeRests(p, m.unheard)
		}
		m.mergeDivergent(p)
		m.dropLeftover(p)
	}
}

func (m *Machine) send(to message.Peer, b message.Body) {
	m.out = append(m.out, message.Envelope{From: m.c.Self, To: to, ClusterID: m.clusterID, Body: b})
}

// forOthers calls f with every live member but this process.
func (m *Machine) forOthers(f func(message.Peer)) {
	for _, p := range m.view.Members {
		if p != m.c.Self {
			f(p)
		}
	}
}

// serves reports whether the view lets this process own partitions.
func (m *Machine) serves() bool {
	i := slices.Index(m.view.Members, m.c.Self)
	return i < 0 || i >= len(m.view.Serves) || m.view.Serves[i]
}

func (m *Machine) lives(p message.Peer) bool { return m.living[p] }

// reachable reports whether counters can be sent to p: it is in the view, or a voter that is heard and has no other boot in
// the view.
func (m *Machine) reachable(p message.Peer) bool {
	return m.lives(p) || m.c.Quorum.Set().Has(p.Name) && m.c.Quorum.Lives(m.now, p) &&
		!slices.ContainsFunc(m.view.Members, func(q message.Peer) bool { return q.Name == p.Name })
}

// forUnseen calls f with every voter that is heard but not in the view.
func (m *Machine) forUnseen(f func(message.Peer)) {
	for _, p := range m.c.Quorum.Living(m.now) {
		if m.c.Quorum.Set().Has(p.Name) && !m.lives(p) {
			f(p)
		}
	}
}

// claimRecipients calls f with all processes that get a claim: the other members, and processes that are heard but not in
// the view and are voters or were until recently. Those that lack quorum need not grant it, but may have the best state.
func (m *Machine) claimRecipients(f func(message.Peer)) {
	m.forOthers(f)
	m.forUnseen(f)
	for _, p := range m.c.Quorum.Outvoted(m.now) {
		if m.mayKnowPartitions(p) && !m.lives(p) {
			f(p)
		}
	}
}

func (m *Machine) hasQuorum() bool { return m.now < m.c.Quorum.QuorumUntil() }

// memberAt returns member i of the view, or the zero Peer.
func (m *Machine) memberAt(i int) message.Peer {
	if i < 0 {
		return message.Peer{}
	}
	return m.view.Members[i]
}

// owner returns the assigned owner of p, the zero Peer before the first view.
func (m *Machine) owner(p *partition) message.Peer {
	if m.view.Owner == nil {
		return message.Peer{}
	}
	return m.memberAt(m.view.Owner[p.number])
}

// channel returns the channel to p, creating it if necessary.
func (m *Machine) channel(p message.Peer) *channel {
	i, ok := slices.BinarySearchFunc(m.channels, p, func(ch *channel, p message.Peer) int { return ch.peer.Compare(p) })
	if !ok {
		m.channels = slices.Insert(m.channels, i, &channel{peer: p, notServing: never})
	}
	return m.channels[i]
}
