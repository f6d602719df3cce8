package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/heavy"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/limiter"
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
	// asks are questions of others. They are worked off by run, as control messages must not wait for it.
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

// answerAsk answers a question of another node about this one; nil is no answer.
func (n *Node) answerAsk(ctx context.Context, b message.Body) message.Body {
	switch q := b.(type) {
	case *message.TopAsk:
		return topAnswer(q, n.service.TopHere(limiter.TopQuery{By: limiter.TopBy(q.By), Domain: q.Domain}))
	case *message.FactsAsk:
		return &message.Facts{ID: q.ID, Node: n.service.FactsHere(ctx, q.History)}
	case *message.KeyAsk:
		if q.Limits == nil {
			return nil
		}
		k, err := n.cluster.KeyFacts(ctx, q.Key, q.Limits)
		if err != nil {
			return nil // this node stops
		}
		return &message.KeyFacts{ID: q.ID, Key: k}
	}
	return nil
}

func topAnswer(q *message.TopAsk, top limiter.NodeTop) *message.Top {
	out := &message.Top{ID: q.ID, Off: top.Off, Covers: int64(top.Covers)}
	for _, k := range top.Keys {
		out.Keys = append(out.Keys, message.TopKey{Key: k.Key, Name: k.Name, Count: k.Count, Error: k.Error})
	}
	return out
}

// top asks the others for their heaviest keys.
func (m *inquiries) top(ctx context.Context, q limiter.TopQuery) (answers []limiter.NodeTop, missing []string) {
	missing = m.inquire(ctx, func(id uint64) message.Body {
		return &message.TopAsk{ID: id, By: uint8(q.By), Domain: q.Domain}
	}, func(from message.Peer, answer message.Body) {
		b, ok := answer.(*message.Top)
		if !ok {
			return
		}
		n := limiter.NodeTop{Node: from.Name, Off: b.Off, Covers: max(0, time.Duration(b.Covers))}
		for _, k := range b.Keys {
			n.Keys = append(n.Keys, heavy.Entry{Key: k.Key, Name: k.Name, Count: k.Count, Error: k.Error})
		}
		answers = append(answers, n)
	})
	return answers, missing
}

// facts asks the others what they tell of themselves.
func (m *inquiries) facts(ctx context.Context, history bool) (answers []facts.Node, missing []string) {
	missing = m.inquire(ctx, func(id uint64) message.Body {
		return &message.FactsAsk{ID: id, History: history}
	}, func(from message.Peer, answer message.Body) {
		if b, ok := answer.(*message.Facts); ok {
			b.Node.Name, b.Node.Boot = from.Name, from.Boot
			answers = append(answers, b.Node)
		}
	})
	return answers, missing
}

// keyFacts asks the others what they know of a key.
func (m *inquiries) keyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (answers []facts.Key, missing []string) {
	missing = m.inquire(ctx, func(id uint64) message.Body {
		return &message.KeyAsk{ID: id, Key: key, Limits: limits}
	}, func(from message.Peer, answer message.Body) {
		if b, ok := answer.(*message.KeyFacts); ok {
			b.Key.Node = from.Name
			answers = append(answers, b.Key)
		}
	})
	return answers, missing
}

// queue of control messages takes what other nodes send: loads, and questions that people ask, are for the APIs, all else is for the cluster node.
type controlQueue struct{ *Node }

// Deliver implements peer.ControlQueue.
func (m controlQueue) Deliver(e message.Envelope) {
	switch b := e.Body.(type) {
	case *message.Load:
		if e.To.Boot == m.boot {
			m.takeLoad(b)
		}
	case *message.TopAsk, *message.Top, *message.FactsAsk, *message.Facts, *message.KeyAsk, *message.KeyFacts:
		if e.To.Boot == m.boot {
			m.inquiries.deliver(e)
		}
	default:
		m.cluster.Deliver(e)
	}
}

func (n *Node) takeLoad(b *message.Load) {
	n.service.TakeLoad(limiter.LoadReport{Domain: b.Domain, Pool: b.Pool, Reporter: b.Reporter, Load: b.Load, Stamp: b.Stamp})
}

// spreadLoad tells the other nodes of a report that this one was given.
func (n *Node) spreadLoad(r limiter.LoadReport) {
	n.cluster.Tell(&message.Load{Domain: r.Domain, Pool: r.Pool, Reporter: r.Reporter, Load: r.Load, Stamp: r.Stamp})
}
