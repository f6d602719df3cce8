package handoff

import (
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
	active  []*target // being filled
	waiting []*target // to be filled: next owners before others
	// unfit: its targets were let go, because it stalls or leaves.
	unfit bool
	// notServing is when the peer has last said that it is to be handed no partition.
	notServing int64

	// From the peer.
	taken    uint64                          // the last number taken
	receipts [2 * maxWindow]*message.Receipt // of the last numbers taken
}

// transfer batch is one that was sent and has no receipt yet.
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
	var refused map[int]message.Refusal
	if len(r.Refused) > 0 {
		refused = make(map[int]message.Refusal, len(r.Refused))
		for _, x := range r.Refused {
			refused[x.Part] = x
		}
	}
	m.stats.Refused += uint64(len(r.Refused))
	for i, t := range f.targets {
		if t == nil {
			continue
		}
		t.under--
		if t.gone {
			continue
		}
		if x, ok := refused[i]; ok {
			m.refusedPart(t, &f.body.Parts[i], x)
		} else {
			m.takenPart(t, &f.body.Parts[i])
		}
	}
}
