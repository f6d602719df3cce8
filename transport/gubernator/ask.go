package gubernator

import (
	"fmt"
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
	"github.com/sluice-project/sluice/rules"
)

// The names of counters, as docs/gubernator.md promises.
const (
	domainPrefix = "gubernator/"
	// maxName is the longest name, in bytes.
	maxName = limiter.MaxText - len(domainPrefix)

	keyUnique = "unique_key"
	// keyAlgorithm leads the descriptor of leaky buckets, so that another algorithm has another counter.
	keyAlgorithm = "algorithm"
	leakyValue   = "leaky_bucket"
)

// item is one request of a call.
type item struct {
	request *gubernatorv1.RateLimitReq
	// fault is why it is invalid. Otherwise the batch's checks from first to last are its own, and the last has its result.
	fault       string
	first, last int
}

// ask adds the checks of requests at now to b, and returns the items in order.
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

// name sets the counter of c to that of q, and its limit to l.
func name(c *limiter.Check, q *gubernatorv1.RateLimitReq, l bucket.Limit) *limiter.Check {
	c.Domain = domainPrefix + q.GetName()
	if leaky(q) {
		c.Descriptor = append(c.Descriptor, rules.Entry{Key: keyAlgorithm, Value: leakyValue})
	}
	c.Descriptor = append(c.Descriptor, rules.Entry{Key: keyUnique, Value: q.GetUniqueKey()})
	c.Limits = append(c.Limits, l)
	return c
}

// units are the meanings of a duration under DURATION_IS_GREGORIAN.
var units = [...]bucket.Unit{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month, bucket.Year}

// unitAround returns the beginning of the unit, in UTC, that t lies in, and that of the next.
func unitAround(u bucket.Unit, t time.Time) (begin, end time.Time) {
	t = t.UTC()
	switch u {
	case bucket.Month:
		begin = time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
		return begin, begin.AddDate(0, 1, 0)
	case bucket.Year:
		begin = time.Date(t.Year(), time.January, 1, 0, 0, 0, 0, time.UTC)
		return begin, begin.AddDate(1, 0, 0)
	}
	// Truncate counts from a Monday, on which weeks begin.
	length := limiter.PeriodOf(bucket.Limit{Align: bucket.AlignCalendar, Unit: u})
	begin = t.Truncate(length)
	return begin, begin.Add(length)
}

// knownBehavior are the bits that have a meaning. Others are rejected: their effect would be missing.
const knownBehavior = gubernatorv1.Behavior_NO_BATCHING | gubernatorv1.Behavior_GLOBAL |
	gubernatorv1.Behavior_DURATION_IS_GREGORIAN | gubernatorv1.Behavior_RESET_REMAINING |
	gubernatorv1.Behavior_MULTI_REGION | gubernatorv1.Behavior_DRAIN_OVER_LIMIT

// has reports whether q asks for all of b.
func has(q *gubernatorv1.RateLimitReq, b gubernatorv1.Behavior) bool { return q.GetBehavior()&b == b }

// leaky reports whether q wants a leaky bucket, and not a window.
func leaky(q *gubernatorv1.RateLimitReq) bool {
	return q.GetAlgorithm() == gubernatorv1.Algorithm_LEAKY_BUCKET
}

// fault returns why q is invalid, or "".
func fault(q *gubernatorv1.RateLimitReq) string {
	switch {
	// The first two texts are those that clients of gubernator look for.
	case q.GetUniqueKey() == "":
		return "field 'unique_key' cannot be empty"
	case q.GetName() == "":
		return "field 'namespace' cannot be empty"
	case len(q.GetName()) > maxName:
		return fmt.Sprintf("field 'name' has %d bytes; want at most %d", len(q.GetName()), maxName)
	case q.GetAlgorithm() < 0 || q.GetAlgorithm() > gubernatorv1.Algorithm_LEAKY_BUCKET:
		return fmt.Sprintf("field 'algorithm' is unknown: %d; want 0 (TOKEN_BUCKET) or 1 (LEAKY_BUCKET)", q.GetAlgorithm())
	case q.GetBehavior()&^knownBehavior != 0:
		return fmt.Sprintf("field 'behavior' has unknown bits: %d; want a sum of 1, 2, 4, 8, 16 and 32", q.GetBehavior())
	case has(q, gubernatorv1.Behavior_DURATION_IS_GREGORIAN) && (q.GetDuration() < 0 || q.GetDuration() >= int64(len(units))):
		return fmt.Sprintf("field 'duration' is no unit of the calendar: %d; with DURATION_IS_GREGORIAN want 0 (minute), "+
			"1 (hour), 2 (day), 3 (week), 4 (month) or 5 (year)", q.GetDuration())
	}
	return ""
}

// limitOf returns the limit of a valid q at now. A value that bucket.Limit cannot hold becomes the nearest that it can: a
// count is at least 0, and a duration a millisecond to bucket.MaxPeriod.
func limitOf(q *gubernatorv1.RateLimitReq, now time.Time) bucket.Limit {
	l := bucket.Limit{Algorithm: bucket.FixedWindow, Count: max(0, q.GetLimit()), Align: bucket.AlignFirstHit}
	gregorian := has(q, gubernatorv1.Behavior_DURATION_IS_GREGORIAN)
	if gregorian {
		l.Align, l.Unit = bucket.AlignCalendar, units[q.GetDuration()]
	} else {
		const most = int64(bucket.MaxPeriod / time.Millisecond)
		l.Period = time.Duration(min(max(1, q.GetDuration()), most)) * time.Millisecond
	}
	if !leaky(q) {
		return l
	}
	if gregorian {
		begin, end := unitAround(l.Unit, now)
		l.Period = end.Sub(begin)
	}
	l.Algorithm, l.Align, l.Unit = bucket.TokenBucket, bucket.AlignEpoch, 0
	l.Burst = max(0, q.GetBurst())
	if q.GetBurst() < 0 {
		l.Count = 0
	}
	return l
}
