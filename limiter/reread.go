package limiter

import (
	"context"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// reread makes the results of an all-or-nothing batch that failed say what is left now that its
// charges are undone: the Decider's answers were made with them. A share is counted back instead:
// to read it could mean to wait for the owner once more.
func (l *Limiter) reread(ctx context.Context, set *rules.Set, b *Batch) {
	b.requeue()
	undone := make(map[bucket.Key]bool)
	for _, given := range []bool{true, false} { // then those that share a counter with an undone one
		for i := range b.Results {
			c, r := &b.Checks[i], &b.Results[i]
			if r.givenBack != given || r.Err != nil || !r.Counted() {
				continue
			}
			if r.Source == check.Share {
				if given {
					r.Remaining += min(r.Limit-r.Remaining, c.Cost*max(1, r.Limits.At(int(r.Index)).Cost))
				}
				continue
			}
			if key := l.counterKey(b, c, r.Rule); given || undone[key] {
				undone[key] = true
				verb, was := c.Verb, *r
				c.Verb = bucket.Read
				l.queue(set, b, i)
				if c.Verb = verb; r.Err != nil { // the inline limits have no room any more
					*r = was
				} else { // the owner has undone the charges, so it knows
					b.queued.Requests[len(b.queued.Requests)-1].Eventual = false
				}
			}
		}
	}
	if len(b.places) == 0 {
		return
	}
	b.queued.Answers = resize(b.queued.Answers, len(b.queued.Requests))
	l.config.Decider.Decide(ctx, &b.queued)
	for j, i := range b.places {
		r, now := &b.Results[i], Result{Limits: b.Results[i].Limits}
		now.take(&b.queued.Requests[j], &b.queued.Answers[j])
		if now.Err == nil && now.Counted() && (r.givenBack || r.Allowed || now.Index == r.Index) {
			r.Index, r.Limit, r.Remaining, r.ResetAfter, r.Period = now.Index, now.Limit, now.Remaining, now.ResetAfter, now.Period
		}
	}
}
