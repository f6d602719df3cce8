package handoff

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

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

// trustFor is how recently a holder must have been heard of for a claim of what it holds to be rejected.
func (m *Machine) trustFor(holder message.Peer) int64 { return m.c.Quorum.Lease(holder) / 2 }

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
