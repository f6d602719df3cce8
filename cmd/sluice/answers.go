package main

import (
	"context"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/heavy"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/limiter"
)

// answerAsk answers a question of another node about this one; nil is no answer.
func (n *node) answerAsk(ctx context.Context, b message.Body) message.Body {
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
