package gubernator

import (
	"cmp"
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/limiter"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// answer returns gubernator's response to items, whose decided checks b has. now is the time just before the decision.
func answer(b *limiter.Batch, items []item, now time.Time) *gubernatorv1.GetRateLimitsResp {
	memory := make([]gubernatorv1.RateLimitResp, len(items))
	res := &gubernatorv1.GetRateLimitsResp{Responses: make([]*gubernatorv1.RateLimitResp, len(items))}
	for i := range items {
		res.Responses[i] = &memory[i]
		items[i].answer(b, &memory[i], now)
	}
	return res
}

// answer fills in a, which is empty.
func (t *item) answer(b *limiter.Batch, a *gubernatorv1.RateLimitResp, now time.Time) {
	if t.fault != "" {
		a.Error = t.fault
		return
	}
	for i := t.first; i <= t.last; i++ {
		if err := b.Results[i].Err; err != nil {
			a.Error = err.Error()
			return
		}
	}
	r, c := &b.Results[t.last], &b.Checks[t.last]
	a.Limit, a.Remaining = t.request.GetLimit(), r.Remaining
	over := c.Verb == bucket.Check && !r.Allowed
	if c.Verb == bucket.Read || c.Verb == bucket.Refund { // it reports whether something remains
		over = r.Remaining == 0
	}
	if over {
		a.Status = gubernatorv1.Status_OVER_LIMIT
	}
	if l := &c.Limits[0]; leaky(t.request) {
		a.ResetTime = milliseconds(now, untilNext(r, l))
	} else if c.Verb != bucket.Reset {
		a.ResetTime = windowEnd(r, l, now)
	}
	if r.Source == check.Forwarded {
		a.Metadata = map[string]string{"owner": r.Owner}
	}
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
	return max(0, r.ResetAfter-httpanswer.Scale(l.Period, missing, l.Count))
}

// milliseconds returns now + d in Unix milliseconds, rounded up, so that a retry is not early.
func milliseconds(now time.Time, d time.Duration) int64 {
	return now.Add(min(d, math.MaxInt64-time.Millisecond) + time.Millisecond - 1).UnixMilli()
}
