package main

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/heavy"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/transport"
)

const (
	// topPatience is how long other nodes have to tell their heaviest keys.
	topPatience = time.Second
	// maxTopCalls bounds the calls that wait for others at a time, and maxTopAsks the questions of others
	// that wait here.
	maxTopCalls = 16
	maxTopAsks  = 64
)

// topMail asks other nodes for their heaviest keys, and answers theirs. A letter that gets lost makes a node
// missing in one answer, and no more.
type topMail struct {
	tell   func(message.Body) []message.Peer
	answer func(message.Peer, message.Body)
	here   func(transport.TopQuery) transport.NodeTop
	// asks are those of others. They are worked off by run, as mail must not wait for it.
	asks chan message.Envelope

	mu struct {
		sync.Mutex
		last  uint64
		calls map[uint64]chan message.Envelope
	}
}

func newTopMail(tell func(message.Body) []message.Peer, answer func(message.Peer, message.Body), here func(transport.TopQuery) transport.NodeTop) *topMail {
	m := &topMail{tell: tell, answer: answer, here: here, asks: make(chan message.Envelope, maxTopAsks)}
	m.mu.calls = make(map[uint64]chan message.Envelope)
	return m
}

// run answers other nodes until ctx ends.
func (m *topMail) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-m.asks:
			q := e.Body.(*message.TopAsk)
			top := m.here(transport.TopQuery{By: transport.TopBy(q.By), Domain: q.Domain})
			out := &message.Top{ID: q.ID, Off: top.Off, Covers: int64(top.Covers)}
			for _, k := range top.Keys {
				out.Keys = append(out.Keys, message.TopKey{Key: k.Key, Name: k.Name, Count: k.Count, Error: k.Error})
			}
			m.answer(e.From, out)
		}
	}
}

// deliver takes a TopAsk or a Top of another node. It does not block.
func (m *topMail) deliver(e message.Envelope) {
	to := m.asks
	if b, ok := e.Body.(*message.Top); ok {
		m.mu.Lock()
		to = m.mu.calls[b.ID]
		m.mu.Unlock()
	}
	select {
	case to <- e: // never where nobody waits any more: to is nil
	default:
	}
}

// ask asks all others, and returns who has answered within topPatience, and the names of who has not.
func (m *topMail) ask(ctx context.Context, q transport.TopQuery) (answers []transport.NodeTop, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, topPatience)
	defer cancel()
	got := make(chan message.Envelope, 256)
	id, ok := m.begin(got)
	waiting := make(map[message.Peer]bool)
	if ok {
		defer m.end(id)
	} else {
		cancel() // too many calls: nobody is waited for
	}
	for _, p := range m.tell(&message.TopAsk{ID: id, By: uint8(q.By), Domain: q.Domain}) {
		waiting[p] = true
	}
	for len(waiting) > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-got:
			if !waiting[e.From] {
				continue // a letter that came twice
			}
			delete(waiting, e.From)
			b := e.Body.(*message.Top)
			n := transport.NodeTop{Node: e.From.Name, Off: b.Off, Covers: max(0, time.Duration(b.Covers))}
			for _, k := range b.Keys {
				n.Keys = append(n.Keys, heavy.Entry{Key: k.Key, Name: k.Name, Count: k.Count, Error: k.Error})
			}
			answers = append(answers, n)
		}
	}
	for p := range waiting {
		missing = append(missing, p.Name)
	}
	return answers, missing
}

// begin has answers to the call with the returned id sent to got. It reports false where there are too many
// calls.
func (m *topMail) begin(got chan message.Envelope) (id uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.calls) >= maxTopCalls {
		return 0, false
	}
	m.mu.last++
	m.mu.calls[m.mu.last] = got
	return m.mu.last, true
}

func (m *topMail) end(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.calls, id)
}
