package limiter

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// spacePool is the first byte of what is hashed into the counter key of a pool.
const spacePool = 'p'

// maxRounds bounds how often an all-or-nothing batch is decided anew: a key's own limits may deny in the
// second round what they had admitted in the first.
const maxRounds = 3

// askPools asks the pools for what the rules' own limits have denied. It is called when the batch has been
// decided and before it is settled.
func (s *Limiter) askPools(ctx context.Context, book *ruleBook, b *Batch) {
	if len(book.pools) == 0 {
		return
	}
	whole := b.asked.AllOrNothing && len(b.asked.Requests) > 1
	if whole {
		s.askWhole(ctx, book, b)
		b.asked.AllOrNothing = false
	}
	// What is left is in an all-or-nothing batch what only looks: reads and shadows, whose denials fail
	// no batch. In any other it is everything that was denied.
	b.turned = b.turned[:0]
	for j, i := range b.places {
		verb := b.asked.Requests[j].Verb
		if b.deniedOwn(j) && !b.Results[i].asked && (!whole || verb == bucket.Read || b.Results[i].shadow()) {
			b.turned = append(b.turned, turn{i, verb})
		}
	}
	if len(b.turned) == 0 {
		return
	}
	clear(b.asked.Requests)
	clear(b.asked.Answers)
	b.asked.Requests, b.places = b.asked.Requests[:0], b.places[:0]
	for _, t := range b.turned {
		b.ask(t.place, s.poolRequest(book, b, t.place, t.verb))
	}
	b.room()
	s.config.Decider.Decide(ctx, &b.asked)
	for j, i := range b.places {
		b.Results[i].grant(&b.asked.Answers[j])
	}
}

// turn is a question to be put to a pool: its place among the checks, or among the questions of an
// all-or-nothing batch, and the verb.
type turn struct {
	place int
	verb  bucket.Verb
}

// deniedOwn reports whether the limits of question j's rule denied it and the rule has a pool. A
// denial without a look at the counter is none that a pool may overrule.
func (b *Batch) deniedOwn(j int) bool {
	r := &b.Results[b.places[j]]
	return !r.Allowed && r.Err == nil && r.Rule != nil && r.Rule.Elastic != nil &&
		r.Source != check.Closed && !b.asked.Answers[j].GivenBack
}

// poolRequest returns the question to the pool of check i, a Check or Read.
func (s *Limiter) poolRequest(book *ruleBook, b *Batch, i int, verb bucket.Verb) check.Request {
	c, rule := &b.Checks[i], b.Results[i].Rule
	pool := rule.Elastic.Pool
	step := book.pools[pool].step(s.config.Clock())
	if rule.Shadow {
		verb = bucket.Read
	}
	q := check.Request{
		Request: bucket.Request{
			Limits: pool.Limits(step), Cost: c.Cost, Verb: verb,
			Reserve:   pool.Reserve(rule.Elastic.Priority(c.Descriptor), step),
			Transient: pool.Replication == rules.ReplicateNone,
			DenyLost:  true, // closed, as below
		},
		OnFailure: rules.FailClosed, OnPartition: rules.FailClosed,
		Sync: pool.Replication == rules.ReplicateSync,
	}
	b.key = pool.AppendKey(append(b.key[:0], spacePool))
	q.Key = s.config.Hasher.Key(b.key)
	return q
}

// askWhole decides an all-or-nothing batch, which failed, anew, with the pools in the place of the
// limits that denied: so what is taken from a pool is given back with the rest when another check
// fails the batch. A batch that fails for another reason too is left as it is.
func (s *Limiter) askWhole(ctx context.Context, book *ruleBook, b *Batch) {
	for range maxRounds {
		if !s.turnToPools(book, b) {
			break
		}
		clear(b.asked.Answers)
		s.config.Decider.Decide(ctx, &b.asked)
		for j, i := range b.places {
			r, a := &b.Results[i], &b.asked.Answers[j]
			switch {
			case !r.asked:
				*r = Result{Rule: r.Rule, Limits: r.Limits}
				r.take(a)
			case a.GivenBack:
				// The pool would admit it, and another check has failed the batch.
				r.RetryAfter, r.givenBack = a.RetryAfter, true
			default:
				r.grant(a)
			}
		}
	}
	b.retryWhole()
}

// turnToPools replaces the questions that failed the batch by those to the pools. It reports false,
// and changes nothing, where that cannot help: nothing failed, or something without a pool to ask.
func (s *Limiter) turnToPools(book *ruleBook, b *Batch) bool {
	b.turned = b.turned[:0]
	for j, i := range b.places {
		r, q := &b.Results[i], &b.asked.Requests[j]
		switch {
		case q.Verb != bucket.Check || r.shadow() && r.Err == nil || b.asked.Answers[j].GivenBack || r.Err == nil && r.Allowed:
		case r.asked || !b.deniedOwn(j):
			return false
		default:
			b.turned = append(b.turned, turn{j, q.Verb})
		}
	}
	for _, t := range b.turned {
		i := b.places[t.place]
		b.asked.Requests[t.place] = s.poolRequest(book, b, i, t.verb)
		b.Results[i].asked = true
	}
	return len(b.turned) > 0
}

// retryWhole tells the checks of a failed batch that were admitted when those that failed it may be
// tried again: the Decider knew the pools' denials, and not that the own limits may admit earlier.
func (b *Batch) retryWhole() {
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

// grant takes a, the answer of the rule's pool, into r, which the rule's own limits have denied. What
// it says of a limit, and who decided, stays about the key's own.
func (r *Result) grant(a *check.Answer) {
	r.asked = true
	switch {
	case a.Err != nil || a.Source == check.Closed:
		r.fleeting = true // nobody could decide for the pool, so it gives nothing
	case a.Allowed:
		r.Allowed, r.Elastic = true, true
		r.Soft, r.RetryAfter, r.Delay = false, 0, 0
	default:
		r.fleeting = a.Source != check.Held && a.Source != check.Forwarded
		r.RetryAfter, r.age = min(r.RetryAfter, a.RetryAfter), max(r.age, a.Age)
	}
}
