package quorum

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// Wish sets what this process wants: Join until it is a voter, Leave when it has handed everything off.
func (m *Machine) Wish(now int64, w message.Wish) {
	m.now = now
	if w == m.wish {
		return
	}
	m.wish = w
	m.sendHeartbeats(now)
}

func (m *Machine) sendHeartbeats(now int64) {
	for _, p := range m.peers {
		if m.getsHeartbeats(p) {
			m.sendHeartbeat(now, p)
		}
	}
}

// sendDueHeartbeats sends the heartbeats that are due and those that will be soon, because one burst costs both sides less than
// separate messages. A receiver whose own heartbeats are nearly due does the same, so all members come to send at the same
// time and sleep in between (Mirollo and Strogatz, Synchronization of pulse-coupled biological oscillators, 1990).
func (m *Machine) sendDueHeartbeats(now int64) {
	for _, p := range m.peers {
		if m.getsHeartbeats(p) && p.heartbeatSent <= now-int64(Heartbeat)/2 {
			m.sendHeartbeat(now, p)
		}
	}
}

func (m *Machine) sendHeartbeat(now int64, p *peer) {
	p.heartbeatSent = now
	h := m.lastHeartbeat
	if h == nil || h.Sent != now || h.Seen != p.grantsTaken || h.InSync != p.inSyncTaken+1 || h.Wish != m.wish || h.Pass != m.pass || h.GrantsSeq != m.awaited || h.Unconfirmed != m.unconfirmed ||
		h.Set.ID != m.set.ID || h.Set.Version != m.set.Version || h.NoQuorum != m.LacksQuorum(now) {
		h = &message.Heartbeat{
			Sent: now, Set: m.set, Wish: m.wish, Seen: p.grantsTaken, GrantsSeq: m.awaited, Unconfirmed: m.unconfirmed, Isolated: m.isolated(now), AckTTL: m.ackTTL(now),
			NoQuorum: m.LacksQuorum(now), Pass: m.pass, InSync: p.inSyncTaken + 1,
		}
		if m.set.Zero() {
			h.Founding, h.Void, h.CannotStore = m.foundingRound, m.stored.Void, m.failing
			if m.founds() {
				h.Expect = m.c.Expect
			}
		}
		m.lastHeartbeat = h
	}
	m.send(p.Peer, h)
	m.out[len(m.out)-1].Copy = m.unanswered(now, p)
}

// copyAfter is the number of unanswered heartbeats, besides those in flight, after which the next is also sent on a second
// connection.
const copyAfter = 3

// unanswered reports whether p has answered no heartbeat for a while: the connections may be in retransmission backoff,
// which doubles with every loss.
func (m *Machine) unanswered(now int64, p *peer) bool {
	return p.answeredSent != never && p.answeredSent < now-copyAfter*int64(Heartbeat)-p.rtt.Least()
}

// LacksQuorum reports whether this process knows a voter set and has had no quorum for 100 ms, in any version of it: a new
// voter needs some heartbeats until it acknowledges others.
func (m *Machine) LacksQuorum(now int64) bool {
	return !m.set.Zero() && max(m.until, m.quorumAt) < now-int64(100*time.Millisecond)
}

// Rest makes this process only acknowledge until it ends, so that no claim waits for its grant.
func (m *Machine) Rest() { m.resting = true }

// isolated reports whether this voter hears no other voter, or can take no new state because its disk fails or it rests.
func (m *Machine) isolated(now int64) bool {
	return m.In() && !m.alone() && (m.failing || m.resting || m.heard < now-m.ackTTL(now)-int64(Heartbeat))
}

func (m *Machine) heartbeat(now int64, p *peer, h *message.Heartbeat) {
	m.learn(now, p, peerState{h.Set, h.GrantsSeq, h.Unconfirmed, !h.NoQuorum})
	p.readHere(now, h.Sent)
	if h.Sent >= p.sent {
		if lacks := h.NoQuorum && h.Set.ID == m.set.ID; !lacks || !p.noQuorum {
			p.lacking = now
		}
		p.sent, p.setless, p.clusterID, p.wish, p.grantsSeen, p.isolated, p.ackTTL = h.Sent, h.Set.Zero(), h.Set.ID, h.Wish, h.Seen, h.Isolated, m.c.limitAckTTL(h.AckTTL)
		p.noQuorum, p.expect, p.founding, p.void = h.NoQuorum, h.Expect, h.Founding, h.Void
		p.version, p.cannotStore, p.inSync = h.Set.Version, h.CannotStore, h.InSync
		if p.pass = (message.Role{}); h.Set.Equal(m.set) {
			p.pass = h.Pass
		}
	}
	ok := m.acknowledges(now, p, h)
	if ok {
		m.noteAckGiven(now, p.Boot, m.c.limitAckTTL(h.AckTTL))
	}
	a := &message.Ack{Sent: h.Sent, Got: now, OK: ok, Set: m.set, GrantsSeq: m.awaited, Unconfirmed: m.unconfirmed, AckTTL: h.AckTTL}
	m.send(p.Peer, a)
	e := &m.out[len(m.out)-1]
	e.Copy = m.unanswered(now, p)
	e.Patient = !e.Copy && m.getsHeartbeats(p) && renews(p.acked, a)
	p.acked = a
	if m.getsHeartbeats(p) && p.heartbeatSent <= now-int64(Heartbeat)/2 {
		m.sendDueHeartbeats(now)
	}
}

