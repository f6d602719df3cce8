package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/topk"
	"github.com/sluicecluster/sluice/limiter"
)

const (
	// queryTimeout bounds the wait for responses.
	queryTimeout = time.Second
	// maxQueries bounds the concurrent queries.
	maxQueries = 16
)

// peerQueries asks the other nodes for their state, for people. A node that does not answer is missing in the result.
type peerQueries struct {
	others func() map[message.Peer]string // the other nodes and their addresses
	ask    func(ctx context.Context, addr string, request message.Body) (message.Body, error)
	slots  chan struct{} // has a value for each query in progress
}

func newPeerQueries(others func() map[message.Peer]string, ask func(context.Context, string, message.Body) (message.Body, error)) *peerQueries {
	return &peerQueries{others: others, ask: ask, slots: make(chan struct{}, maxQueries)}
}

// queryOthers asks all others, and returns the answers of type A within queryTimeout and the sorted names of the other nodes.
func queryOthers[A message.Body](ctx context.Context, q *peerQueries, request message.Body) (answers map[message.Peer]A, missing []string) {
	others := q.others()
	answers = make(map[message.Peer]A, len(others))
	select {
	case q.slots <- struct{}{}:
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		var mu sync.Mutex
		var asked sync.WaitGroup
		for p, addr := range others {
			asked.Go(func() {
				answer, err := q.ask(ctx, addr, request)
				if a, ok := answer.(A); ok && err == nil {
					mu.Lock()
					answers[p] = a
					mu.Unlock()
				}
			})
		}
		asked.Wait()
		<-q.slots
	default: // too many queries
	}
	for p := range others {
		if _, ok := answers[p]; !ok {
			missing = append(missing, p.Name)
		}
	}
	slices.Sort(missing)
	return answers, missing
}

// answerRequest answers a query of another node; nil is no answer.
func (n *Node) answerRequest(ctx context.Context, b message.Body) message.Body {
	switch q := b.(type) {
	case *message.TopRequest:
		return topAnswer(n.service.TopHere(limiter.TopQuery{By: limiter.TopBy(q.By), Domain: q.Domain}))
	case *message.FactsRequest:
		return &message.FactsResponse{Node: n.service.FactsHere(ctx, int(q.Slots))}
	case *message.KeyRequest:
		if q.Limits == nil {
			return nil
		}
		k, err := n.cluster.KeyFacts(ctx, q.Key, q.Limits)
		if err != nil {
			return nil // this node stops
		}
		return &message.KeyResponse{Key: k}
	case *message.RegionRequest:
		return n.regionAnswer(q)
	case *message.RegionMessages:
		n.cluster.Deliver(message.Envelope{Body: q})
		return new(message.RegionResponse)
	case *message.PassRequest:
		return n.passAnswer(ctx, q)
	case *message.TurnRequest:
		return &message.TurnResponse{Moved: n.service.AwaitTurn(ctx, &q.Turn)}
	}
	return nil
}

func topAnswer(top limiter.NodeTop) *message.TopResponse {
	out := &message.TopResponse{Off: top.Off, Covers: int64(top.Covers)}
	for _, k := range top.Keys {
		out.Keys = append(out.Keys, message.TopKey(k))
	}
	return out
}

// AskTop implements limiter.Cluster.
func (q *peerQueries) AskTop(ctx context.Context, query limiter.TopQuery) (answers []limiter.NodeTop, missing []string) {
	got, missing := queryOthers[*message.TopResponse](ctx, q, &message.TopRequest{By: uint8(query.By), Domain: query.Domain})
	for from, b := range got {
		n := limiter.NodeTop{Node: from.Name, Off: b.Off, Covers: max(0, time.Duration(b.Covers))}
		for _, k := range b.Keys {
			n.Keys = append(n.Keys, topk.Entry(k))
		}
		answers = append(answers, n)
	}
	return answers, missing
}

// AskFacts asks the others for their facts, with the newest slots of their histories.
func (q *peerQueries) AskFacts(ctx context.Context, slots int) (answers []facts.Node, missing []string) {
	got, missing := queryOthers[*message.FactsResponse](ctx, q, &message.FactsRequest{Slots: uint8(slots)})
	for from, b := range got {
		b.Node.Name, b.Node.Boot = from.Name, from.Boot
		answers = append(answers, b.Node)
	}
	return answers, missing
}

// AskKeyFacts implements limiter.Cluster.
func (q *peerQueries) AskKeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (answers []facts.Key, missing []string) {
	got, missing := queryOthers[*message.KeyResponse](ctx, q, &message.KeyRequest{Key: key, Limits: limits})
	for from, b := range got {
		b.Key.Node = from.Name
		answers = append(answers, b.Key)
	}
	return answers, missing
}

// AskTurn implements limiter.Cluster.
func (q *peerQueries) AskTurn(ctx context.Context, owner string, t *facts.Turn) (moved bool) {
	for p, addr := range q.others() {
		if p.Name == owner {
			answer, err := q.ask(ctx, addr, &message.TurnRequest{Turn: *t})
			a, ok := answer.(*message.TurnResponse)
			return err != nil || !ok || a.Moved
		}
	}
	return true
}

// controlQueue takes control messages of other nodes: loads are for the limiter, all others for the cluster node.
type controlQueue struct{ *Node }

// Deliver implements peer.ControlQueue.
func (m controlQueue) Deliver(e message.Envelope) {
	if b, ok := e.Body.(*message.Load); !ok {
		m.cluster.Deliver(e)
	} else if e.To.Boot == m.boot {
		m.service.TakeLoad(limiter.LoadReport(*b))
	}
}

// KeyFacts implements limiter.Cluster.
func (n limiterCluster) KeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (facts.Key, error) {
	return n.cluster.KeyFacts(ctx, key, limits)
}

// SpreadLoad implements limiter.Cluster.
func (n limiterCluster) SpreadLoad(r limiter.LoadReport) { n.cluster.Broadcast(new(message.Load(r))) }
