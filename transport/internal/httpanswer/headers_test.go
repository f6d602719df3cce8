package httpanswer

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
)

func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit bucket.Limit
		want  string
	}{
		{"burst", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Minute}, `"burst";q=100;w=60`},
		{"daily", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1000, Align: bucket.AlignCalendar, Unit: bucket.Day}, `"daily";q=1000;w=86400`},
		{"month", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Align: bucket.AlignCalendar, Unit: bucket.Month}, `"month";q=1;w=2592000`},
		{"bucket", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Second, Burst: 100}, `"bucket";q=100;w=10`},
		{"rounded up", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: 15 * time.Second, Burst: 3}, `"rounded up";q=3;w=5`},
		{"quick", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 5, Period: 100 * time.Millisecond}, `"quick";q=5`},
		{"blocked", bucket.Limit{Algorithm: bucket.TokenBucket, Period: time.Second, Burst: 100}, `"blocked";q=0;w=1`},
		{"huge", bucket.Limit{Algorithm: bucket.FixedWindow, Count: math.MaxInt64, Period: time.Second}, `"huge";q=999999999999999;w=1`},
		{"slow", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: bucket.MaxPeriod, Burst: math.MaxInt64}, `"slow";q=999999999999999;w=9223372037`},
		{`say "hi" \ bye`, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Second}, `"say \"hi\" \\ bye";q=1;w=1`},
		{"naïve\n", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Second}, `"na%C3%AFve%0A";q=1;w=1`},
	} {
		if got := policy(c.name, c.limit); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
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
		{"denied by the second", bucket.Decision{Index: 2, Limit: 500, ResetAfter: time.Hour, RetryAfter: 1500 * time.Millisecond},
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
		c.want["RateLimit-Policy"] = `"limit";q=10;w=60, "limit#3";q=500;w=3600`
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
