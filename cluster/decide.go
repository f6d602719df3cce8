package cluster

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// lookEvery is after how many checks of a batch that are decided here the time is looked at.
const lookEvery = 64

// late reports whether the time of a batch that was begun then is over.
func (n *Node) late(ctx context.Context, began, now int64) bool {
	return ctx.Err() != nil || now-began >= int64(n.cfg.CheckTimeout)
}

// Decide implements check.Decider. It fills b.Answers, which has the length of
// b.Requests. Checks of one key are charged in the order of the batch.
//
// A retry after an answer that was lost may charge a check twice and never admits it
// twice. That holds for verb Charge too, and for checks of sync rules whose charge was
// not confirmed. A Refund whose answer was lost is not tried again, because doing it
// twice would admit more; it gets check.ErrNoHolder.
func (n *Node) Decide(ctx context.Context, b *check.Batch) {
	if b.AllOrNothing && len(b.Requests) > 1 {
		n.decideWhole(ctx, b)
		return
	}
	r := n.routing.Load()
	for i := range b.Requests {
		if q := &b.Requests[i]; !r.holds(q.Key) || q.Sync || q.Eventual {
			n.forward(ctx, b, nil)
			return
		}
	}
	right, now := n.right.Load(), n.cfg.Clock()
	if now >= right {
		n.forward(ctx, b, nil)
		return
	}
	lends := n.demands.Any() && onlyAsks(b)
	var f *forwarding // of what could not be decided, mostly nothing
	late := false
	for i := range b.Requests {
		if i%lookEvery == lookEvery-1 {
			at := n.cfg.Clock()
			if late = n.late(ctx, now, at); late {
				if f == nil {
					f = n.newForwarding(b, nil)
				}
				for j := i; j < len(b.Requests); j++ {
					f.pending = append(f.pending, pending{index: j, to: nobody})
				}
				break
			}
			if at < right { // renewed before it ended: there is no time between
				right = max(right, n.right.Load())
			}
		}
		q := &b.Requests[i].Request
		var cause error
		if f != nil {
			cause = f.stuck[q.Key]
		}
		if cause == nil {
			var d bucket.Decision
			v := bucket.Decided
			if !lends || !n.fromOwn(now, &b.Requests[i], &d) {
				d, _, v = n.table.Try(now, q, nil)
			}
			if v == bucket.Decided {
				b.Answers[i] = check.Answer{Decision: d, Source: check.Held, Holder: n.cfg.Name}
				if !d.Allowed && n.lent(now, q.Key) {
					b.Answers[i].Age = check.MaxDenied
				}
				if makesRoom(q.Verb) {
					n.madeRoom(now, q.Key)
				}
				continue
			}
			cause = undecided(v)
		}
		if f == nil {
			f = n.newForwarding(b, nil)
		}
		f.stick(q.Key, cause)
		f.pending = append(f.pending, pending{index: i, to: nobody, cause: cause})
	}
	if n.cfg.Clock() >= right {
		n.overslept(ctx, b, r)
		return
	}
	if f == nil {
		n.stats.held.Add(uint64(len(b.Requests)))
		return
	}
	n.stats.held.Add(uint64(len(b.Requests) - len(f.pending)))
	if late {
		f.fail(r, context.DeadlineExceeded)
		f.release()
		return
	}
	n.finish(ctx, f)
}

// overslept asks again what was decided here while the right went: this process was stopped in
// between, perhaps for long, and another may decide these keys by now. A right that was renewed
// meanwhile is of no help: it says nothing of the time between. What was charged stands, as if the
// answers had been lost.
func (n *Node) overslept(ctx context.Context, b *check.Batch, r *routing) {
	f := n.newForwarding(b, nil)
	for i := range b.Requests {
		b.Answers[i] = check.Answer{}
		f.pending = append(f.pending, pending{index: i})
		f.unanswered(r, &f.pending[i], r.self, errOverslept)
	}
	f.sift()
	n.finish(ctx, f)
}
