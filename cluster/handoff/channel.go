package handoff

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-project/sluice/cluster/quorum"
	"github.com/sluice-project/sluice/internal/message"
)

// channel carries transfer batches to one process and takes those that come from it: numbered,
// in order, each once. Both ends remember the numbers as long as they live.
type channel struct {
	peer message.Peer

	// To the peer.
	n      uint64 // the last number given
	flight []*transferBatch
	// progress is when the last receipt came, or the first transfer batch without one left.
	progress int64
	rtt      quorum.Estimate // from when transfer batches were first sent
	// What is due, in the order of importance. Targets that are gone are skipped.
	drops   []message.Part
	level   []*target // next owners that may be level: a close each
	changed []*target
	active  []*target // being synced
	waiting []*target // to be synced: next owners before others
	// unfit: its targets were let go, because it stalls or leaves.
	unfit bool
	// notServing is when the peer has last said that it is to be handed no partition.
	notServing int64

	// From the peer.
	taken    uint64                          // the last number taken
	receipts [2 * maxWindow]*message.Receipt // of the last numbers taken
}

// transferBatch is one that was sent and has no receipt yet.
type transferBatch struct {
	body        *message.TransferBatch
	first, sent int64 // when it was sent first and last
	// targets are whom the parts are for, by place; nil for a Drop.
	targets []*target
}

// dispatch sends a transfer batch.
func (m *Machine) dispatch(ch *channel, f *transferBatch) {
	ch.n++
	body := f.body
	body.N, f.first, f.sent = ch.n, m.now, m.now
	if len(ch.flight) == 0 {
		ch.progress = m.now
	}
	ch.flight = append(ch.flight, f)
	m.stats.Counters += uint64(body.Image.Counters)
	m.stats.Bytes += uint64(len(body.Image.Data))
	m.send(ch.peer, body)
}

// resend sends what has waited too long for its receipt again. A peer that cannot be
// reached gets nothing; it must get what it missed should it come back.
func (m *Machine) resend(ch *channel) {
	if len(ch.flight) == 0 || !m.reachable(ch.peer) || m.now-ch.flight[0].sent < m.resendAfter(ch) {
		return
	}
	for _, f := range ch.flight {
		f.sent = m.now
		again := *f.body
		// The counters have aged on their way; a tenth less for clocks that run at different speeds.
		again.Age = (m.now - f.first) / 10 * 9
		m.send(ch.peer, &again)
	}
}

// stalled reports whether the peer has confirmed nothing for too long.
func (m *Machine) stalled(ch *channel) bool {
	return len(ch.flight) > 0 && m.now-ch.progress > m.stallAfter(ch.peer)
}

// letGo gives up all that was for the peer, but closes: these it may have got, and only
// it can say. Transfer batches under way lose their content, which nobody waits for any more.
func (m *Machine) letGo(ch *channel) {
	for _, list := range [][]*target{ch.level, ch.changed, ch.active, ch.waiting} {
		for _, t := range list {
			m.abandon(t)
		}
	}
	ch.drops, ch.level, ch.changed, ch.active, ch.waiting = nil, nil, nil, nil, nil
	for i := range m.parts {
		p := &m.parts[i]
		for j := len(p.hold.targets) - 1; j >= 0; j-- {
			if t := p.hold.targets[j]; t.ch == ch {
				m.abandon(t)
			}
		}
		if t := p.state.merging; t != nil && t.ch == ch {
			m.abandon(t)
		}
	}
	if m.pace.last == ch {
		m.pace.transferBatch = nil // its receipt may never come
	}
	for _, f := range ch.flight {
		closes := false
		for i, t := range f.targets {
			closes = closes || f.body.Parts[i].Kind == message.Close && !t.gone
		}
		if !closes {
			f.body, f.targets = &message.TransferBatch{N: f.body.N}, nil
		}
	}
	m.replan = true
}

// takeReceipt ends the transfer batch that it is for. Receipts may come in any order.
func (m *Machine) takeReceipt(from message.Peer, r *message.Receipt) {
	ch := m.channel(from)
	for i, f := range ch.flight {
		if f.body.N != r.N {
			continue
		}
		ch.flight = append(ch.flight[:i:i], ch.flight[i+1:]...)
		ch.progress = m.now
		if ch.notServing = never; r.NotServing {
			ch.notServing = m.now
		}
		ch.rtt.Add(m.now, m.now-f.first)
		if f == m.pace.transferBatch {
			m.pace.transferBatch, m.pace.rest = nil, m.now+min(int64(m.c.Rest)*max(0, m.now-f.sent-ch.rtt.Least()), longestRest)
		}
		m.settle(ch, f, r)
		return
	}
}