// renews reports whether a only extends quorum and carries no other news than old. It may then wait for the next heartbeat
// to the same peer, which halves the messages between idle nodes. Quorum is then up to one Heartbeat older.
func renews(old, a *message.Ack) bool {
	return old != nil && old.OK && a.OK && old.Set.ID == a.Set.ID && old.Set.Version == a.Set.Version &&
		old.GrantsSeq == a.GrantsSeq && old.Unconfirmed == a.Unconfirmed
}

// acknowledges reports whether h is acknowledged. A newer set in h has already been adopted.
func (m *Machine) acknowledges(now int64, p *peer, h *message.Heartbeat) bool {
	return !m.set.Zero() && !m.failing && m.set.Equal(h.Set) && !m.unconfirmed && !m.inGrace(now) && p.introduced && h.Seen >= m.awaited
}

func (m *Machine) ack(now int64, p *peer, a *message.Ack) {
	if a.Sent <= now {
		p.readThere(now, a.Sent, a.Got)
	}
	m.learn(now, p, peerState{a.Set, a.GrantsSeq, a.Unconfirmed, p.clusterID == a.Set.ID && !p.noQuorum})
	if a.Sent > now {
		return
	}
	p.answeredSent = max(p.answeredSent, a.Sent)
	p.rtt.Add(now, now-a.Sent)
	if !a.OK || a.Sent <= p.ackedSent || a.Sent < m.clusterIDSince {
		return
	}
	p.ackedSent, p.until = a.Sent, max(p.until, a.Sent+m.c.limitAckTTL(a.AckTTL))
	m.countQuorum(now)
	if m.lastHeartbeat != nil && m.lastHeartbeat.NoQuorum && !m.LacksQuorum(now) {
		m.sendHeartbeats(now) // until the others hear this, they may claim the partitions of this process
	}
}

// ackGiven is the last acknowledgement with OK that one process got from this one.
type ackGiven struct {
	boot string
	// until is when it can no longer count.
	until int64
	// versionShown is the highest version of the current cluster ID that the process has shown to know.
	versionShown uint64
}

func (m *Machine) noteAckGiven(now int64, boot string, ttl int64) {
	i, ok := m.findAckGiven(boot)
	if !ok {
		m.acksGiven = slices.Insert(m.acksGiven, i, ackGiven{boot: boot})
	}
	m.acksGiven[i].until, m.acksGiven[i].versionShown = max(m.acksGiven[i].until, now+expiry(ttl)), m.set.Version
}

func (m *Machine) findAckGiven(boot string) (int, bool) {
	return slices.BinarySearchFunc(m.acksGiven, boot, func(g ackGiven, boot string) int { return strings.Compare(g.boot, boot) })
}

// dropExpired removes acknowledgements that no longer count.
func (m *Machine) dropExpired(now int64) {
	m.acksGiven = slices.DeleteFunc(m.acksGiven, func(g ackGiven) bool { return g.until < now })
}

// Acked returns the processes whose acknowledgement (OK) by this one may still count, and for how long. It leaves out those
// that are outvoted and whose last heartbeat has seen this process's pending grants up to seq.
func (m *Machine) Acked(now int64, seq uint64) []message.Acked {
	var acked []message.Acked
	for _, g := range m.acksGiven {
		if g.until >= now && !slices.ContainsFunc(m.peers, func(p *peer) bool { return p.Boot == g.boot && p.grantsSeen >= seq && m.outvoted(now, p) }) {
			acked = append(acked, message.Acked{Boot: g.boot, Left: g.until - now})
		}
	}
	return acked
}

// Introduced notes that the full list of p's owned partitions has been processed. Before that, p's heartbeats are not acknowledged.
func (m *Machine) Introduced(p message.Peer) {
	if p := m.addPeer(p); p != nil {
		p.introduced = true
	}
}

// AwaitSeen raises the sequence number of this process's pending grants to seq: heartbeats are acknowledged only if they
// have seen it.
func (m *Machine) AwaitSeen(seq uint64) { m.awaited = max(m.awaited, seq) }

// Awaited returns the listening peers whose last heartbeat had not seen all pending grants.
func (m *Machine) Awaited() []AwaitedPeer {
	var debts []AwaitedPeer
	for _, p := range m.peers {
		if p.sent != never && p.grantsSeen < m.awaited && m.listens(m.now, p) {
			debts = append(debts, AwaitedPeer{Peer: p.Peer, Seen: p.grantsSeen})
		}
	}
	return debts
}

// AwaitedPeer is a peer and the newest of this process's pending grants that it has seen.
type AwaitedPeer struct {
	Peer message.Peer
	Seen uint64
}

