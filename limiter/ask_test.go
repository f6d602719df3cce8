package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestResetAmongChecks: the checks of one key are decided in the order in which they stand.
func TestResetAmongChecks(t *testing.T) {
	s := newService(t, newNode(t))
	three := all(entry("user", "x"), cost(3))
	rs := mustCheck(t, s, batch(t, three, three, all(entry("user", "x"), verb(bucket.Reset), cost(7)), three, three))
	for i, want := range []bool{true, false, true, true, false} {
		if r := &rs[i]; r.Err != nil || r.Allowed != want {
			t.Errorf("check %d: %+v, %v, want allowed %v", i, r.Decision, r.Err, want)
		}
	}
	if r := &rs[2]; r.Limit != 3 || r.Remaining != 3 || r.ResetAfter != 0 || r.Source != check.Owned {
		t.Errorf("the reset is answered %+v", r)
	}
}

// TestWholeRejectsWhatStands: what cannot be given back is no part of an all-or-nothing batch.
func TestWholeRejectsWhatStands(t *testing.T) {
	for field, a := range map[string]ask{
		"verb":  verb(bucket.Reset),
		"drain": func(c *Check) { c.Drain = true },
	} {
		node := newNode(t)
		b := batch(t, entry("user", "x"), all(entry("user", "y"), a))
		b.AllOrNothing = true
		rs := mustCheck(t, newService(t, node), b)
		if e := rs[1].Err; e == nil || e.Code != Invalid || e.Field != field {
			t.Errorf("error %v, want one about %s", e, field)
		}
		if rs[0].Allowed {
			t.Errorf("%s: the other check is allowed", field)
		}
	}
}

// TestDrainAndNoDelayTravel: the API's wish reaches the counter.
func TestDrainAndNoDelayTravel(t *testing.T) {
	s := newService(t, newNode(t))
	queue := limits(bucket.Limit{Algorithm: bucket.LeakyQueue, Count: 60, Period: time.Minute, Burst: 5})
	now := all(entry("user", "q"), queue, func(c *Check) { c.NoDelay = true })
	rs := mustCheck(t, s, batch(t,
		all(entry("user", "x"), cost(4), func(c *Check) { c.Drain = true }), entry("user", "x"), now, now))
	if rs[0].Allowed || rs[0].Remaining != 0 || rs[1].Allowed {
		t.Errorf("drained: %+v and then %+v", rs[0].Decision, rs[1].Decision)
	}
	if !rs[2].Allowed || rs[3].Allowed || rs[3].RetryAfter != time.Second {
		t.Errorf("a queue: %+v and then %+v", rs[2].Decision, rs[3].Decision)
	}
}

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

// TestOneRequest: a rule that another descriptor's rule replaces is left out, of this request
// alone.
func TestOneRequest(t *testing.T) {
	s := newService(t, newNode(t))
	s.SetRules(parse(t, replacingRules))
	for i, c := range []struct {
		user       string
		oneRequest bool
		counted    bool
	}{
		{"paying", true, false},
		{"paying", true, false},
		{"paying", false, true},
		{"other", true, true},
	} {
		b := batch(t, entry("address", "1.2.3.4"), entry("user", c.user))
		b.OneRequest = c.oneRequest
		rs := mustCheck(t, s, b)
		if got := rs[0].Source == check.Owned; got != c.counted || got && rs[0].RuleName() != "by address" {
			t.Errorf("request %d: the address is answered by %v of %q, want counted %v", i, rs[0].Source, rs[0].RuleName(), c.counted)
		}
		if rs[1].Source != check.Owned || !rs[1].Allowed {
			t.Errorf("request %d: the user is answered %+v", i, rs[1])
		}
	}
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
