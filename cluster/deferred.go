package cluster

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/check"
)

const (
	// deferredPeriod is how often deferred charges are sent to owners, deferredBatch of how many keys at once.
	deferredPeriod = 100 * time.Millisecond
	deferredBatch  = 512
)

// sendDueDeferred sends deferred charges if this node has quorum, and reports whether there are more.
func (n *Node) sendDueDeferred(ctx context.Context) (more bool) {
	if n.mayDecide(n.cfg.Clock()) {
		n.sendDeferred(ctx, deferredBatch)
	}
	keys, _ := n.shares.Charges.Count()
	return keys > 0
}

// sendDeferred sends the deferred charges of the oldest keys, at most so many.
func (n *Node) sendDeferred(ctx context.Context, most int) {
	defer n.shares.Charges.Answered()
	parts := n.parts(n.routing.Load().voters)
	list := n.shares.Take(n.cfg.Clock(), parts, most)
	if len(list) == 0 {
		return
	}
	b := check.Batch{Requests: make([]check.Request, len(list)), Answers: make([]check.Answer, len(list))}
	f := n.newForwarding(&b, nil)
	f.once = true
	for i, c := range list {
		if c.Limits.Home() != "" { // a cut begins and ends while charges are on their way
			c.Once = cmp.Or(c.Once, rand.Uint64()|1) // #nosec G404 -- a name
		}
		list[i] = c
		b.Requests[i].Request = bucket.Request{Key: c.Key, Limits: c.Limits, Cost: c.Due, Verb: bucket.Charge, Unreplicated: c.Unreplicated, Once: c.Once}
		f.pending = append(f.pending, pending{index: i})
	}
	n.finish(ctx, f)
	for i, a := range b.Answers {
		outcome := share.NotCharged
		switch {
		case a.Err == nil:
			n.stats.deferredCharged.Add(uint64(list[i].Due))
			outcome = share.Charged
		case errors.Is(a.Err, check.ErrAmbiguous):
			outcome = share.AnswerLost
		}
		n.shares.Ended(n.cfg.Clock(), list[i], parts, outcome)
	}
}
