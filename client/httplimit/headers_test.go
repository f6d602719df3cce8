package httplimit

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-project/sluice/client"
)

// TestHeaders: what each decision says of its limit.
func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		name string
		d    client.Decision
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
		{"denied for a moment", client.Decision{Source: client.SourceDenyCache, Limit: 5, Period: 100 * time.Millisecond, RetryAfter: 1, LimitIndex: 1}, map[string]string{
			"RateLimit-Policy": `"limit#2";q=5`, "RateLimit": `"limit#2";r=0;t=1`, "Retry-After": "1", "X-RateLimit-Retry-After": "1",
			"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "0",
		}},
		{"never", client.Decision{Source: client.SourceOwned, Limit: math.MaxInt64, Period: time.Minute, RetryAfter: client.Never, ResetAfter: time.Second, Rule: `say "hi" \ naïve`}, map[string]string{
			"RateLimit-Policy": `"say \"hi\" \\ na%C3%AFve";q=999999999999999;w=60`, "RateLimit": `"say \"hi\" \\ na%C3%AFve";r=0`,
			"X-RateLimit-Limit": "9223372036854775807", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1",
		}},
		{"no counter", client.Decision{Source: client.SourceClosed, RetryAfter: time.Second}, map[string]string{"Retry-After": "1", "X-RateLimit-Retry-After": "1"}},
		{"nothing limits", client.Decision{Allowed: true, Source: client.SourceUnmatched, Limit: math.MaxInt64, Remaining: math.MaxInt64}, nil},
	} {
		h := http.Header{}
		(&gate{}).describe(h, &c.d)
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
	(&gate{}).describe(h, &denied)
	before := h["RateLimit"][0]
	h["RateLimit-Policy"] = append(h["RateLimit-Policy"], "more")
	if len(h["RateLimit"]) != 1 || h["RateLimit"][0] != before {
		t.Errorf("%v", h)
	}
}
