package handoff

import (
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// channel sends transfer batches to one process and receives its batches: numbered, in order, each processed once. Both
// ends remember the numbers while they live.
type channel struct {
	peer message.Peer

	// To the peer.
	n        uint64 // last number assigned
	inFlight []*transferBatch
	// progress is when the last receipt arrived, or the first unconfirmed batch was sent.
	progress int64
	rtt      quorum.Estimate // from the first sending of a batch
	// Due, in order of priority. Targets that are gone are skipped.
	drops   []message.Part
	closes  []*target // next owners that may have all changes; each needs a close
	changed []*target
	active  []*target // being synced
	waiting []*target // waiting for initial sync, next owners first
	// unavailable: its targets were abandoned because it stalls or leaves.
	unavailable bool
	// notServing is when the peer last reported that it takes no partitions.
	notServing int64

	// From the peer.
	taken    uint64                          // last number processed
	receipts [2 * maxWindow]*message.Receipt // of the last batches processed
}

// transferBatch is a sent batch without a receipt.
type transferBatch struct {
	body        *message.TransferBatch
	first, sent int64 // first and last sending
	// targets has the target of each part, nil for a Drop.
	targets []*target
}

// dispatch sends a transfer batch.
func (m *Machine) dispatch(ch *channel, f *transferBatch) {
	ch.n++
	body := f.body
	body.N, f.first, f.sent = ch.n, m.now, m.now
	if len(ch.inFlight) == 0 {
		ch.progress = m.now
	}
	ch.inFlight = append(ch.inFlight, f)
	m.stats.Counters += uint64(body.Image.Counters)
	m.stats.Bytes += uint64(len(body.Image.Data))
	m.send(ch.peer, body)
}

// resend resends batches whose receipt is overdue. An unreachable peer gets them when it comes back.
func (m *Machine) resend(ch *channel) {
	if len(ch.inFlight) == 0 || !m.reachable(ch.peer) || m.now-ch.inFlight[0].sent < m.resendAfter(ch) {
		return
	}
	for _, f := range ch.inFlight {
		f.sent = m.now
		again := *f.body
		// The counters have aged since then. A tenth less, for clocks that run at different speeds.
		again.Age = (m.now - f.first) / 10 * 9
		m.send(ch.peer, &again)
	}
}

// stalled reports whether the peer has been confirming nothing for too long.
func (m *Machine) stalled(ch *channel) bool {
	return len(ch.inFlight) > 0 && m.now-ch.progress > m.stallAfter(ch.peer)
}

// abandonAll abandons everything for the peer except closes, which it may have processed: only the peer can say. Batches in
// flight lose their content, since no target needs it.
func (m *Machine) abandonAll(ch *channel) {
	for _, list := range [][]*target{ch.closes, ch.changed, ch.active, ch.waiting} {
		for _, t := range list {
			m.abandon(t)
		}
	}
	m.keepDrops(ch, ch.drops)
	ch.drops, ch.closes, ch.changed, ch.active, ch.waiting = nil, nil, nil, nil, nil
	for i := range m.parts {
		p := &m.parts[i]
		for j := len(p.ownership.targets) - 1; j >= 0; j-- {
			if t := p.ownership.targets[j]; t.ch == ch {
				m.abandon(t)
			}
		}
		if t := p.state.merging; t != nil && t.ch == ch {
			m.abandon(t)
		}
	}
	if m.throttle.last == ch {
		m.throttle.inFlight = nil // its receipt may never arrive
	}
	for _, f := range ch.inFlight {
		closes := false
		for i, t := range f.targets {
			closes = closes || f.body.Parts[i].Kind == message.Close && !t.gone
		}
		if !closes {
			m.keepDrops(ch, f.body.Parts)
			f.body, f.targets = &message.TransferBatch{N: f.body.N}, nil
		}
	}
	m.replan = true
}

// keepDrops has the orders to drop copies among parts, which ch's peer may not have got, sent again once it is available.
func (m *Machine) keepDrops(ch *channel, parts []message.Part) {
	for i := range parts {
		x := &parts[i]
		if h := &m.parts[x.Partition].ownership; x.Kind == message.Drop && h.epoch == x.Epoch {
			h.left = append(h.left, leftCopy{ch.peer, x.InitialSync, true})
		}
	}
}

// takeReceipt completes the batch of r. Receipts may arrive in any order.
func (m *Machine) takeReceipt(from message.Peer, r *message.Receipt) {
	ch := m.channel(from)
	for i, f := range ch.inFlight {
		if f.body.N != r.N {
			continue
		}
		ch.inFlight = append(ch.inFlight[:i:i], ch.inFlight[i+1:]...)
		ch.progress = m.now
		if ch.notServing = never; r.NotServing {
			ch.notServing = m.now
		}
		ch.rtt.Add(m.now, m.now-f.first)
		if f == m.throttle.inFlight {
			m.throttle.inFlight, m.throttle.pauseUntil = nil, m.now+min(int64(m.c.Rest)*max(0, m.now-f.sent-ch.rtt.Least()), maxPause)
		}
		m.takeResults(f, r)
		return
	}
}

// takeResults reports the result of each part to its target.
func (m *Machine) takeResults(f *transferBatch, r *message.Receipt) {
	var rejected map[int]message.Rejection
	if len(r.Rejected) > 0 {
		rejected = make(map[int]message.Rejection, len(r.Rejected))
		for _, x := range r.Rejected {
			rejected[x.Part] = x
		}
	}
	m.stats.Rejected += uint64(len(r.Rejected))
	for i, t := range f.targets {
		if t == nil {
			continue
		}
		t.inFlight--
		if t.gone {
			continue
		}
		if x, ok := rejected[i]; ok {
			m.rejectedPart(t, &f.body.Parts[i], x)
		} else {
			m.takenPart(t, &f.body.Parts[i])
		}
	}
}

// throttle limits initial syncs in favour of checks: they are not urgent and may have millions of counters. A process has one
// batch with initial-sync counters in flight at a time, over all peers; the longer its receipt took, the longer the pause. State
// that a claim fetches is not limited.
type throttle struct {
	// inFlight is the one in flight. last is the channel of it or of its predecessor.
	inFlight   *transferBatch
	last       *channel
	pauseUntil int64 // no new one before this time
	hurry      bool
}

// maxPause is the longest pause (ns) between two batches.
const maxPause = int64(200e6)

// allows reports whether a batch may contain initial-sync counters now.
func (p *throttle) allows(now int64) bool { return p.hurry || p.inFlight == nil && now >= p.pauseUntil }

// inTurn calls f for all channels, round-robin from the one after the last paced batch.
func (m *Machine) inTurn(f func(ch *channel)) {
	from := slices.Index(m.channels, m.throttle.last) + 1
	for _, ch := range m.channels[from:] {
		f(ch)
	}
	for _, ch := range m.channels[:from] {
		f(ch)
	}
}

// Hurry removes the pauses between initial syncs: this process wants to leave.
func (m *Machine) Hurry() { m.throttle.hurry = true }

// Due returns when the pause of initial syncs ends, math.MaxInt64 without a pause. Call Tick then.
func (m *Machine) Due() int64 {
	if m.throttle.inFlight == nil && m.throttle.pauseUntil > m.now && slices.ContainsFunc(m.channels, (*channel).fillable) {
		return m.throttle.pauseUntil
	}
	return math.MaxInt64
}

func (ch *channel) fillable() bool { return !ch.unavailable && len(ch.active)+len(ch.waiting) > 0 }

// The constants fit networks that answer within milliseconds. Some timeouts grow with the shortest recent round-trip time, which
// depends on the distance of a peer and not on its load; see docs/internals/protocol.md.

// resendAfter is the wait for a receipt. It stays below stallAfter, because receipts of resent batches are late by this
// time: without a bound the round-trip time would grow by half with each resend.
func (m *Machine) resendAfter(ch *channel) int64 {
	return min(resendTimeout+3*ch.rtt.Least()/2, 2*m.stallAfter(ch.peer)/3)
}

// answerAfter is the wait for any other response of peer.
func (m *Machine) answerAfter(peer message.Peer) int64 {
	return resendTimeout + 3*m.c.Quorum.RTT(peer)/2
}

// longestAnswerAfter is the wait for responses of all members.
func (m *Machine) longestAnswerAfter() (longest int64) {
	longest = resendTimeout
	m.forOthers(func(p message.Peer) { longest = max(longest, m.answerAfter(p)) })
	return longest
}

// stallAfter is how long peer may confirm nothing: at least its ackTTL, which is long on networks that lose packets.
func (m *Machine) stallAfter(peer message.Peer) int64 {
	return max(stallTimeout, m.c.Quorum.AckTTL(peer))
}

// trustFor is how recently an owner must have been heard for a claim of its partition to be rejected.
func (m *Machine) trustFor(owner message.Peer) int64 { return m.c.Quorum.AckTTL(owner) / 2 }

// Parameters of gateOf.
const (
	farRTT   = int64(25 * time.Millisecond)
	gateStep = int64(10 * time.Millisecond)
	maxRTT   = int64(time.Second)
)

// gateOf returns how long a change of p may be unconfirmed: Config.Gate, plus two round trips to
// the farthest in-sync replica if that is 25 ms or more away. It is rounded to 10 ms, with a round
// trip of at most 1 s. A check rejected by the gate is retried one round trip later, so the gate
// must not close while replicas confirm as fast as they can.
func (m *Machine) gateOf(p *partition) time.Duration {
	farthest := int64(0)
	for _, t := range p.ownership.targets {
		if t.inSync {
			farthest = max(farthest, min(t.ch.rtt.Least(), maxRTT))
		}
	}
	if farthest < farRTT {
		return m.c.Gate
	}
	return m.c.Gate + time.Duration((2*farthest+gateStep/2)/gateStep*gateStep)
}

// The limit of unconfirmed batches: window, plus one per 10 ms of the shortest round trip, at most maxWindow.
const (
	window    = 4
	maxWindow = 64
)

// windowFull reports whether the next batch must wait for a receipt.
func (m *Machine) windowFull(ch *channel) bool {
	if len(ch.inFlight) == 0 {
		return false
	}
	n := min(window+ch.rtt.Least()/gateStep, maxWindow)
	return ch.n-ch.inFlight[0].body.N >= uint64(n)-1
}