// Saw notes that the pending grants of from up to seq have been processed; heartbeats to it report that.
func (m *Machine) Saw(from message.Peer, seq uint64) {
	if p := m.addPeer(from); p != nil {
		p.grantsTaken = max(p.grantsTaken, seq)
	}
}

// SawInSync notes that this process knows from's changes of in-sync replicas up to number n. The
// next heartbeat reports that; it is sent at once if decisions wait for it.
func (m *Machine) SawInSync(from message.Peer, n uint64, awaited bool) {
	if p := m.addPeer(from); p != nil && n > p.inSyncTaken {
		if p.inSyncTaken = n; awaited {
			m.sendHeartbeat(m.now, p)
		}
	}
}

// InSyncSeen returns the number of this process's newest change of in-sync replicas that p knows.
// Peers of a version that does not report it count as if they knew all.
func (m *Machine) InSyncSeen(p message.Peer) uint64 {
	if i, ok := m.find(p); ok {
		return m.peers[i].inSyncSeen()
	}
	return 0
}

func (p *peer) inSyncSeen() uint64 {
	if p.sent == never {
		return 0
	}
	return p.inSync - 1 // the highest number for 0
}

// InSyncKnown returns the number of this process's newest change of in-sync replicas that a
// majority of the voters knows.
func (m *Machine) InSyncKnown() uint64 {
	seen := make([]uint64, 0, 16)
	for _, name := range m.set.Members {
		if name == m.c.Self.Name {
			seen = append(seen, math.MaxUint64)
		} else if p := m.latest(name); p != nil {
			seen = append(seen, p.inSyncSeen())
		}
	}
	if n := m.set.Majority(); n <= len(seen) {
		slices.Sort(seen)
		return seen[len(seen)-n]
	}
	return 0
}

// QuorumUntil returns the time before which the process has quorum and may decide. It is in the past, or math.MinInt64,
// without quorum.
func (m *Machine) QuorumUntil() int64 { return m.until }

// Renewed returns a time such that a majority has acknowledged heartbeats sent then or later, math.MinInt64 if there is
// none.
func (m *Machine) Renewed() int64 { return m.renewed }

// Lapses counts how often this process regained quorum after a loss so long that a voter could restart and pass its grace
// in between, and one did: the promises of that voter are lost.
func (m *Machine) Lapses() uint64 { return m.lapses }

// Promises reports whether the process may grant claims: it knows a voter set and is past its grace.
func (m *Machine) Promises(now int64) bool { return !m.set.Zero() && !m.inGrace(now) }

// beginGrace is for a process that finds itself a voter and may have been one in an earlier run, whose promises it does not
// know.
func (m *Machine) beginGrace(now int64) {
	m.graceUntil = now + int64(grace)
	m.recovery = recovery{needed: true, until: now + int64(m.c.ForgetAfter), asked: never}
}

// inGrace reports whether this process must make no promises. The only voter has made none to other
// processes, if its set is no old one.
func (m *Machine) inGrace(now int64) bool { return m.unproven || now < m.graceUntil && !m.alone() }

func (m *Machine) alone() bool { return len(m.set.Members) == 1 && m.In() }

// countQuorum computes when the acknowledgements of a majority end. In its grace the process does not count itself: the
// other voters of a majority must ensure that it has seen the pending grants of claims granted in its earlier run.
func (m *Machine) countQuorum(now int64) {
	m.quorumAt = max(m.quorumAt, min(now, m.until))
	defer m.noteLapse(now)
	m.until, m.renewed = never, never
	if m.set.Zero() || m.failing {
		return
	}
	others := m.set.Majority()
	m.uncounted = m.In() && m.inGrace(now)
	if m.In() && !m.uncounted {
		others--
	}
	if others == 0 {
		m.until, m.renewed = math.MaxInt64, math.MaxInt64
		return
	}
	var buf [2][16]int64
	readings, ends := buf[0][:0], buf[1][:0]
	for _, name := range m.set.Members {
		if p := m.latest(name); p != nil && p.ackedSent != never {
			readings, ends = append(readings, p.ackedSent), append(ends, p.until)
		}
	}
	m.until, m.renewed = nthNewest(ends, others), nthNewest(readings, others)
}

// noteLapse counts a lapse (see Lapses). A voter that acknowledged this process was alive at most one ackTTL before quorum
// was lost, and acknowledges others no sooner than a grace after its restart; a tenth is added for clock speeds.
func (m *Machine) noteLapse(now int64) {
	if now >= m.until {
		return
	}
	if m.quorumAt != never && now-m.quorumAt > max(0, int64(grace)-expiry(m.ackTTL(now))) && m.anyNew(m.quorumAt-int64(grace)) {
		m.lapses++
	}
	m.quorumAt = now
}

// anyNew reports whether another voter's process was first heard after the given time.
func (m *Machine) anyNew(after int64) bool {
	return slices.ContainsFunc(m.set.Members, func(name string) bool {
		p := m.latest(name)
		return p != nil && p.heard != never && p.first > after
	})
}
