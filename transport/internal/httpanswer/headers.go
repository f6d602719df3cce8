package httpanswer

import (
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/leaf/httpfield"
	"github.com/sluice-project/sluice/limiter"
)

// SetHeaders sets the headers of one check: RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11, the
// X-RateLimit family, and Retry-After when it was denied. An unlimited check gets none, and a fallback decision none about
// what remains.
func SetHeaders(h http.Header, r *limiter.Result) { SetHeadersOf(h, r, nil) }

// SetHeadersOf is SetHeaders for several checks of one request. decides is the decisive one: the first two headers list it
// and then all, which may include it. Of several with a limit in common only the first is listed.
func SetHeadersOf(h http.Header, decides *limiter.Result, all []limiter.Result) {
	if decides.Err != nil || decides.Limits == nil {
		return
	}
	var l lists
	l.add(decides)
	for i := range all {
		l.add(&all[i])
	}
	if len(l.policies) > 0 {
		httpfield.Set(h, "RateLimit-Policy", strings.Join(l.policies, ", "))
	}
	if len(l.left) > 0 {
		httpfield.Set(h, "RateLimit", strings.Join(l.left, ", "))
	}
	if after, ok := retryAfter(decides); !decides.Allowed && ok {
		SetRetryAfter(h, after)
	}
	if decides.Counted() {
		httpfield.Set(h, "X-RateLimit-Limit", strconv.FormatInt(decides.Limit, 10))
		httpfield.Set(h, "X-RateLimit-Remaining", strconv.FormatInt(decides.Remaining, 10))
		httpfield.Set(h, "X-RateLimit-Reset", strconv.FormatInt(httpfield.Seconds(decides.ResetAfter), 10))
	}
}

// lists are the items of RateLimit-Policy and of RateLimit, and the names in them.
type lists struct{ policies, left, named, counted []string }

func (l *lists) add(r *limiter.Result) {
	if r.Err != nil || r.Limits == nil {
		return
	}
	for i := range r.Limits.Len() {
		one := r.Limits.At(i)
		if name := r.LimitName(i); !one.Unlimited && !slices.Contains(l.named, name) {
			l.named = append(l.named, name)
			l.policies = append(l.policies, policy(name, one))
		}
	}
	if !r.Counted() {
		return
	}
	name := r.LimitName(int(r.Index))
	if slices.Contains(l.counted, name) {
		return
	}
	l.counted = append(l.counted, name)
	item := httpfield.AppendInteger(append(httpfield.AppendString(nil, name), ";r="...), r.Remaining)
	switch after, ok := retryAfter(r); {
	case r.Allowed:
		item = httpfield.AppendInteger(append(item, ";t="...), httpfield.Seconds(r.ResetAfter))
	case ok: // Retry-After is not earlier
		item = httpfield.AppendInteger(append(item, ";t="...), after)
	} // else no time makes a difference
	l.left = append(l.left, string(item))
}

// SetRetryAfter sets the seconds after which to try again.
func SetRetryAfter(h http.Header, after int64) {
	s := strconv.FormatInt(after, 10)
	h.Set("Retry-After", s)
	httpfield.Set(h, "X-RateLimit-Retry-After", s)
}

// retryAfter returns the seconds, at least 1, after which a denied check may be tried again, and false if that never helps.
func retryAfter(r *limiter.Result) (int64, bool) {
	return max(httpfield.Seconds(r.RetryAfter), 1), !r.Never()
}

// policy returns a limit as an item of RateLimit-Policy. q is the most that can be admitted at once, and w the time in which
// that refills, so that remaining never exceeds q and q ÷ w is the sustained rate. Below one second w is left out: whole
// seconds would state a wrong rate.
func policy(name string, l bucket.Limit) string {
	q, w := l.Count, limiter.PeriodOf(l)
	if l.Burst > 0 && l.Count > 0 {
		q, w = l.Burst, Scale(w, l.Burst, l.Count)
	}
	item := httpfield.AppendInteger(append(httpfield.AppendString(nil, name), ";q="...), q)
	if w >= time.Second {
		item = httpfield.AppendInteger(append(item, ";w="...), httpfield.Seconds(w))
	}
	return string(item)
}

// Scale returns d × num ÷ den, rounded down, at most the longest duration. All are positive.
func Scale(d time.Duration, num, den int64) time.Duration {
	hi, lo := bits.Mul64(uint64(d), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64
	}
	quo, _ := bits.Div64(hi, lo, uint64(den))
	return time.Duration(min(quo, math.MaxInt64))
}
