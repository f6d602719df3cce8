package httpanswer

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
)

// TestPolicy: what a limit is called in RateLimit-Policy; package httpfield has the rest.
func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit bucket.Limit
		want  string
	}{
		{"window", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Minute}, `"limit";q=100;w=60`},
		{"day", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1000, Align: bucket.AlignCalendar, Unit: bucket.Day}, `"limit";q=1000;w=86400`},
		{"month", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Align: bucket.AlignCalendar, Unit: bucket.Month}, `"limit";q=1;w=2592000`},
		{"without a period", bucket.Limit{Algorithm: bucket.Concurrency, Count: 10}, `"limit";q=10`},
		{"bucket", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Second, Burst: 100}, `"limit";q=100;w=10`},
	} {
		limits, err := bucket.NewLimits(c.limit)
		if err != nil {
			t.Fatal(err)
		}
		h := map[string][]string{}
		SetHeaders(h, &limiter.Result{Limits: limits})
		const name = "RateLimit-Policy" // as it is sent
		if got := strings.Join(h[name], "|"); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestSetHeaders(t *testing.T) {
	limits, err := bucket.NewLimits(
		bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Minute},
		bucket.Limit{Unlimited: true},
		bucket.Limit{Algorithm: bucket.FixedWindow, Count: 500, Period: time.Hour},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		decision bucket.Decision
		want     map[string]string
	}{
		{"allowed", bucket.Decision{Allowed: true, Limit: 10, Remaining: 4, ResetAfter: 1},
			map[string]string{"RateLimit": `"limit";r=4;t=1`, "X-RateLimit-Reset": "1", "Retry-After": ""}},
		{"denied by the second", bucket.Decision{Index: 1, Limit: 500, ResetAfter: time.Hour, RetryAfter: 1500 * time.Millisecond},
			map[string]string{"RateLimit": `"limit#3";r=0;t=2`, "Retry-After": "2", "X-RateLimit-Retry-After": "2", "X-RateLimit-Reset": "3600", "X-RateLimit-Limit": "500"}},
		{"denied for less than a second", bucket.Decision{Limit: 10, ResetAfter: 1, RetryAfter: 1},
			map[string]string{"RateLimit": `"limit";r=0;t=1`, "Retry-After": "1"}},
		{"denied because of others", bucket.Decision{Limit: 10, Remaining: 7},
			map[string]string{"RateLimit": `"limit";r=7;t=1`, "Retry-After": "1"}},
		{"never", bucket.Decision{Limit: 10, Remaining: 7, ResetAfter: 30 * time.Second, RetryAfter: bucket.Never},
			map[string]string{"RateLimit": `"limit";r=7`, "Retry-After": "", "X-RateLimit-Retry-After": ""}},
		{"never free again", bucket.Decision{Limit: 10, ResetAfter: math.MaxInt64, RetryAfter: math.MaxInt64 - 1},
			map[string]string{"RateLimit": `"limit";r=0;t=9223372037`, "Retry-After": "9223372037"}},
	} {
		h := make(http.Header)
		SetHeaders(h, &limiter.Result{Decision: c.decision, Limits: limits})
		c.want["RateLimit-Policy"] = `"limit";q=10;w=60`
		if c.decision.Index == 1 {
			c.want["RateLimit-Policy"] = `"limit#3";q=500;w=3600`
		}
		for k, want := range c.want {
			if got := strings.Join(h[k], "|"); got != want {
				t.Errorf("%s: %s is %q, want %q", c.name, k, got, want)
			}
		}
	}
	h := make(http.Header)
	SetHeaders(h, &limiter.Result{Decision: bucket.Decision{Allowed: true}})
	SetHeaders(h, &limiter.Result{Limits: limits, Err: &limiter.Error{Code: limiter.Overloaded}})
	if len(h) != 0 {
		t.Errorf("without a limit or a decision: %v", h)
	}
}
