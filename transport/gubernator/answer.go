package gubernator

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/limiter"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
)

// answer says in gubernator's words what became of items, whose checks b has had decided.
// now is the time just before they were.
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
	switch {
	case c.Verb == bucket.Check && !r.Allowed:
		a.Status = gubernatorv1.Status_OVER_LIMIT
	// Who spends nothing learns whether there is something to spend.
	case (c.Verb == bucket.Read || c.Verb == bucket.Refund) && r.Remaining == 0:
		a.Status = gubernatorv1.Status_OVER_LIMIT
	}
	l := &c.Limits[0]
	switch {
	case leaky(t.request):
		a.ResetTime = milliseconds(now, untilNext(r, l))
	case c.Verb == bucket.Reset:
		a.ResetTime = 0
	default:
		a.ResetTime = windowEnd(r, l, now)
	}
	if r.Source == check.Forwarded {
		a.Metadata = map[string]string{"owner": r.Owner}
	}
}

// windowEnd returns when the window of limit l ends, or one that began now would, in Unix milliseconds.
func windowEnd(r *limiter.Result, l *bucket.Limit, now time.Time) int64 {
	open := r.ResetAfter > 0
	switch {
	case l.Align != bucket.AlignCalendar && open:
		return milliseconds(now, r.ResetAfter)
	case l.Align != bucket.AlignCalendar:
		return milliseconds(now, l.Period)
	case open:
		// Units end on a full second. The answer is as old as its way here was long.
		return now.Add(r.ResetAfter).Round(time.Second).UnixMilli()
	}
	_, end := unitAround(l.Unit, now)
	return end.UnixMilli()
}

// untilNext returns the time until a bucket of limit l has enough tokens for the check that it
// denied, or else until it has one more than now; 0 where it is full. What will never be enough is
// taken to be a full bucket.
func untilNext(r *limiter.Result, l *bucket.Limit) time.Duration {
	switch {
	case r.ResetAfter == 0 || r.Never():
		return r.ResetAfter
	case !r.Allowed:
		return r.RetryAfter
	}
	// Of those that are missing, all but one are still missing then.
	return max(0, r.ResetAfter-flow(r.Limit-r.Remaining-1, l))
}

// flow returns the time in which n ≥ 0 tokens of limit l come back, rounded down.
func flow(n int64, l *bucket.Limit) time.Duration {
	if n <= 0 || l.Count <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), uint64(l.Period))
	if hi >= uint64(l.Count) {
		return math.MaxInt64
	}
	t, _ := bits.Div64(hi, lo, uint64(l.Count))
	return time.Duration(min(t, math.MaxInt64))
}

// milliseconds returns now + d in Unix milliseconds, rounded up: whoever comes back then is not early.
func milliseconds(now time.Time, d time.Duration) int64 {
	return now.Add(min(d, math.MaxInt64-time.Millisecond) + time.Millisecond - 1).UnixMilli()
}
