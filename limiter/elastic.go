package limiter

import (
	"context"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// maxRounds bounds how often an all-or-nothing batch is decided again: a key's own limits may deny in the second round a check
// that they had admitted in the first.
const maxRounds = 3

// decideByPools lets pools decide the checks that their rules' own limits denied. It is called between decide and finish.
func (l *Limiter) decideByPools(ctx context.Context, active *activeRules, b *Batch) {
	if len(active.pools) == 0 || b.reserving != nil {
		return
	}
	atomic := b.queued.AllOrNothing && len(b.queued.Requests) > 1
	if atomic {
		l.decideWithPools(ctx, active, b)
		b.queued.AllOrNothing = false
	}
	// In an all-or-nothing batch only denied reads and shadows are left: they have not failed it.
	b.poolChecks = b.poolChecks[:0]
	for j, i := range b.places {
		verb := b.queued.Requests[j].Verb
		if b.deniedOwn(j) && !b.Results[i].poolAsked && (!atomic || verb == bucket.Read || b.Results[i].shadow()) {
			b.poolChecks = append(b.poolChecks, poolCheck{i, verb})
		}
	}
	if len(b.poolChecks) == 0 {
		return
	}
	b.requeue()
	for _, t := range b.poolChecks {
		b.enqueue(t.place, l.poolRequest(active, b, t.place, t.verb))
	}
	b.queued.Answers = resize(b.queued.Answers, len(b.queued.Requests))
	l.config.Decider.Decide(ctx, &b.queued)
	for j, i := range b.places {
		b.Results[i].takePool(&b.queued.Answers[j])
	}
}

// poolCheck is a check that its rule's pool decides. place is its index in the checks; in an all-or-nothing batch, in the
// requests.
type poolCheck struct {
	place int
	verb  bucket.Verb
}

// deniedOwn reports whether a pool may admit request j: the rule has one, and its own limits denied, not a fallback.
func (b *Batch) deniedOwn(j int) bool {
	r := &b.Results[b.places[j]]
	return !r.Allowed && r.Err == nil && r.Rule != nil && r.Rule.Elastic != nil &&
		r.Source != check.Closed && !b.queued.Answers[j].GivenBack
}

// poolRequest returns the request of check i to its rule's pool, a Check or Read.
func (l *Limiter) poolRequest(active *activeRules, b *Batch, i int, verb bucket.Verb) check.Request {
	c, rule := &b.Checks[i], b.Results[i].Rule
	pool := rule.Elastic.Pool
	step := active.pools[pool].at(l.config.Clock()).step
	if rule.Shadow {
		verb = bucket.Read
	}
	q := check.Request{
		Request: bucket.Request{
			Limits: pool.Limits(step), Cost: c.Cost, Verb: verb,
			Reserve:      pool.Reserve(rule.Elastic.Priority(c.Descriptor), step),
			Unreplicated: pool.Replication == rules.ReplicateNone,
			DenyLost:     true,
		},
		OnFailure: rules.FailClosed, OnPartition: rules.FailClosed,
		Sync: pool.Replication == rules.ReplicateSync,
	}
	b.key = pool.AppendKey(append(b.key[:0], spacePool))
	q.Key = l.config.Hasher.Key(b.key)
	return q
}

// decideWithPools decides an all-or-nothing batch that failed again, with the pools instead of the limits that denied: so a pool's
// charge is given back with the rest when another check fails the batch. A batch that fails for another reason too stays.
func (l *Limiter) decideWithPools(ctx context.Context, active *activeRules, b *Batch) {
	for range maxRounds {
		if !l.replaceByPools(active, b) {
			break
		}
		clear(b.queued.Answers)
		l.config.Decider.Decide(ctx, &b.queued)
		for j, i := range b.places {
			r, a := &b.Results[i], &b.queued.Answers[j]
			switch {
			case !r.poolAsked:
				*r = Result{Rule: r.Rule, Limits: r.Limits}
				r.take(&b.queued.Requests[j], a)
			case a.GivenBack:
				// The pool would admit it, but another check has failed the batch.
				r.RetryAfter, r.givenBack = a.RetryAfter, true
			default:
				r.takePool(a)
			}
		}
	}
	b.setRetry()
}

// replaceByPools replaces the requests that failed the batch by requests to their pools. It returns false, and changes nothing, if
// none failed, or one that no pool can admit.
func (l *Limiter) replaceByPools(active *activeRules, b *Batch) bool {
	b.poolChecks = b.poolChecks[:0]
	for j, i := range b.places {
		r, q := &b.Results[i], &b.queued.Requests[j]
		switch {
		case q.Verb != bucket.Check || r.shadow() && r.Err == nil || b.queued.Answers[j].GivenBack || r.Err == nil && r.Allowed:
		case r.poolAsked || !b.deniedOwn(j):
			return false
		default:
			b.poolChecks = append(b.poolChecks, poolCheck{j, q.Verb})
		}
	}
	for _, t := range b.poolChecks {
		i := b.places[t.place]
		b.queued.Requests[t.place] = l.poolRequest(active, b, i, t.verb)
		b.Results[i].poolAsked = true
	}
	return len(b.poolChecks) > 0
}

// setRetry sets the retry time of the admitted checks of a failed batch to that of the checks that failed it: the Decider only
// knew when the pools would admit, and the rules' own limits may admit earlier.
func (b *Batch) setRetry() {
	retry, failed := bucket.Never, false
	for j, i := range b.places {
		r := &b.Results[i]
		if b.queued.Requests[j].Verb != bucket.Check || b.queued.Answers[j].GivenBack || r.shadow() || r.Err != nil || r.Allowed {
			continue
		}
		if !failed || r.RetryAfter > retry {
			failed, retry = true, r.RetryAfter
		}
	}
	if !failed || retry == bucket.Never {
		return
	}
	for j, i := range b.places {
		if b.queued.Answers[j].GivenBack && !b.Results[i].shadow() {
			b.Results[i].RetryAfter = retry
		}
	}
}

// takePool takes a, the decision of the rule's pool, into r, which the rule's own limits denied. Limit and owner stay those of
// the key itself.
func (r *Result) takePool(a *check.Answer) {
	r.poolAsked = true
	switch {
	case a.Err != nil || a.Source == check.Closed:
		r.uncacheable = true // no decision of the pool: it admits nothing
	case a.Allowed:
		r.Allowed, r.Elastic = true, true
		r.Soft, r.RetryAfter, r.Delay = false, 0, 0
	default:
		r.uncacheable = a.Source != check.Owned && a.Source != check.Forwarded
		r.RetryAfter, r.age = min(r.RetryAfter, a.RetryAfter), max(r.age, a.Age)
	}
}
