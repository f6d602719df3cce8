package gubernator

import (
	"cmp"
	"math"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

// response is a RateLimitResp. owner is the only metadata.
type response struct {
	status                      gubernatorv1.Status
	limit, remaining, resetTime int64
	err, owner                  string
}

// response returns the response to q, whose decided checks b has. now is the time just before the decision.
func (q *request) response(b *limiter.Batch, now time.Time) (a response) {
	if q.invalid != "" {
		a.err = q.invalid
		return a
	}
	for i := q.first; i <= q.last; i++ {
		if err := b.Results[i].Err; err != nil {
			a.err = err.Error()
			return a
		}
	}
	r, c := &b.Results[q.last], &b.Checks[q.last]
	a.limit, a.remaining = q.limit, r.Remaining
	over := c.Verb == bucket.Check && !r.Allowed
	if c.Verb == bucket.Read || c.Verb == bucket.Refund { // it reports whether something remains
		over = r.Remaining == 0
	}
	if over {
		a.status = gubernatorv1.Status_OVER_LIMIT
	}
	if l := &c.Limits[0]; q.leaky() {
		a.resetTime = milliseconds(now, untilNext(r, l))
	} else if c.Verb != bucket.Reset {
		a.resetTime = windowEnd(r, l, now)
	}
	if r.Source == check.Forwarded {
		a.owner = r.Owner
	}
	return a
}

// windowEnd returns when the window of limit l ends, or one that began now would, in Unix milliseconds.
func windowEnd(r *limiter.Result, l *bucket.Limit, now time.Time) int64 {
	switch {
	case l.Align != bucket.AlignCalendar:
		return milliseconds(now, cmp.Or(r.ResetAfter, l.Period))
	case r.ResetAfter > 0:
		// Units end on a full second. The decision is a little old.
		return now.Add(r.ResetAfter).Round(time.Second).UnixMilli()
	}
	_, end := unitAround(l.Unit, now)
	return end.UnixMilli()
}

// untilNext returns the time until a bucket of limit l has enough tokens for the check that it denied, or else one more than
// now; 0 where it is full. A check that can never be admitted waits for a full bucket.
func untilNext(r *limiter.Result, l *bucket.Limit) time.Duration {
	switch {
	case r.ResetAfter == 0 || r.Never():
		return r.ResetAfter
	case !r.Allowed:
		return r.RetryAfter
	}
	// Of those that are missing, all but one are still missing then.
	missing := r.Limit - r.Remaining - 1
	if missing <= 0 || l.Count <= 0 {
		return r.ResetAfter
	}
	return max(0, r.ResetAfter-httpfield.Scale(l.Period, missing, l.Count))
}

// milliseconds returns now + d in Unix milliseconds, rounded up, so that a retry is not early.
func milliseconds(now time.Time, d time.Duration) int64 {
	return now.Add(min(d, math.MaxInt64-time.Millisecond) + time.Millisecond - 1).UnixMilli()
}
