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
	// maxInquiries bounds the questions that wait for others at a time.
	maxInquiries = 16
)

// inquiries asks other nodes about themselves, for people. Who does not answer is missing in one answer, and no more.
type inquiries struct {
	// others are whom to ask, and their addresses.
	others func() map[message.Peer]string
	// ask is peer.Pool.Ask.
	ask func(ctx context.Context, addr string, question message.Body) (message.Body, error)
	// slots has a value for each question that waits for others.
	slots chan struct{}
}

func newInquiries(others func() map[message.Peer]string, ask func(context.Context, string, message.Body) (message.Body, error)) *inquiries {
	return &inquiries{others: others, ask: ask, slots: make(chan struct{}, maxInquiries)}
}

// inquire asks all others, and returns what they have answered within inquiryPatience and the sorted names of those who have not
// answered with an A.
func inquire[A message.Body](ctx context.Context, q *inquiries, question message.Body) (answers map[message.Peer]A, missing []string) {
	others := q.others()
	answers = make(map[message.Peer]A, len(others))
	select {
	case q.slots <- struct{}{}:
		ctx, cancel := context.WithTimeout(ctx, inquiryPatience)
		defer cancel()
		var mu sync.Mutex
		var asked sync.WaitGroup
		for p, addr := range others {
			asked.Go(func() {
				answer, err := q.ask(ctx, addr, question)
				if a, ok := answer.(A); ok && err == nil {
					mu.Lock()
					answers[p] = a
					mu.Unlock()
				}
			})
		}
		asked.Wait()
		<-q.slots
	default: // too many questions: nobody is asked
	}
	for p := range others {
		if _, ok := answers[p]; !ok {
			missing = append(missing, p.Name)
		}
	}
	slices.Sort(missing)
	return answers, missing
}

// answerQuestion answers a question of another node about this one; nil is no answer.
func (n *Node) answerQuestion(ctx context.Context, b message.Body) message.Body {
	switch q := b.(type) {
	case *message.TopAsk:
		return topAnswer(n.service.TopHere(limiter.TopQuery{By: limiter.TopBy(q.By), Domain: q.Domain}))
	case *message.FactsAsk:
		return &message.Facts{Node: n.service.FactsHere(ctx, q.History)}
	case *message.KeyAsk:
		if q.Limits == nil {
			return nil
		}
		k, err := n.cluster.KeyFacts(ctx, q.Key, q.Limits)
		if err != nil {
			return nil // this node stops
		}
		return &message.KeyFacts{Key: k}
	}
	return nil
}

func topAnswer(top limiter.NodeTop) *message.Top {
	out := &message.Top{Off: top.Off, Covers: int64(top.Covers)}
	for _, k := range top.Keys {
		out.Keys = append(out.Keys, message.TopKey{Key: k.Key, Name: k.Name, Count: k.Count, Error: k.Error})
	}
	return out
}

// top asks the others for their heaviest keys.
func (m *inquiries) top(ctx context.Context, q limiter.TopQuery) (answers []limiter.NodeTop, missing []string) {
	got, missing := inquire[*message.Top](ctx, m, &message.TopAsk{By: uint8(q.By), Domain: q.Domain})
	for from, b := range got {
		n := limiter.NodeTop{Node: from.Name, Off: b.Off, Covers: max(0, time.Duration(b.Covers))}
		for _, k := range b.Keys {
			n.Keys = append(n.Keys, heavy.Entry{Key: k.Key, Name: k.Name, Count: k.Count, Error: k.Error})
		}
		answers = append(answers, n)
	}
	return answers, missing
}

// facts asks the others what they tell of themselves.
func (m *inquiries) facts(ctx context.Context, history bool) (answers []facts.Node, missing []string) {
	got, missing := inquire[*message.Facts](ctx, m, &message.FactsAsk{History: history})
	for from, b := range got {
		b.Node.Name, b.Node.Boot = from.Name, from.Boot
		answers = append(answers, b.Node)
	}
	return answers, missing
}

// keyFacts asks the others what they know of a key.
func (m *inquiries) keyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (answers []facts.Key, missing []string) {
	got, missing := inquire[*message.KeyFacts](ctx, m, &message.KeyAsk{Key: key, Limits: limits})
	for from, b := range got {
		b.Key.Node = from.Name
		answers = append(answers, b.Key)
	}
	return answers, missing
}

// controlQueue takes what other nodes send: loads are for the APIs, all else is for the cluster node.
type controlQueue struct{ *Node }

// Deliver implements peer.ControlQueue.
func (m controlQueue) Deliver(e message.Envelope) {
	if b, ok := e.Body.(*message.Load); !ok {
		m.cluster.Deliver(e)
	} else if e.To.Boot == m.boot {
		m.takeLoad(b)
	}
}

func (n *Node) takeLoad(b *message.Load) {
	n.service.TakeLoad(limiter.LoadReport{Domain: b.Domain, Pool: b.Pool, Reporter: b.Reporter, Load: b.Load, Stamp: b.Stamp})
}

// spreadLoad tells the other nodes of a report that this one was given.
func (n *Node) spreadLoad(r limiter.LoadReport) {
	n.cluster.Tell(&message.Load{Domain: r.Domain, Pool: r.Pool, Reporter: r.Reporter, Load: r.Load, Stamp: r.Stamp})
}
