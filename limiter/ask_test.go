package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

const replacingRules = `
domain: shop
descriptors:
  - key: address
    rate_limit: {name: by address, unit: hour, requests_per_unit: 1}
  - key: user
    value: paying
    rate_limit: {name: paying, unit: hour, requests_per_unit: 100, replaces: [{name: by address}]}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 100}
`

// TestOneRequest: a rule that another descriptor's rule replaces is left out, of this request alone, and no check of it is unmatched.
func TestOneRequest(t *testing.T) {
	s := play(t, replacingRules, `
		one: address=1.2.3.4 | user=paying => unmatched allowed | allowed 99/100
		one: address=1.2.3.4 | user=paying => unmatched allowed | allowed 98/100
		address=1.2.3.4 | user=paying => allowed 0/1 | allowed 97/100
		one: address=1.2.3.4 | user=other => denied 0/1, in 1h | allowed 99/100
	`)
	if n := s.Stats().Unmatched["shop"]; n != 0 {
		t.Errorf("%d checks are unmatched, though a rule matches each", n)
	}
}

// TestDeniedFor: a denial may be answered from memory only where nothing but time ends it.
func TestDeniedFor(t *testing.T) {
	s := newService(t, newNode(t))
	s.SetRules(parse(t, testRules+`
  - key: given back
    cache_denials: false
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: counting
    rate_limit: {algorithm: sliding_log, count: 1, period: 1m, count_denied: true}
  - key: soon
    rate_limit: {algorithm: token_bucket, count: 100, period: 1s, burst: 1}
`))
	for name, c := range map[string]struct {
		ask  ask
		want time.Duration
	}{
		"denied":       {all(entry("user", "x"), cost(4)), 100 * time.Millisecond},
		"admitted":     {all(entry("user", "x")), 0},
		"read":         {all(entry("user", "x"), cost(4), verb(bucket.Read)), 0},
		"shadow":       {all(entry("watched", "x"), cost(4)), 0},
		"refunds":      {all(entry("given back", "x"), cost(2)), 0},
		"counts":       {all(entry("counting", "x"), cost(2)), 0},
		"drains":       {all(entry("user", "y"), cost(4), func(c *Check) { c.Drain = true }), 0},
		"cannot wait":  {all(entry("user", "z"), cost(4), func(c *Check) { c.NoDelay = true }), 0},
		"free":         {all(entry("free", "x"), cost(4)), 0},
		"own limits":   {all(entry("user", "x"), cost(2), limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Hour})), 100 * time.Millisecond},
		"never allows": {all(entry("blocked", "x")), 100 * time.Millisecond},
	} {
		if got := mustCheck(t, s, batch(t, c.ask))[0].DeniedFor; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	soon := all(entry("soon", "x"))
	rs := mustCheck(t, s, batch(t, soon, soon))
	if rs[1].Allowed || rs[1].DeniedFor != rs[1].RetryAfter || rs[1].DeniedFor != 10*time.Millisecond {
		t.Errorf("a denial for %v may be remembered for %v", rs[1].RetryAfter, rs[1].DeniedFor)
	}
	whole := batch(t, all(entry("user", "x"), cost(4)), entry("user", "w"))
	whole.AllOrNothing = true
	for i, r := range mustCheck(t, s, whole) {
		if r.DeniedFor != 0 {
			t.Errorf("check %d of all or nothing: %v", i, r.DeniedFor)
		}
	}
}

// TestDeniedWithoutOwner: what on_failure answered says nothing of the next answer.
func TestDeniedWithoutOwner(t *testing.T) {
	node := newNode(t)
	s := newService(t, decideFunc(func(ctx context.Context, b *check.Batch) {
		node.Decide(ctx, b)
		for i := range b.Answers {
			b.Answers[i].Source = check.Share
		}
	}))
	if r := mustCheck(t, s, batch(t, all(entry("user", "x"), cost(4))))[0]; r.Allowed || r.DeniedFor != 0 {
		t.Errorf("%+v", r)
	}
}
