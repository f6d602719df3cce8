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
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/limiter"
)

// SetHeaders says in headers how one check stands: RateLimit-Policy and RateLimit
// of draft-ietf-httpapi-ratelimit-headers-11, the X-RateLimit family, and
// Retry-After when it was denied. A check held to no limit has none, and one that
// nobody counted says nothing of what is left.
func SetHeaders(h http.Header, r *limiter.Result) { SetHeadersOf(h, r, nil) }

// SetHeadersOf is SetHeaders for several checks of one request. decides is the one that
// settles it; the first two headers list it first and then those of all, which it may be one of. Of
// several that have a limit in common only the first is listed.
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
		put(h, "RateLimit-Policy", strings.Join(l.policies, ", "))
	}
	if len(l.left) > 0 {
		put(h, "RateLimit", strings.Join(l.left, ", "))
	}
	if after, ok := retryAfter(decides); !decides.Allowed && ok {
		SetRetryAfter(h, after)
	}
	if Counted(decides) {
		put(h, "X-RateLimit-Limit", strconv.FormatInt(decides.Limit, 10))
		put(h, "X-RateLimit-Remaining", strconv.FormatInt(decides.Remaining, 10))
		put(h, "X-RateLimit-Reset", strconv.FormatInt(Seconds(decides.ResetAfter), 10))
	}
}

// put sets a header under a name that goes out as it is spelled, over one that was set in another spelling. Header.Set would make
// Ratelimit of RateLimit.
func put(h http.Header, name, value string) {
	for other := range h {
		if strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = []string{value}
}

// lists are the items of RateLimit-Policy and of RateLimit, and the names in them.
type lists struct{ policies, left, named, counted []string }

func (l *lists) add(r *limiter.Result) {
	if r.Err != nil || r.Limits == nil {
		return
	}
	for i := range r.Limits.Len() {
		one := r.Limits.At(i)
		if name := PolicyName(r, i); !one.Unlimited && !slices.Contains(l.named, name) {
			l.named = append(l.named, name)
			l.policies = append(l.policies, policy(name, one))
		}
	}
	if !Counted(r) {
		return
	}
	name := PolicyName(r, int(r.Index))
	if slices.Contains(l.counted, name) {
		return
	}
	l.counted = append(l.counted, name)
	item := quoted(name) + ";r=" + integer(r.Remaining)
	switch after, ok := retryAfter(r); {
	case r.Allowed:
		item += ";t=" + integer(Seconds(r.ResetAfter))
	case ok: // Retry-After is not earlier
		item += ";t=" + integer(after)
	} // else no time makes a difference
	l.left = append(l.left, item)
}

// Counted reports whether r says what is left of a limit: not when nothing limits
// the check, and not when on_failure or on_partition answered without looking at a
// counter.
func Counted(r *limiter.Result) bool {
	return r.Limits != nil && r.Source != check.Open && r.Source != check.Closed
}

// SetRetryAfter says when to try again, in seconds.
func SetRetryAfter(h http.Header, after int64) {
	s := strconv.FormatInt(after, 10)
	h.Set("Retry-After", s)
	put(h, "X-RateLimit-Retry-After", s)
}

// retryAfter returns the whole seconds after which a denied check may be tried
// again, at least 1, and whether that will ever help.
func retryAfter(r *limiter.Result) (int64, bool) {
	return max(Seconds(r.RetryAfter), 1), !r.Never()
}

// PolicyName returns the name of limit i of what r was held to.
func PolicyName(r *limiter.Result, i int) string {
	switch {
	case r.Rule != nil:
		return r.Rule.LimitName(i)
	case r.Limits != nil && i < r.Limits.Len():
		i = r.Limits.Place(i)
	}
	if i > 0 {
		return "limit#" + strconv.Itoa(i+1)
	}
	return "limit"
}

// policy spells a limit as an item of RateLimit-Policy. q is the most that can be
// admitted at once, and w the time in which that much comes back, so that
// remaining never exceeds q and q ÷ w is the sustained rate. w is left out where
// whole seconds would tell a wrong rate: below one second.
func policy(name string, l bucket.Limit) string {
	q, w := l.Count, limiter.PeriodOf(l)
	if l.Burst > 0 && l.Count > 0 {
		q, w = l.Burst, scale(w, l.Burst, l.Count)
	}
	item := quoted(name) + ";q=" + integer(q)
	if w >= time.Second {
		item += ";w=" + integer(Seconds(w))
	}
	return item
}

// scale returns d × num ÷ den, at most the longest duration. All are positive.
func scale(d time.Duration, num, den int64) time.Duration {
	hi, lo := bits.Mul64(uint64(d), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64
	}
	quo, _ := bits.Div64(hi, lo, uint64(den))
	return time.Duration(min(quo, math.MaxInt64))
}

// Seconds returns d in whole seconds, rounded up so that nobody comes too early.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// integer spells n as an integer of RFC 9651, which has at most 15 digits.
func integer(n int64) string {
	const most = 999_999_999_999_999
	return strconv.FormatInt(min(max(n, 0), most), 10)
}

// quoted spells s as a string of RFC 9651: printable ASCII, with quotes and
// backslashes escaped. Other bytes are percent-encoded, as they are in URLs.
func quoted(s string) string {
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(s)+2)
	out = append(out, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c >= 0x20 && c < 0x7f:
			out = append(out, c)
		default:
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(append(out, '"'))
}
