package httplimit

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
)

// TestHeaders: what each decision says of its limit.
func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		name string
		d    limit.Decision
		want map[string]string
	}{
		{"allowed", allowed, map[string]string{
			"RateLimit-Policy": `"shop/user";q=10;w=60`, "RateLimit": `"shop/user";r=9;t=6`,
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "6",
		}},
		{"denied", denied, map[string]string{
			"RateLimit-Policy": `"shop/user#2";q=10;w=60`, "RateLimit": `"shop/user#2";r=0;t=6`, "Retry-After": "6", "X-RateLimit-Retry-After": "6",
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60",
		}},
		{"denied for a moment", limit.Decision{Counted: true, Limit: 5, Count: 5, Period: 100 * time.Millisecond, RetryAfter: 1, LimitIndex: 1}, map[string]string{
			"RateLimit-Policy": `"limit#2";q=5`, "RateLimit": `"limit#2";r=0;t=1`, "Retry-After": "1", "X-RateLimit-Retry-After": "1",
			"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "0",
		}},
		{"a burst", limit.Decision{Allowed: true, Counted: true, Limit: 50, Count: 10, Burst: 50, Remaining: 7, Period: time.Second, ResetAfter: 4300 * time.Millisecond}, map[string]string{
			"RateLimit-Policy": `"limit";q=50;w=5`, "RateLimit": `"limit";r=7;t=5`,
			"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "5",
		}},
		{"no period", limit.Decision{Allowed: true, Counted: true, Limit: 3, Count: 3, Remaining: 2}, map[string]string{
			"RateLimit-Policy": `"limit";q=3`, "RateLimit": `"limit";r=2;t=0`,
			"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "0",
		}},
		{"never", limit.Decision{Counted: true, Verdict: limit.VerdictNever, Limit: math.MaxInt64, Count: math.MaxInt64, Period: time.Minute, ResetAfter: time.Second, LimitName: `say "hi" \ naïve`}, map[string]string{
			"RateLimit-Policy": `"say \"hi\" \\ na%C3%AFve";q=999999999999999;w=60`, "RateLimit": `"say \"hi\" \\ na%C3%AFve";r=0`,
			"X-RateLimit-Limit": "9223372036854775807", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1",
		}},
		{"no counter", limit.Decision{Source: limit.SourceClosed, RetryAfter: time.Second}, map[string]string{"Retry-After": "1", "X-RateLimit-Retry-After": "1"}},
		{"nothing limits", limit.Decision{Allowed: true, Source: limit.SourceUnmatched}, nil},
	} {
		h := http.Header{}
		(&handler{}).describe(h, &c.d)
		for k, want := range c.want {
			if got := strings.Join(h[k], "|"); got != want {
				t.Errorf("%s: %s is %q, want %q", c.name, k, got, want)
			}
		}
		if len(h) != len(c.want) {
			t.Errorf("%s: %v", c.name, h)
		}
	}
}

// TestHeadersApart: adding to one header changes no other.
func TestHeadersApart(t *testing.T) {
	h := map[string][]string{}
	(&handler{}).describe(h, &denied)
	before := h["RateLimit"][0]
	h["RateLimit-Policy"] = append(h["RateLimit-Policy"], "more")
	if len(h["RateLimit"]) != 1 || h["RateLimit"][0] != before {
		t.Errorf("%v", h)
	}
}
