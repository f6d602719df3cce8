package gubernator

import (
	"fmt"
	"math"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/rules"
)

// The names of counters, as docs/use/gubernator.md promises.
const (
	domainPrefix = "gubernator/"
	// maxName is the longest name, in bytes.
	maxName = limiter.MaxText - len(domainPrefix)

	keyUnique = "unique_key"
	// keyAlgorithm leads the descriptor of leaky buckets, so that another algorithm has another counter.
	keyAlgorithm = "algorithm"
	leakyValue   = "leaky_bucket"
)

// request is a RateLimitReq.
type request struct {
	// domain is the domain of its counter: name with domainPrefix.
	name, domain, key            string
	hits, limit, duration, burst int64
	algorithm                    gubernatorv1.Algorithm
	behavior                     gubernatorv1.Behavior
	// invalid is why it is. Otherwise the batch's checks from first to last are its own, and the last has its result.
	invalid     string
	first, last int
}

func fromProto(q *gubernatorv1.RateLimitReq) request {
	return request{
		name: q.GetName(), domain: domainPrefix + q.GetName(), key: q.GetUniqueKey(), hits: q.GetHits(), limit: q.GetLimit(),
		duration: q.GetDuration(), burst: q.GetBurst(), algorithm: q.GetAlgorithm(), behavior: q.GetBehavior(),
	}
}

// add adds the checks of requests at now to b.
func add(b *limiter.Batch, requests []request, now time.Time) {
	for i := range requests {
		q := &requests[i]
		q.first = len(b.Checks)
		if q.invalid = q.validate(); q.invalid == "" {
			q.add(b, q.limitAt(now))
		}
		q.last = len(b.Checks) - 1
	}
}

// add adds the checks of q, whose limit is l.
func (q *request) add(b *limiter.Batch, l bucket.Limit) {
	reset := q.has(gubernatorv1.Behavior_RESET_REMAINING)
	if reset {
		q.count(b.Add(), l).Verb = bucket.Reset
	}
	// A window that is reset is not charged; a leaky bucket is, once it is full.
	if reset && (q.hits <= 0 || !q.leaky()) {
		return
	}
	c := q.count(b.Add(), l)
	switch {
	case q.hits > 0:
		c.Verb, c.Cost = bucket.Check, q.hits
		c.Drain = q.has(gubernatorv1.Behavior_DRAIN_OVER_LIMIT)
	case q.hits == 0:
		c.Verb, c.Cost = bucket.Read, 0
	default:
		c.Verb, c.Cost = bucket.Refund, -max(q.hits, -math.MaxInt64)
	}
}

// count sets the counter of c to that of q, and its limit to l.
func (q *request) count(c *limiter.Check, l bucket.Limit) *limiter.Check {
	c.Domain = q.domain
	if q.leaky() {
		c.Descriptor = append(c.Descriptor, rules.Entry{Key: keyAlgorithm, Value: leakyValue})
	}
	c.Descriptor = append(c.Descriptor, rules.Entry{Key: keyUnique, Value: q.key})
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
	length := bucket.Limit{Align: bucket.AlignCalendar, Unit: u}.UsualPeriod()
	begin = t.Truncate(length)
	return begin, begin.Add(length)
}

// knownBehavior are the bits that have a meaning. Others are rejected: their effect would be missing.
const knownBehavior = gubernatorv1.Behavior_NO_BATCHING | gubernatorv1.Behavior_GLOBAL |
	gubernatorv1.Behavior_DURATION_IS_GREGORIAN | gubernatorv1.Behavior_RESET_REMAINING |
	gubernatorv1.Behavior_MULTI_REGION | gubernatorv1.Behavior_DRAIN_OVER_LIMIT

// has reports whether q asks for all of b.
func (q *request) has(b gubernatorv1.Behavior) bool { return q.behavior&b == b }

// leaky reports whether q wants a leaky bucket, and not a window.
func (q *request) leaky() bool { return q.algorithm == gubernatorv1.Algorithm_LEAKY_BUCKET }

// validate returns why q is invalid, or "".
func (q *request) validate() string {
	switch {
	// The first two texts are those that clients of gubernator look for.
	case q.key == "":
		return "field 'unique_key' cannot be empty"
	case q.name == "":
		return "field 'namespace' cannot be empty"
	case len(q.name) > maxName:
		return fmt.Sprintf("field 'name' has %d bytes; want at most %d", len(q.name), maxName)
	case q.algorithm < 0 || q.algorithm > gubernatorv1.Algorithm_LEAKY_BUCKET:
		return fmt.Sprintf("field 'algorithm' is unknown: %d; want 0 (TOKEN_BUCKET) or 1 (LEAKY_BUCKET)", q.algorithm)
	case q.behavior&^knownBehavior != 0:
		return fmt.Sprintf("field 'behavior' has unknown bits: %d; want a sum of 1, 2, 4, 8, 16 and 32", q.behavior)
	case q.has(gubernatorv1.Behavior_DURATION_IS_GREGORIAN) && (q.duration < 0 || q.duration >= int64(len(units))):
		return fmt.Sprintf("field 'duration' is no unit of the calendar: %d; with DURATION_IS_GREGORIAN want 0 (minute), "+
			"1 (hour), 2 (day), 3 (week), 4 (month) or 5 (year)", q.duration)
	}
	return ""
}

// limitAt returns the limit of a valid q at now. A value that bucket.Limit cannot hold becomes the nearest that it can: a
// count is at least 0, and a duration a millisecond to bucket.MaxPeriod.
func (q *request) limitAt(now time.Time) bucket.Limit {
	l := bucket.Limit{Algorithm: bucket.FixedWindow, Count: max(0, q.limit), Align: bucket.AlignFirstHit}
	gregorian := q.has(gubernatorv1.Behavior_DURATION_IS_GREGORIAN)
	if gregorian {
		l.Align, l.Unit = bucket.AlignCalendar, units[q.duration]
	} else {
		const most = int64(bucket.MaxPeriod / time.Millisecond)
		l.Period = time.Duration(min(max(1, q.duration), most)) * time.Millisecond
	}
	if !q.leaky() {
		return l
	}
	if gregorian {
		begin, end := unitAround(l.Unit, now)
		l.Period = end.Sub(begin)
	}
	l.Algorithm, l.Align, l.Unit = bucket.TokenBucket, bucket.AlignEpoch, 0
	l.Burst = max(0, q.burst)
	if q.burst < 0 {
		l.Count = 0
	}
	return l
}
