// Package quorum decides which processes are voters (the voter set) and whether this process may decide at the full limit
// (has quorum); docs/internals/protocol.md has the rules. What it may decide, partition by partition, is up to cluster/handoff.
//
// Machine is a pure step function: it takes time, messages and the view as arguments, and leaves messages to send. It
// starts no goroutine, reads no clock and draws no random numbers.
package quorum

import (
	"math"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

const (
	// resend is the wait before a Paxos message is sent again, in addition to one and a half round trips.
	resend = 100 * time.Millisecond
	// peerMemory is how long a silent peer outside the view is remembered.
	peerMemory = 10 * time.Second
	// never is before all times.
	never = math.MinInt64
)

// Machine is the quorum state of one process. Not safe for concurrent use.
//
// Times are the process's clock in ns, which does not step back and keeps running while the process or machine sleeps.
type Machine struct {
	c   Config
	now int64 // the time of the last Step or Tick
	out []message.Envelope
	// lastOut is the number of messages of the last Take.
	lastOut int

	peers         []*peer // sorted by name, then boot
	wish          message.Wish
	pass          message.Role       // see Pass
	lastHeartbeat *message.Heartbeat // the last one sent; peers may share it

	set message.Set
	// memberHeard has when each member of set was last heard, or first known as a member.
	memberHeard []int64
	dissolved   uint64
	// unconfirmed: no pending grants of a process that knew the set have been seen yet.
	unconfirmed bool
	// unproven: this process is the only voter of the set, which it has read from disk; see prove.
	unproven bool
	// heard is when another process was last heard, or the set was first known.
	heard int64
	// clusterIDSince is when this process adopted the set's cluster ID.
	clusterIDSince int64
	// quorumAt is when this process last had quorum in the set's cluster ID.
	quorumAt int64
	// lackedAt is when it last had none.
	lackedAt int64
	// See Lapses.
	lapses uint64

	// record is the record to write, requested at asked; stored is the record on disk. failing: the
	// last write failed. probe: the record is to be written even if it is on disk, to see whether
	// the disk takes it.
	record, stored message.Record
	asked          int64
	failing, probe bool
	operatorSet    message.Set // adopted once on disk

	resting bool // see Rest

	// missed has when processes with a set last addressed an earlier boot of this one.
	missed              map[message.Peer]int64
	mayFound            int64
	allAnswered         bool
	enoughFoundersSince int64 // since when enough processes are heard to found a set
	founder             *founder
	foundingRound       uint64 // of founder; earlier rounds are given up
	nextRound           int64  // when the next may begin
	founded             int    // how many sets this process has founded and left

	until      int64 // end of quorum
	renewed    int64 // see Renewed
	graceUntil int64
	uncounted  bool // this process does not count itself
	acksGiven  []ackGiven
	awaited    uint64 // see AwaitSeen

	acceptor acceptor
	recovery recovery
	proposal *proposal
	round    uint64 // the highest seen in any ballot
}

// New returns a machine without peers. now is the process's clock. c must be valid.
func New(c Config, now int64) *Machine {
	m := &Machine{
		c: c.withDefaults(), now: now,
		heard: now, lackedAt: now, until: never, renewed: never, graceUntil: never, clusterIDSince: never, quorumAt: never, missed: map[message.Peer]int64{}, mayFound: never, enoughFoundersSince: never,
		record: c.Record, stored: c.Record, asked: now, foundingRound: 1,
	}
	if s := c.Record.Set; !s.Zero() {
		if s.Has(c.Self.Name) {
			m.beginGrace(now)
		}
		m.installSet(now, s)
		m.unproven = c.Disk && m.alone()
		m.countQuorum(now)
	}
	return m
}

// Step processes a message. It ignores other types and messages to another boot ID. now must have been read after e
// arrived.
func (m *Machine) Step(now int64, e message.Envelope) {
	if e.To != m.c.Self {
		m.noteEarlierBoot(now, e)
		return
	}
	switch e.Body.(type) {
	case *message.Heartbeat, *message.Ack, *message.Prepare, *message.Promise, *message.Accept, *message.Accepted:
	default:
		return
	}
	p := m.noteHeard(now, e.From)
	if p == nil {
		return
	}
	switch b := e.Body.(type) {
	case *message.Heartbeat:
		m.heartbeat(now, p, b)
	case *message.Ack:
		m.ack(now, p, b)
	case *message.Prepare:
		m.prepare(now, p, b)
	case *message.Promise:
		m.promise(now, p, e.ClusterID, b)
	case *message.Accept:
		m.accept(now, p, b)
	case *message.Accepted:
		m.accepted(now, p, b)
	}
}

// Tick runs everything that is due at now. Call it at least every 100 ms, and at Due.
func (m *Machine) Tick(now int64) {
	m.now = now
	m.dropOutsiders(now)
	m.dropExpired(now)
	if m.uncounted && !m.inGrace(now) {
		m.countQuorum(now)
	}
	if now < m.until {
		m.quorumAt = now
	} else {
		m.lackedAt = now
	}
	m.adoptOperatorSet(now)
	m.dropVoidSet(now)
	m.forgetUnwanted(now)
	m.prove(now)
	m.found(now)
	m.recover(now)
	m.propose(now)
	if m.Due() <= now {
		m.sendDueHeartbeats(now)
	}
}

// Due returns when the next heartbeat must be sent, math.MaxInt64 without a receiver.
func (m *Machine) Due() int64 {
	due := int64(math.MaxInt64)
	for _, p := range m.peers {
		if m.getsHeartbeats(p) {
			due = min(due, p.heartbeatSent+int64(Heartbeat))
		}
	}
	return due
}

// Take returns the messages to send since the last call.
func (m *Machine) Take() []message.Envelope {
	out := m.out
	m.lastOut, m.out = len(out), nil
	return out
}

func (m *Machine) send(to message.Peer, b message.Body) {
	if m.out == nil {
		m.out = make([]message.Envelope, 0, max(m.lastOut, 4))
	}
	m.out = append(m.out, message.Envelope{From: m.c.Self, To: to, ClusterID: m.set.ID, Body: b})
}
