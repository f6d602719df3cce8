package httpanswer

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
	"github.com/sluicecluster/sluice/limiter"
)

// SetHeaders sets the headers of one check: RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11 and the
// X-RateLimit family for the limit that decided, and Retry-After when it was denied. An unlimited check gets none. A fallback
// decision gets none about what remains, and the policy of the rule's first limit.
func SetHeaders(h http.Header, r *limiter.Result) { SetHeadersOf(h, r, nil) }

// SetHeadersOf is SetHeaders for several checks of one request. decides is the decisive one: the first two headers list its limit
// and then those of all, which may include it. Of several limits of one name only the first is listed.
func SetHeadersOf(h http.Header, decides *limiter.Result, all []limiter.Result) {
	if decides.Err != nil || decides.Limits == nil {
		return
	}
	var l lists
	l.add(decides)
	for i := range all {
		l.add(&all[i])
	}
	httpfield.Set(h, "RateLimit-Policy", strings.Join(l.policies, ", "))
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
	one, name := r.Limits.At(int(r.Index)), r.LimitName(int(r.Index))
	if !slices.Contains(l.named, name) {
		l.named = append(l.named, name)
		l.policies = append(l.policies, string(httpfield.AppendPolicy(nil, name, one.Count, one.Burst, one.UsualPeriod())))
	}
	if !r.Counted() || slices.Contains(l.counted, name) {
		return
	}
	l.counted = append(l.counted, name)
	t, ok := retryAfter(r) // Retry-After is not earlier
	switch {
	case r.Allowed, r.Verdict() == limiter.DeniedByOthers: // its own limit does not deny
		t = httpfield.Seconds(r.ResetAfter)
	case !ok:
		t = -1
	}
	l.left = append(l.left, string(httpfield.AppendRemaining(nil, name, r.Remaining, t)))
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