// settle tells the targets of a transfer batch what became of their parts.
func (m *Machine) settle(ch *channel, f *transferBatch, r *message.Receipt) {
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
		t.under--
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

// pace keeps initial syncs beside the checks: nobody waits for them, and there may be millions of
// counters to send. A process has one transfer batch with portions of initial syncs under way at a
// time, whoever it is for, and the longer its receipt took, because nodes are busy, the
// longer the next one stays away. What a claim has asked for is not held up.
type pace struct {
	// transferBatch is the one under way, and last is whom it, or the one before it, was for.
	transferBatch *transferBatch
	last          *channel
	rest          int64 // none before
	hurry         bool
}

// longestRest is the longest time between two transfer batches.
const longestRest = int64(200e6)

// may reports whether a transfer batch may take portions of initial syncs now.
func (p *pace) may(now int64) bool { return p.hurry || p.transferBatch == nil && now >= p.rest }

// inTurn calls f for all channels, those first that others were synced before.
func (m *Machine) inTurn(f func(ch *channel)) {
	from := slices.Index(m.channels, m.pace.last) + 1
	for _, ch := range m.channels[from:] {
		f(ch)
	}
	for _, ch := range m.channels[:from] {
		f(ch)
	}
}

// Hurry makes initial syncs go on without rests from now on: this process wants to be gone.
func (m *Machine) Hurry() { m.pace.hurry = true }

// Due returns when initial syncs that rest go on, math.MaxInt64 if none rests: Tick is wanted
// then.
func (m *Machine) Due() int64 {
	if m.pace.transferBatch == nil && m.pace.rest > m.now && slices.ContainsFunc(m.channels, (*channel).fillable) {
		return m.pace.rest
	}
	return math.MaxInt64
}

func (ch *channel) fillable() bool { return !ch.unfit && len(ch.active)+len(ch.waiting) > 0 }

// The constants of Config are for networks that answer within milliseconds. Some grow with the shortest round-trip time
// measured of late, which says how far a peer is and not how busy it is, as stated in docs/protocol.md.

// resendAfter is how long a receipt is waited for: less than until the peer counts as stalled. For receipts of what was sent again are late
// by this time, and where there are no others it would grow by half with each.
func (m *Machine) resendAfter(ch *channel) int64 {
	return min(int64(m.c.Resend)+3*ch.rtt.Least()/2, 2*m.stallAfter(ch.peer)/3)
}

// answerAfter is how long another answer of peer is waited for.
func (m *Machine) answerAfter(peer message.Peer) int64 {
	return int64(m.c.Resend) + 3*m.c.Quorum.RTT(peer)/2
}

// answersAfter is how long answers of all members are waited for.
func (m *Machine) answersAfter() (longest int64) {
	longest = int64(m.c.Resend)
	m.others(func(p message.Peer) { longest = max(longest, m.answerAfter(p)) })
	return longest
}

// stallAfter is how long peer may confirm nothing: where its network loses packets, as long as it may say nothing.
func (m *Machine) stallAfter(peer message.Peer) int64 {
	return max(int64(m.c.Stall), m.c.Quorum.Lease(peer))
}

// trustFor is how recently an owner must have been heard of for a claim of what it holds to be rejected.
func (m *Machine) trustFor(owner message.Peer) int64 { return m.c.Quorum.Lease(owner) / 2 }

// Bounds of what a replica may be behind.
const (
	far      = int64(25 * time.Millisecond)
	gateStep = int64(10 * time.Millisecond)
	gateMost = int64(time.Second)
)

// gateOf returns how long a change of p may be unconfirmed: Gate, and where the nearest complete replica, or the second nearest where
// two confirm, is 25 ms or more away, two round trips to it, in steps of 10 ms, the round trip being 1 s at most. A check that meets the
// gate is asked again, which takes another round trip, so it must not close while replicas confirm as fast as they can.
func (m *Machine) gateOf(p *partition) time.Duration {
	nearest, second, n := gateMost, gateMost, 0
	for _, t := range p.hold.targets {
		if t.stage == complete {
			n++
			rtt := t.ch.rtt.Least()
			nearest, second = min(nearest, rtt), min(second, max(nearest, rtt))
		}
	}
	if n >= 2 && m.c.Replicas == 2 {
		nearest = second
	}
	if nearest < far {
		return m.c.Gate
	}
	return m.c.Gate + time.Duration((2*nearest+gateStep/2)/gateStep*gateStep)
}

// Transfer batches that may be without a receipt: window, and one more for each 10 ms that a receipt takes at least, at most maxWindow.
const (
	window    = 4
	maxWindow = 64
)

// full reports whether another transfer batch must wait for a receipt.
func (m *Machine) full(ch *channel) bool {
	if len(ch.flight) == 0 {
		return false
	}
	n := min(window+ch.rtt.Least()/gateStep, maxWindow)
	return ch.n-ch.flight[0].body.N >= uint64(n)-1
}
