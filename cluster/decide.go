package cluster

import (
	"context"

	"github.com/sluice-project/sluice/internal/check"
)

// Decide implements check.Decider. It fills b.Answers, which has the length of
// b.Requests. Checks of one key are charged in the order of the batch.
//
// A retry after an answer that was lost may charge a check twice and never admits it
// twice. That holds for verb Charge too. A Refund whose answer was lost is not tried
// again, because doing it twice would admit more; it gets check.ErrNoHolder.
func (n *Node) Decide(ctx context.Context, b *check.Batch) {
	if b.AllOrNothing && len(b.Requests) > 1 {
		n.decideWhole(ctx, b)
		return
	}
	r := n.routing.Load()
	for i := range b.Requests {
		if !r.holds(b.Requests[i].Key) {
			n.forward(ctx, b, nil)
			return
		}
	}
	now := n.cfg.Clock()
	for i := range b.Requests {
		b.Answers[i] = check.Answer{
			Decision: n.table.Do(now, &b.Requests[i].Request),
			Source:   check.Held, Holder: n.cfg.Name,
		}
	}
	n.stats.held.Add(uint64(len(b.Requests)))
}
