package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// What the Decider is told of losing charges and of being cut off.
func TestReplicationAndPartition(t *testing.T) {
	var got []check.Request
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) { got = append(got[:0], b.Requests...) }))
	s.SetRules(parse(t, `
domain: shop
descriptors:
  - key: short
    rate_limit: {period: 9999ms, count: 3}
  - key: long
    rate_limit: {period: 10s, count: 3}
  - key: mixed
    limits: [{unit: second, count: 1}, {unit: day, count: 9}]
  - key: sure
    rate_limit: {unit: second, count: 3}
    replication: sync
    on_partition: closed
  - key: careless
    rate_limit: {unit: hour, count: 3}
    replication: none
    on_partition: open
    on_failure: closed
  - key: slow
    rate_limit: {unit: second, count: 3}
    replication: async
`))
	every := func(period time.Duration) bucket.Limit {
		return bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: period}
	}
	for _, c := range []struct {
		name               string
		ask                ask
		sync, unreplicated bool
		partition, fail    rules.OnFailure
	}{
		{"a short period", entry("short", "x"), false, true, rules.FailShare, rules.FailShare},
		{"a long period", entry("long", "x"), false, false, rules.FailShare, rules.FailShare},
		{"a long period beside a short", entry("mixed", "x"), false, false, rules.FailShare, rules.FailShare},
		{"sync", entry("sure", "x"), true, false, rules.FailClosed, rules.FailShare},
		{"none", entry("careless", "x"), false, true, rules.FailOpen, rules.FailClosed},
		{"async", entry("slow", "x"), false, false, rules.FailShare, rules.FailShare},
		{"a short period of its own", all(entry("sure", "x"), limits(every(time.Second))), false, true, rules.FailShare, rules.FailShare},
		{"a long period of its own", all(entry("careless", "x"), limits(every(10*time.Second))), false, false, rules.FailShare, rules.FailShare},
		{"both of its own", all(entry("short", "x"), limits(every(time.Hour), every(time.Second))), false, false, rules.FailShare, rules.FailShare},
	} {
		for _, v := range []bucket.Verb{bucket.Check, bucket.Read, bucket.Charge, bucket.Refund, bucket.Reset} {
			b := batch(t, c.ask)
			b.Checks[0].Verb = v
			if err := s.Check(t.Context(), b); err != nil || len(got) != 1 {
				t.Fatalf("%s, %v: %v, %d requests", c.name, v, err, len(got))
			}
			q := got[0]
			if q.Verb != v || q.Sync != c.sync || q.Unreplicated != c.unreplicated || q.OnPartition != c.partition || q.OnFailure != c.fail {
				t.Errorf("%s, %v: sync %v, unreplicated %v, on_partition %v, on_failure %v", c.name, v, q.Sync, q.Unreplicated, q.OnPartition, q.OnFailure)
			}
		}
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
