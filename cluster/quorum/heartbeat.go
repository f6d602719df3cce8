package quorum

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Wish says what this process wants from now on: Join until it is counted, Leave when
// it has nothing left to give away.
func (m *Machine) Wish(now int64, w message.Wish) {
	m.now = now
	if w == m.wish {
		return
	}
	m.wish = w
	m.beatAll(now)
}

func (m *Machine) beatAll(now int64) {
	for _, p := range m.peers {
		if m.wanted(p) {
			m.beat(now, p)
		}
	}
}

// beatTogether sends the heartbeats that are due, and those that will be soon: one burst costs less than many
// messages by themselves, here and where they are taken. Who gets one that it would soon have sent itself joins in. So all members
// come to beat at one time, as fireflies do (Mirollo and Strogatz, Synchronization of pulse-coupled biological
// oscillators, 1990), and sleep between.
func (m *Machine) beatTogether(now int64) {
	for _, p := range m.peers {
		if m.wanted(p) && p.beaten <= now-int64(m.c.Heartbeat)/2 {
			m.beat(now, p)
		}
	}
}

func (m *Machine) beat(now int64, p *peer) {
	p.beaten = now
	h := m.pulse
	if h == nil || h.Sent != now || h.Seen != p.saw || h.Wish != m.wish || h.PendingGrants != m.awaited || h.Unconfirmed != m.unconfirmed ||
		h.Set.ID != m.set.ID || h.Set.Version != m.set.Version || h.NoQuorum != m.LacksQuorum(now) {
		h = &message.Heartbeat{
			Sent: now, Set: m.set, Wish: m.wish, Seen: p.saw, PendingGrants: m.awaited, Unconfirmed: m.unconfirmed, Isolated: m.isolated(now), Lease: m.lease(now),
			NoQuorum: m.LacksQuorum(now),
		}
		if m.set.Zero() {
			h.Founding, h.Void = m.foundingRound, m.stored.Void
			if m.founds() {
				h.Expect = m.c.Expect
			}
		}
		m.pulse = h
	}
	m.send(p.Peer, h)
	m.out[len(m.out)-1].Copy = m.unanswered(now, p)
}

// copyAfter is how many heartbeats without an answer, beside those that are on their way, make the next go by a second connection too.
const copyAfter = 3

// unanswered reports whether p has answered nothing for a while: the connections between the two may be waiting for lost packets, each time
// that the same one is lost for twice as long.
func (m *Machine) unanswered(now int64, p *peer) bool {
	return p.answered != never && p.answered < now-copyAfter*int64(m.c.Heartbeat)-p.rtt.Least()
}

// LacksQuorum reports whether this process knows a set and has had no quorum for 100 ms, in this version or an earlier one: a new voter
// takes some heartbeats to acknowledge others.
func (m *Machine) LacksQuorum(now int64) bool {
	return !m.set.Zero() && max(m.until, m.quorumAt) < now-int64(100*time.Millisecond)
}

// Rest says that this process takes in nothing any more, and only acknowledges until it ends: no claim is to wait for its grant.
func (m *Machine) Rest() { m.resting = true }

// isolated reports whether this process is counted with others and hears nobody, or can take in nothing new because its disk fails or it rests.
func (m *Machine) isolated(now int64) bool {
	return m.In() && !m.alone() && (m.failing || m.resting || m.heard < now-max(int64(m.c.Dead), m.lease(now)+int64(m.c.Heartbeat)))
}

