package gubernator

import (
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
	"github.com/sluice-project/sluice/rules"
)

// How counters are named: see docs/gubernator.md, which others may rely on.
const (
	domainPrefix = "gubernator/"
	// maxName is the longest name, in bytes.
	maxName = limiter.MaxText - len(domainPrefix)

	keyUnique = "unique_key"
	// keyAlgorithm leads the descriptor of leaky buckets, so that a changed algorithm starts anew.
	keyAlgorithm = "algorithm"
	leakyValue   = "leaky_bucket"
)

// item is one request of a call, on its way through.
type item struct {
	request *gubernatorv1.RateLimitReq
	// fault is what is wrong with it. Otherwise the batch's checks from place first to
	// place last are its own, and the last of them is answered.
	fault       string
	first, last int
}

// ask adds to b what requests ask at now, and returns them in their order.
func ask(b *limiter.Batch, requests []*gubernatorv1.RateLimitReq, now time.Time) []item {
	items := make([]item, len(requests))
	for i, q := range requests {
		items[i] = item{request: q, fault: fault(q), first: len(b.Checks)}
		if items[i].fault == "" {
			add(b, q, limitOf(q, now))
		}
		items[i].last = len(b.Checks) - 1
	}
	return items
}

// add adds the checks of q, which is held to l.
func add(b *limiter.Batch, q *gubernatorv1.RateLimitReq, l bucket.Limit) {
	reset := has(q, gubernatorv1.Behavior_RESET_REMAINING)
	if reset {
		name(b.Add(), q, l).Verb = bucket.Reset
	}
	hits := q.GetHits()
	// A window that is reset is not charged; a leaky bucket is, once it is full.
	if reset && (hits <= 0 || !leaky(q)) {
		return
	}
	c := name(b.Add(), q, l)
	switch {
	case hits > 0:
		c.Verb, c.Cost = bucket.Check, hits
		c.Drain = has(q, gubernatorv1.Behavior_DRAIN_OVER_LIMIT)
	case hits == 0:
		c.Verb, c.Cost = bucket.Read, 0
	default:
		c.Verb, c.Cost = bucket.Refund, -max(hits, -math.MaxInt64)
	}
}

// name makes c be about the counter of q and held to l.
func name(c *limiter.Check, q *gubernatorv1.RateLimitReq, l bucket.Limit) *limiter.Check {
	c.Domain = domainPrefix + q.GetName()
	if leaky(q) {
		c.Descriptor = append(c.Descriptor, rules.Entry{Key: keyAlgorithm, Value: leakyValue})
	}
	c.Descriptor = append(c.Descriptor, rules.Entry{Key: keyUnique, Value: q.GetUniqueKey()})
	c.Limits = append(c.Limits, l)
	return c
}
