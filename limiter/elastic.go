package limiter

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// maxRounds bounds how often an all-or-nothing batch is decided again: a key's own limits may deny in the second round a check
// that they had admitted in the first.
const maxRounds = 3

// askPools has the pools decide the checks that the rules' own limits denied. It is called between decide and finish.
func (l *Limiter) askPools(ctx context.Context, book *ruleBook, b *Batch) {
	if len(book.pools) == 0 {
		return
	}
	atomic := b.asked.AllOrNothing && len(b.asked.Requests) > 1
	if atomic {
		l.decideWithPools(ctx, book, b)
		b.asked.AllOrNothing = false
	}
	// In an all-or-nothing batch reads and shadows are left, whose denials fail no batch; in any other all denials.
	b.turned = b.turned[:0]
	for j, i := range b.places {
		verb := b.asked.Requests[j].Verb
		if b.deniedOwn(j) && !b.Results[i].asked && (!atomic || verb == bucket.Read || b.Results[i].shadow()) {
			b.turned = append(b.turned, poolCheck{i, verb})
		}
	}
	if len(b.turned) == 0 {
		return
	}
	clear(b.asked.Requests)
	clear(b.asked.Answers)
	b.asked.Requests, b.places = b.asked.Requests[:0], b.places[:0]
	for _, t := range b.turned {
		b.ask(t.place, l.poolRequest(book, b, t.place, t.verb))
	}
	b.asked.Answers = resize(b.asked.Answers, len(b.asked.Requests))
	l.config.Decider.Decide(ctx, &b.asked)
	for j, i := range b.places {
		b.Results[i].grant(&b.asked.Answers[j])
	}
}

// poolCheck is a check that its rule's pool decides: its place among the checks, or among the requests of an all-or-nothing
// batch, and the verb.
type poolCheck struct {
	place int
	verb  bucket.Verb
}

// deniedOwn reports whether the limits of request j's rule denied it and the rule has a pool. A pool may not overrule a
// fallback.
func (b *Batch) deniedOwn(j int) bool {
	r := &b.Results[b.places[j]]
	return !r.Allowed && r.Err == nil && r.Rule != nil && r.Rule.Elastic != nil &&
		r.Source != check.Closed && !b.asked.Answers[j].GivenBack
}

// poolRequest returns the request of check i to its rule's pool, a Check or Read.
func (l *Limiter) poolRequest(book *ruleBook, b *Batch, i int, verb bucket.Verb) check.Request {
	c, rule := &b.Checks[i], b.Results[i].Rule
	pool := rule.Elastic.Pool
	step := book.pools[pool].at(l.config.Clock()).step
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
func (l *Limiter) decideWithPools(ctx context.Context, book *ruleBook, b *Batch) {
	for range maxRounds {
		if !l.turnToPools(book, b) {
			break
		}
		clear(b.asked.Answers)
		l.config.Decider.Decide(ctx, &b.asked)
		for j, i := range b.places {
			r, a := &b.Results[i], &b.asked.Answers[j]
			switch {
			case !r.asked:
				*r = Result{Rule: r.Rule, Limits: r.Limits}
				r.take(a)
			case a.GivenBack:
				// The pool would admit it, but another check has failed the batch.
				r.RetryAfter, r.givenBack = a.RetryAfter, true
			default:
				r.grant(a)
			}
		}
	}
	b.setRetry()
}

// turnToPools replaces the requests that failed the batch by those to the pools. It returns false, and changes nothing, if
// none failed, or one without a pool.
func (l *Limiter) turnToPools(book *ruleBook, b *Batch) bool {
	b.turned = b.turned[:0]
	for j, i := range b.places {
		r, q := &b.Results[i], &b.asked.Requests[j]
		switch {
		case q.Verb != bucket.Check || r.shadow() && r.Err == nil || b.asked.Answers[j].GivenBack || r.Err == nil && r.Allowed:
		case r.asked || !b.deniedOwn(j):
			return false
		default:
			b.turned = append(b.turned, poolCheck{j, q.Verb})
		}
	}
	for _, t := range b.turned {
		i := b.places[t.place]
		b.asked.Requests[t.place] = l.poolRequest(book, b, i, t.verb)
		b.Results[i].asked = true
	}
	return len(b.turned) > 0
}

// setRetry gives the admitted checks of a failed batch the retry time of those that failed it: the Decider knew the pools'
// denials, and not that the own limits may admit earlier.
func (b *Batch) setRetry() {
	retry, failed := bucket.Never, false
	for j, i := range b.places {
		r := &b.Results[i]
		if b.asked.Requests[j].Verb != bucket.Check || b.asked.Answers[j].GivenBack || r.shadow() || r.Err != nil || r.Allowed {
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
		if b.asked.Answers[j].GivenBack && !b.Results[i].shadow() {
			b.Results[i].RetryAfter = retry
		}
	}
}

// grant takes a, the decision of the rule's pool, into r, which the rule's own limits denied. Limit and owner stay those of
// the key itself.
func (r *Result) grant(a *check.Answer) {
	r.asked = true
	switch {
	case a.Err != nil || a.Source == check.Closed:
		r.fleeting = true // the pool is undecided, so it admits nothing
	case a.Allowed:
		r.Allowed, r.Elastic = true, true
		r.Soft, r.RetryAfter, r.Delay = false, 0, 0
	default:
		r.fleeting = a.Source != check.Owned && a.Source != check.Forwarded
		r.RetryAfter, r.age = min(r.RetryAfter, a.RetryAfter), max(r.age, a.Age)
	}
}
