package limiter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// toldOf is what the Decider is told beside the key and the limits, without defaults.
func toldOf(q *check.Request) string {
	out := fmt.Sprint(q.Verb, " ", q.Cost)
	for _, f := range []struct {
		name string
		is   bool
	}{
		{"sync", q.Sync}, {"unreplicated", q.Unreplicated}, {"shadow", q.Shadow}, {"eventual", q.Eventual}, {"uncached", q.NoDenialCache},
		{"deny lost", q.DenyLost}, {"partition closed", q.OnPartition == rules.FailClosed}, {"partition open", q.OnPartition == rules.FailOpen},
		{"failure closed", q.OnFailure == rules.FailClosed}, {"failure open", q.OnFailure == rules.FailOpen},
	} {
		if f.is {
			out += ", " + f.name
		}
	}
	return out
}

// TestTold: the Decider is told what the rule says of losing charges, of being cut off and of memory, for every verb, and the defaults
// where a check brings its limits: counters of at least 10 s are replicated.
func TestTold(t *testing.T) {
	var got []check.Request
	s := newScript(t, `
domain: shop
descriptors:
  - {key: short, limits: [{period: 9999ms, count: 3}]}
  - {key: long, limits: [{period: 10s, count: 3}]}
  - {key: mixed, limits: [{unit: second, count: 1}, {unit: day, count: 9}]}
  - {key: sure, limits: [3/1s], replication: sync, on_partition: closed}
  - {key: careless, limits: [3/1h], replication: none, on_partition: open, on_failure: closed}
  - {key: slow, limits: [3/1s], replication: async, on_failure: open}
  - {key: watched, limits: [3/1h], shadow_mode: true, cache_denials: false, on_lost_state: deny}
  - {key: near, limits: [3/1h], consistency: eventual}
  - {key: nothing, limits: [0/1h], consistency: eventual}
`)
	s.config.Decider = decideFunc(func(_ context.Context, b *check.Batch) { got = append(got[:0], b.Requests...) })
	for call, want := range map[string]string{
		"short=x":            ", unreplicated",
		"long=x *2":          "",
		"mixed=x":            "",
		"sure=x":             ", sync, deny lost, partition closed",
		"careless=x":         ", unreplicated, deny lost, partition open, failure closed",
		"slow=x":             ", failure open",
		"watched=x":          ", shadow, uncached, deny lost",
		"near=x":             ", eventual",
		"nothing=x":          "",
		"near=x [5/1h]":      "",
		"sure=x [1/1s]":      ", unreplicated",
		"careless=x [1/10s]": "",
		"short=x [1/1h]":     "",
		"short=x [{count: 1, period: 1h}, {count: 1, period: 1s}]": "",
	} {
		for _, v := range []bucket.Verb{bucket.Check, bucket.Read, bucket.Charge, bucket.Refund, bucket.Reset} {
			b := s.batch(call)
			b.Checks[0].Verb = v
			if err := s.Check(t.Context(), b); err != nil || len(got) != 1 {
				t.Fatalf("%s, %v: %v, %d requests", call, v, err, len(got))
			}
			if text := toldOf(&got[0]); text != fmt.Sprint(v, " ", b.Checks[0].Cost, want) {
				t.Errorf("%s: %s, want%s", call, text, want)
			}
		}
	}
	b := s.batch("near=x charge") // the owner alone knows which charges were made
	b.IdempotencyKey = "k"
	mustCheck(t, s.Limiter, b)
	if text := toldOf(&got[0]); text != "charge 1" || got[0].Once == 0 {
		t.Errorf("with an idempotency key: %s, once %d", text, got[0].Once)
	}
}

// Counters are accounted to the domain, or to the caller if it has a bound of its own. A domain that is named like no domain's
// account has none.
func TestAccounts(t *testing.T) {
	var got []check.Request
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) { got = append(got[:0], b.Requests...) }))
	s.SetRules(parse(t, "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {period: 10s, count: 3}\n"))
	own := limits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Second})
	for _, account := range []string{"", "(caller) eve"} {
		b := batch(t, entry("user", "x"), all(entry("user", "x"), own), all(entry("user", "x"), domain("mail"), own), all(entry("user", "x"), domain("(caller) ann"), own))
		b.Account = account
		mustCheck(t, s, b)
		for i, want := range []string{"shop", "shop", "mail", ""} {
			if account != "" {
				want = account
			}
			if d := got[i].Limits.Domain(); d != want || !got[i].Limits.Equal(b.Results[i].Limits) {
				t.Errorf("account %q, check %d: %q, want %q", account, i, d, want)
			}
		}
	}
}

// TestDeniedByTimeLeavesNothing: a denial that waits for a time and not for units says that none are left. A client that looks at
// what is left would ask again at once.
func TestDeniedByTimeLeavesNothing(t *testing.T) {
	const (
		plain   = "user=x [{algorithm: fixed_window, count: 5, period: 1s}]"
		blocks  = "user=x [{algorithm: fixed_window, count: 5, period: 1s, block_for: 1m}]"
		raised  = "user=x [{algorithm: fixed_window, count: 10, period: 1s, block_for: 1m}]"
		apart   = "user=x [{algorithm: fixed_window, count: 5, period: 1s, min_interval: 1m}]"
		weighed = "user=x [{algorithm: fixed_window, count: 5, period: 1s, min_interval: 1m, weight: 2}]"
	)
	for _, c := range []struct{ name, first, again, want string }{
		{"blocked", blocks + " *5 | " + blocks, blocks, "denied 0/5, in 1m"},
		{"blocked, and the limit is raised", blocks + " *5 | " + blocks, raised, "denied 0/10, in 1m"},
		{"blocked, a cost above what is left", blocks + " *5 | " + blocks, raised + " *8", "denied 0/10, in 1m"},
		{"too soon", apart, apart, "denied 0/5, in 1m"},
		{"too soon, read", apart, apart + " read", "denied 0/5, in 1m"},
		{"too soon, of a weight", weighed, weighed, "denied 0/5, in 1m"},
		{"too many units", plain, plain + " *5", "denied 4/5, in 1s"},
		{"never", apart, apart + " *6", "denied_never 4/5"},
	} {
		s := newScript(t, testRules)
		s.do(c.first)
		if got := s.do(c.again); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