func (m *Machine) heartbeat(now int64, p *peer, h *message.Heartbeat) {
	m.learn(now, p, knows{h.Set, h.PendingGrants, h.Unconfirmed, !h.NoQuorum})
	p.readHere(now, h.Sent)
	if h.Sent >= p.sent {
		if lacks := h.NoQuorum && h.Set.ID == m.set.ID; !lacks || !p.noQuorum {
			p.lacking = now
		}
		p.sent, p.setless, p.clusterID, p.wish, p.seen, p.isolated, p.lease = h.Sent, h.Set.Zero(), h.Set.ID, h.Wish, h.Seen, h.Isolated, m.c.lease(h.Lease)
		p.noQuorum, p.expect, p.founding, p.void = h.NoQuorum, h.Expect, h.Founding, h.Void
	}
	ok := m.acknowledges(now, p, h)
	if ok {
		m.give(now, p.Boot, m.c.lease(h.Lease))
	}
	a := &message.Ack{Sent: h.Sent, Got: now, OK: ok, Set: m.set, PendingGrants: m.awaited, Unconfirmed: m.unconfirmed, Lease: h.Lease}
	m.send(p.Peer, a)
	e := &m.out[len(m.out)-1]
	e.Copy = m.unanswered(now, p)
	e.Patient = !e.Copy && m.wanted(p) && renews(p.acked, a)
	p.acked = a
	if m.wanted(p) && p.beaten <= now-int64(m.c.Heartbeat)/2 {
		m.beatTogether(now)
	}
}

// renews reports whether a gives quorum for longer and tells nothing that old did not
// tell. It may then wait for the next heartbeat to the same peer, which halves what goes
// between nodes that have nothing to say. Quorum is then up to one Heartbeat older.
func renews(old, a *message.Ack) bool {
	return old != nil && old.OK && a.OK && old.Set.ID == a.Set.ID && old.Set.Version == a.Set.Version &&
		old.PendingGrants == a.PendingGrants && old.Unconfirmed == a.Unconfirmed
}

// acknowledges judges a heartbeat whose set has been taken over if it is newer.
func (m *Machine) acknowledges(now int64, p *peer, h *message.Heartbeat) bool {
	return !m.set.Zero() && !m.failing && m.set.Equal(h.Set) && !m.unconfirmed && !m.inGrace(now) && p.introduced && h.Seen >= m.awaited
}

func (m *Machine) ack(now int64, p *peer, a *message.Ack) {
	if a.Sent <= now {
		p.readThere(now, a.Sent, a.Got)
	}
	m.learn(now, p, knows{a.Set, a.PendingGrants, a.Unconfirmed, p.clusterID == a.Set.ID && !p.noQuorum})
	if a.Sent > now {
		return
	}
	p.answered = max(p.answered, a.Sent)
	p.rtt.Add(now, now-a.Sent)
	if !a.OK || a.Sent <= p.reading || a.Sent < m.clusterIDSince {
		return
	}
	p.reading, p.until = a.Sent, max(p.until, a.Sent+m.c.lease(a.Lease))
	m.countQuorum(now)
	if m.pulse != nil && m.pulse.NoQuorum && !m.LacksQuorum(now) {
		m.beatAll(now) // until the others hear so, they may claim what this process decides again
	}
}

// given is the last acknowledgement that was OK of one process's heartbeats.
type given struct {
	boot string
	// until is the time until which it may count.
	until int64
	// shown is the highest version of the present cluster ID that the process has
	// shown to know.
	shown uint64
}

func (m *Machine) give(now int64, boot string, lease int64) {
	i, ok := m.findGiven(boot)
	if !ok {
		m.given = slices.Insert(m.given, i, given{boot: boot})
	}
	m.given[i].until, m.given[i].shown = max(m.given[i].until, now+expiry(lease)), m.set.Version
}

func (m *Machine) findGiven(boot string) (int, bool) {
	return slices.BinarySearchFunc(m.given, boot, func(g given, boot string) int { return strings.Compare(g.boot, boot) })
}

// dropExpired forgets acknowledgements that give no right any more.
func (m *Machine) dropExpired(now int64) {
	m.given = slices.DeleteFunc(m.given, func(g given) bool { return g.until < now })
}

// Acked returns whom this process has acknowledged (OK) so lately that it may still count, and for how long; not those that are outvoted and
// whose last heartbeat has seen this process's pending grants up to seq.
func (m *Machine) Acked(now int64, seq uint64) []message.Acked {
	var acked []message.Acked
	for _, g := range m.given {
		if g.until >= now && !slices.ContainsFunc(m.peers, func(p *peer) bool { return p.Boot == g.boot && p.seen >= seq && m.outvoted(now, p) }) {
			acked = append(acked, message.Acked{Boot: g.boot, Left: g.until - now})
		}
	}
	return acked
}

