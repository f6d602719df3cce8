package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

const (
	// inquiryPatience is how long other nodes have to answer a question about themselves.
	inquiryPatience = time.Second
	// maxInquiries bounds the questions that wait for others at a time, and maxAsks those of others that wait
	// here.
	maxInquiries = 16
	maxAsks      = 64
)

// inquiries asks other nodes about themselves, for people, and answers theirs. A letter that gets lost makes a node missing in
// one answer, and no more.
type inquiries struct {
	tell func(message.Body) []message.Peer
	send func(message.Peer, message.Body)
	// reply answers a question of another node; nil is no answer.
	reply func(context.Context, message.Body) message.Body
	// asks are questions of others. They are worked off by run, as mail must not wait for it.
	asks chan message.Envelope

	mu struct {
		sync.Mutex
		last  uint64
		calls map[uint64]chan message.Envelope
	}
}

func newInquiries(tell func(message.Body) []message.Peer, send func(message.Peer, message.Body), reply func(context.Context, message.Body) message.Body) *inquiries {
	m := &inquiries{tell: tell, send: send, reply: reply, asks: make(chan message.Envelope, maxAsks)}
	m.mu.calls = make(map[uint64]chan message.Envelope)
	return m
}

// run answers other nodes until ctx ends.
func (m *inquiries) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-m.asks:
			if b := m.reply(ctx, e.Body); b != nil {
				m.send(e.From, b)
			}
		}
	}
}

// answerTo returns the number of the question that b answers; ok is false if it is a question itself.
func answerTo(b message.Body) (id uint64, ok bool) {
	switch b := b.(type) {
	case *message.Top:
		return b.ID, true
	case *message.Facts:
		return b.ID, true
	case *message.KeyFacts:
		return b.ID, true
	}
	return 0, false
}

// deliver takes a question or an answer of another node. It does not block.
func (m *inquiries) deliver(e message.Envelope) {
	to := m.asks
	if id, ok := answerTo(e.Body); ok {
		m.mu.Lock()
		to = m.mu.calls[id]
		m.mu.Unlock()
	}
	select {
	case to <- e: // never where nobody waits any more: to is nil
	default:
	}
}

// inquire asks all others, calls take with what each answers within inquiryPatience, and returns the sorted names of those who
// have not.
func (m *inquiries) inquire(ctx context.Context, question func(id uint64) message.Body, take func(message.Peer, message.Body)) (missing []string) {
	ctx, cancel := context.WithTimeout(ctx, inquiryPatience)
	defer cancel()
	got := make(chan message.Envelope, 256)
	id, ok := m.begin(got)
	waiting := make(map[message.Peer]bool)
	if ok {
		defer m.end(id)
	} else {
		cancel() // too many calls: nobody is waited for
	}
	for _, p := range m.tell(question(id)) {
		waiting[p] = true
	}
	for len(waiting) > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-got:
			if waiting[e.From] { // else it is a letter that came twice
				delete(waiting, e.From)
				take(e.From, e.Body)
			}
		}
	}
	for p := range waiting {
		missing = append(missing, p.Name)
	}
	slices.Sort(missing)
	return missing
}

// begin has answers to the call with the returned id sent to got. It reports false where there are too many
// calls.
func (m *inquiries) begin(got chan message.Envelope) (id uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.calls) >= maxInquiries {
		return 0, false
	}
	m.mu.last++
	m.mu.calls[m.mu.last] = got
	return m.mu.last, true
}

func (m *inquiries) end(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.calls, id)
}
