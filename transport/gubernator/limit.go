package gubernator

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
)

// knownBehavior are the bits that have a meaning. Bits beyond them are refused: whoever sets
// one expects something that would not happen.
const knownBehavior = gubernatorv1.Behavior_NO_BATCHING | gubernatorv1.Behavior_GLOBAL |
	gubernatorv1.Behavior_DURATION_IS_GREGORIAN | gubernatorv1.Behavior_RESET_REMAINING |
	gubernatorv1.Behavior_MULTI_REGION | gubernatorv1.Behavior_DRAIN_OVER_LIMIT

// has reports whether q asks for all of b.
func has(q *gubernatorv1.RateLimitReq, b gubernatorv1.Behavior) bool { return q.GetBehavior()&b == b }

// leaky reports whether q is held to a leaky bucket, and not to a window.
func leaky(q *gubernatorv1.RateLimitReq) bool {
	return q.GetAlgorithm() == gubernatorv1.Algorithm_LEAKY_BUCKET
}

// fault says what is wrong with q, or "".
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

// limitOf returns the limit that q, which has no fault, brings at now. What bucket.Limit cannot
// express becomes the nearest that it can: less than 0 admits as little as 0, a duration that is
// over at once lasts a millisecond, and one beyond bucket.MaxPeriod lasts that long.
func limitOf(q *gubernatorv1.RateLimitReq, now time.Time) bucket.Limit {
	l := bucket.Limit{Algorithm: bucket.FixedWindow, Count: max(0, q.GetLimit()), Align: bucket.AlignFirstHit}
	gregorian := has(q, gubernatorv1.Behavior_DURATION_IS_GREGORIAN)
	if gregorian {
		l.Align, l.Unit = bucket.AlignCalendar, units[q.GetDuration()]
	} else {
		l.Period = period(q.GetDuration())
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

// period returns ms milliseconds, within what a limit can have.
func period(ms int64) time.Duration {
	const most = int64(bucket.MaxPeriod / time.Millisecond)
	return time.Duration(min(max(1, ms), most)) * time.Millisecond
}