// Introduced notes that a full list of p's holdings has been taken in, without which
// p's heartbeats are not acknowledged.
func (m *Machine) Introduced(p message.Peer) {
	if p := m.enter(p); p != nil {
		p.introduced = true
	}
}

// AwaitSeen raises the number of this process's pending grants to seq: from now on heartbeats are
// acknowledged only if they have seen it.
func (m *Machine) AwaitSeen(seq uint64) { m.awaited = max(m.awaited, seq) }

// Awaited returns the peers that listen whose last heartbeat had not seen all pending grants, and what
// each had seen.
func (m *Machine) Awaited() []AwaitedPeer {
	var debts []AwaitedPeer
	for _, p := range m.peers {
		if p.sent != never && p.seen < m.awaited && m.listens(m.now, p) {
			debts = append(debts, AwaitedPeer{Peer: p.Peer, Seen: p.seen})
		}
	}
	return debts
}

// AwaitedPeer is a peer and the newest pending grants that it has seen.
type AwaitedPeer struct {
	Peer message.Peer
	Seen uint64
}

// Saw notes that pending grants of from up to seq has been taken in; heartbeats to it will say so.
func (m *Machine) Saw(from message.Peer, seq uint64) {
	if p := m.enter(from); p != nil {
		p.saw = max(p.saw, seq)
	}
}

// QuorumUntil returns the time until which the process may decide; it has quorum
// at times before it. In the past, or math.MinInt64, if it has not.
func (m *Machine) QuorumUntil() int64 { return m.until }

// Renewed returns a time such that a majority has acknowledged heartbeats that were sent then or later, math.MinInt64 if there is none.
func (m *Machine) Renewed() int64 { return m.renewed }

// Lapses returns how often this process has had quorum again after so long without that a voter which acknowledged it before can have
// been restarted since and be past its grace, and one was: what that one had promised is forgotten.
func (m *Machine) Lapses() uint64 { return m.lapses }

// Promises reports whether the process may grant claims: it knows a set and is past
// its grace.
func (m *Machine) Promises(now int64) bool { return !m.set.Zero() && !m.inGrace(now) }

// beginGrace is for a process that finds itself counted and may have been so in an
// earlier run, whose promises it does not know.
func (m *Machine) beginGrace(now int64) {
	m.graceUntil = now + int64(m.c.Grace)
	m.recovery = recovery{needed: true, until: now + int64(m.c.ForgetAfter), asked: never}
}

// inGrace reports whether nothing is promised. Who is counted alone promised
// things to nobody that it could not decide itself.
func (m *Machine) inGrace(now int64) bool { return now < m.graceUntil && !m.alone() }

func (m *Machine) alone() bool { return len(m.set.Members) == 1 && m.In() }

// countQuorum works out until when a majority's acknowledgements last. In its grace
// the process does not count itself: the others of a majority must make sure that
// it has seen the pending grants of claims that it granted in an earlier run.
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
		if p := m.latest(name); p != nil && p.reading != never {
			readings, ends = append(readings, p.reading), append(ends, p.until)
		}
	}
	m.until, m.renewed = nthNewest(ends, others), nthNewest(readings, others)
}

// noteLapse counts a lapse. Who acknowledged a heartbeat of this process was alive until its lease before quorum was lost, and acknowledges
// others no sooner than a grace later; a tenth is allowed for the clocks. Who has not been restarted has forgotten nothing.
func (m *Machine) noteLapse(now int64) {
	if now >= m.until {
		return
	}
	if m.quorumAt != never && now-m.quorumAt > max(0, int64(m.c.Grace)-expiry(m.lease(now))) && m.anyNew(m.quorumAt-int64(m.c.Grace)) {
		m.lapses++
	}
	m.quorumAt = now
}

// anyNew reports whether some other voter's process was first heard from after the time given.
func (m *Machine) anyNew(after int64) bool {
	return slices.ContainsFunc(m.set.Members, func(name string) bool {
		p := m.latest(name)
		return p != nil && p.heard != never && p.first > after
	})
}
