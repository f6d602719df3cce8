package limiter

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/onenode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: watched
    shadow_mode: true
    rate_limit: {name: watch, unit: minute, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
  - key: blocked
    rate_limit: {unit: minute, requests_per_unit: 0}
    on_failure: closed
  - key: level
    descriptors:
      - key: below
        rate_limit: {unit: hour, requests_per_unit: 1}
  - key: addr
    ip_prefix: {v4: 24}
    rate_limit: {unit: hour, requests_per_unit: 1}
`

// start is on a minute and an hour of the epoch.
const start = 1_700_006_400_000_000_000

func parse(t testing.TB, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse([]rules.File{{Name: "test.yaml", Data: []byte(text)}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// decideFunc is a Decider.
type decideFunc func(ctx context.Context, b *check.Batch)

func (f decideFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }

func newService(t testing.TB, d check.Decider, change ...func(*Config)) *Limiter {
	t.Helper()
	h, err := NewHasher([]byte(strings.Repeat("s", MinSecret)))
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Decider: d,
		Cluster: newFakeCluster(),
		Hasher:  h,
	}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.SetRules(parse(t, testRules))
	return s
}

func newNode(t testing.TB) *onenode.Node {
	t.Helper()
	n, err := onenode.New(start)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ask is one check of domain shop in the making.
type ask func(c *Check)

func entry(key, value string) ask {
	return func(c *Check) { c.Descriptor = append(c.Descriptor, rules.Entry{Key: key, Value: value}) }
}
func domain(d string) ask          { return func(c *Check) { c.Domain = d } }
func cost(n int64) ask             { return func(c *Check) { c.Cost = n } }
func verb(v bucket.Verb) ask       { return func(c *Check) { c.Verb = v } }
func limits(l ...bucket.Limit) ask { return func(c *Check) { c.Limits = append(c.Limits, l...) } }
func all(parts ...ask) ask {
	return func(c *Check) {
		for _, p := range parts {
			p(c)
		}
	}
}

// batch makes a batch of domain shop that the test's end releases.
func batch(t testing.TB, asks ...ask) *Batch {
	b := NewBatch()
	t.Cleanup(b.Release)
	for _, a := range asks {
		c := b.Add()
		c.Domain = "shop"
		a(c)
	}
	return b
}

// mustCheck asks and returns the results.
func mustCheck(t testing.TB, s *Limiter, b *Batch) []Result {
	t.Helper()
	if err := s.Check(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return b.Results
}

func TestConfigValidate(t *testing.T) {
	good := func() Config {
		return Config{Decider: decideFunc(nil), Cluster: newFakeCluster(), Hasher: Hasher{k0: 1, k1: 2}}
	}
	for _, c := range []struct {
		field string
		spoil func(*Config)
	}{
		{"Decider", func(c *Config) { c.Decider = nil }},
		{"Cluster", func(c *Config) { c.Cluster = nil }},
		{"Hasher", func(c *Config) { c.Hasher = Hasher{} }},
		{"InlineLimits", func(c *Config) { c.InlineLimits = -1 }},
		{"InlineEntries", func(c *Config) { c.InlineEntries = bucket.MaxKeyEntries + 1 }},
	} {
		bad := good()
		c.spoil(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("without a good %s: error %v", c.field, err)
		}
	}
	if _, err := New(good()); err != nil {
		t.Error(err)
	}
}

func TestRuleDecides(t *testing.T) {
	s := newService(t, newNode(t))
	for i, want := range []bool{true, true, true, false} {
		r := mustCheck(t, s, batch(t, entry("user", "u1")))[0]
		if r.Allowed != want {
			t.Fatalf("check %d: allowed %v", i, r.Allowed)
		}
		if r.RuleName() != "shop/user" || r.Source != check.Owned || r.Owner != onenode.Name || r.Period != time.Minute || r.Limit != 3 {
			t.Errorf("check %d: %+v", i, r)
		}
	}
	if r := mustCheck(t, s, batch(t, entry("user", "u2")))[0]; !r.Allowed {
		t.Error("another user is denied")
	}
	if r := mustCheck(t, s, batch(t, all(entry("user", "u3"), cost(4))))[0]; r.Allowed || !r.Never() {
		t.Errorf("a cost above the limit: %+v", r)
	}
	if r := mustCheck(t, s, batch(t, all(entry("user", "u3"), cost(math.MaxInt64))))[0]; r.Allowed || !r.Never() {
		t.Errorf("a cost at int64's end: %+v", r)
	}
}

func TestUnmatched(t *testing.T) {
	node := newNode(t)
	s := newService(t, node)
	for _, c := range []struct {
		name string
		ask  ask
		rule string
	}{
		{"no rule", entry("nobody", "x"), ""},
		{"only a level", entry("level", "x"), ""},
		{"deeper than the rule", all(entry("user", "x"), entry("more", "y")), ""},
		{"unlimited rule", entry("free", "x"), "shop/free"},
		{"unknown domain", all(domain("nowhere"), entry("user", "x")), ""},
		{"unlimited limits of its own", all(entry("user", "x"), limits(bucket.Limit{Unlimited: true})), ""},
	} {
		r := mustCheck(t, s, batch(t, c.ask))[0]
		if !r.Allowed || r.Source != check.Unmatched || r.Remaining != math.MaxInt64 || r.Limit != math.MaxInt64 || r.RuleName() != c.rule || r.Limits != nil {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	if n := node.Asked.Load(); n != 0 {
		t.Errorf("%d of them were decided", n)
	}
	// Domains without rules have one count, however many they are.
	mustCheck(t, s, batch(t, all(domain("elsewhere"), entry("user", "x")), all(domain(UnknownDomains), entry("user", "x")),
		all(domain("elsewhere"), entry("user", "x"), limits(bucket.Limit{Count: 1, Period: time.Minute}))))
	if got, want := s.Stats().Unmatched, map[string]uint64{"shop": 3, UnknownDomains: 3}; !maps.Equal(got, want) {
		t.Errorf("unmatched %v, want %v", got, want)
	}
}

func TestNoRulesYet(t *testing.T) {
	s := newService(t, newNode(t))
	s.SetRules(nil)
	if r := mustCheck(t, s, batch(t, entry("user", "x")))[0]; !r.Allowed || r.Source != check.Unmatched {
		t.Errorf("%+v", r)
	}
	if s.Rules() != nil {
		t.Error("there are rules")
	}
}

func TestUnknownDomainRejected(t *testing.T) {
	s := newService(t, newNode(t), func(c *Config) { c.RejectUnknownDomains = true })
	rs := mustCheck(t, s, batch(t, all(domain("nowhere"), entry("user", "x")), entry("nobody", "x"), entry("user", "x")))
	if e := rs[0].Err; e == nil || e.Code != UnknownDomain || e.Path(0) != "checks[0].domain" {
		t.Errorf("unknown domain: %v", e)
	}
	for _, r := range rs[1:] {
		if r.Err != nil || !r.Allowed {
			t.Errorf("known domain: %+v", r)
		}
	}
}

func TestShadow(t *testing.T) {
	s := newService(t, newNode(t))
	for i, shadowed := range []bool{false, true} {
		r := mustCheck(t, s, batch(t, entry("watched", "x")))[0]
		if !r.Allowed || r.Shadowed != shadowed || r.RetryAfter != 0 || r.Remaining != 0 || r.RuleName() != "watch" {
			t.Errorf("check %d: %+v", i, r)
		}
	}
	r := mustCheck(t, s, batch(t, all(entry("watched", "y"), cost(9))))[0]
	if !r.Allowed || !r.Shadowed || r.Never() {
		t.Errorf("a cost that can never be admitted: %+v", r)
	}
}

// What is asked of the Decider: the rule's own settings.
func TestRequests(t *testing.T) {
	var got []check.Request
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) { got = append([]check.Request(nil), b.Requests...) }))
	one := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Second}
	mustCheck(t, s, batch(t,
		all(entry("blocked", "x"), cost(2), verb(bucket.Charge)),
		entry("watched", "x"),
		entry("addr", "10.1.2.3"),
		entry("addr", "10.1.2.4"),
		all(entry("user", "x"), limits(one)),
		entry("user", "x"),
		all(entry("user", "x"), limits(one)),
	))
	if len(got) != 7 {
		t.Fatalf("%d requests", len(got))
	}
	if q := got[0]; q.Cost != 2 || q.Verb != bucket.Charge || q.OnFailure != rules.FailClosed || q.Shadow || q.Limits.At(0).Count != 0 {
		t.Errorf("%+v", q)
	}
	if !got[1].Shadow {
		t.Error("the shadow is not told")
	}
	if got[2].Key != got[3].Key {
		t.Error("addresses of one prefix have two counters")
	}
	if got[4].Key == got[5].Key {
		t.Error("a check that brings its limits shares the rule's counter")
	}
	if got[4].Key != got[6].Key || got[4].Limits != got[6].Limits {
		t.Error("equal limits that come with checks are not one counter and one pointer")
	}
	if got[0].Key == got[1].Key || got[0].Key == (bucket.Key{}) {
		t.Error("keys are not distinct")
	}
}

func TestInlineLimits(t *testing.T) {
	s := newService(t, newNode(t))
	once := all(entry("user", "x"), limits(bucket.Limit{Algorithm: bucket.SlidingLog, Count: 1, Period: time.Hour}))
	for i, want := range []bool{true, false} {
		r := mustCheck(t, s, batch(t, once))[0]
		if r.Allowed != want || r.Rule != nil || r.Period != time.Hour || r.Limit != 1 {
			t.Errorf("check %d: %+v", i, r)
		}
	}
	if r := mustCheck(t, s, batch(t, entry("user", "x")))[0]; !r.Allowed || r.Remaining != 2 {
		t.Errorf("the rule's counter was charged: %+v", r)
	}
	// Limits of an unknown domain are good even where unknown domains are rejected.
	s = newService(t, newNode(t), func(c *Config) { c.RejectUnknownDomains = true })
	if r := mustCheck(t, s, batch(t, all(domain("nowhere"), once)))[0]; r.Err != nil || !r.Allowed {
		t.Errorf("%+v", r)
	}
}

// TestInlineEntries: the limits of a check keep so many entries in all, and the error names the first limit that is too much. Unlimited
// ones do not move the places of others.
func TestInlineEntries(t *testing.T) {
	of := func(entries int32) bucket.Limit {
		return bucket.Limit{Algorithm: bucket.SlidingLog, Count: 1, Period: time.Hour, LogEntries: entries}
	}
	free := bucket.Limit{Unlimited: true}
	s := newService(t, newNode(t))
	rs := mustCheck(t, s, batch(t,
		all(entry("user", "a"), limits(free, of(4096))),
		all(entry("user", "b"), limits(of(4096), free, of(1))),
		all(entry("user", "c"), limits(of(1024), of(0), of(0), of(0), of(0))),
	))
	if r := rs[0]; !r.Allowed || r.LimitPlace() != 1 || r.Period != time.Hour {
		t.Errorf("%+v", r)
	}
	for i, field := range map[int]string{1: "limits[2].log_entries", 2: "limits[4].log_entries"} {
		if err := rs[i].Err; err == nil || err.Code != Invalid || err.Field != field || !strings.Contains(err.Message, "at most 4096 in all") {
			t.Errorf("check %d: %+v, want field %s", i, err, field)
		}
	}
	s = newService(t, newNode(t), func(c *Config) { c.InlineEntries = bucket.MaxKeyEntries })
	if r := mustCheck(t, s, batch(t, all(entry("user", "a"), limits(of(65536)))))[0]; !r.Allowed {
		t.Errorf("%+v", r)
	}
}

func TestReset(t *testing.T) {
	s := newService(t, newNode(t))
	own := limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Hour})
	spend := batch(t, all(entry("user", "x"), cost(3)), all(entry("user", "x"), own))
	for _, r := range mustCheck(t, s, spend) {
		if !r.Allowed {
			t.Fatalf("%+v", r)
		}
	}
	reset := verb(bucket.Reset)
	b := batch(t, all(entry("user", "x"), reset), all(entry("nobody", "x"), reset), all(domain("shop"), reset), all(entry("user", "x"), cost(-5), reset))
	if err := s.Check(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if r := b.Results[0]; r.Err != nil || r.Owner != onenode.Name {
		t.Errorf("%+v", r)
	}
	if r := b.Results[1]; r.Err != nil || r.Source != check.Unmatched {
		t.Errorf("nothing to reset: %+v", r)
	}
	if r := b.Results[2]; r.Err == nil || r.Err.Field != "descriptor" {
		t.Errorf("no descriptor: %+v", r)
	}
	if r := b.Results[3]; r.Err != nil {
		t.Errorf("a cost means nothing to Reset: %+v", r)
	}
	rs := mustCheck(t, s, batch(t, all(entry("user", "x"), cost(3)), all(entry("user", "x"), own)))
	if !rs[0].Allowed {
		t.Error("the counter was not reset")
	}
	if rs[1].Allowed {
		t.Error("the counter of limits that come with checks was reset too")
	}
}

func TestAnswerErrors(t *testing.T) {
	other := errors.New("the network is down")
	for _, c := range []struct {
		name string
		errs []error
		want []Code // 0: allowed
		call Code   // 0: no error of the call
	}{
		{"one of two overloaded", []error{check.ErrOverloaded, nil}, []Code{Overloaded, 0}, 0},
		{"overloaded and unavailable", []error{check.ErrOverloaded, check.ErrNoOwner}, []Code{Overloaded, Unavailable}, 0},
		{"all overloaded", []error{check.ErrOverloaded, check.ErrOverloaded}, []Code{Overloaded, Overloaded}, Overloaded},
		{"no owner", []error{check.ErrNoOwner}, []Code{Unavailable}, 0},
		{"wrapped", []error{errors.Join(other, check.ErrNoOwner)}, []Code{Unavailable}, 0},
		{"another error", []error{other}, []Code{Unavailable}, 0},
	} {
		s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Answers {
				b.Answers[i] = check.Answer{Err: c.errs[i]}
				b.Answers[i].Allowed = c.errs[i] == nil
			}
		}))
		b := batch(t)
		for range c.errs {
			a := b.Add()
			a.Domain, a.Descriptor = "shop", append(a.Descriptor, rules.Entry{Key: "user", Value: "x"})
		}
		err := s.Check(t.Context(), b)
		e, _ := errors.AsType[*Error](err)
		if (e == nil) != (c.call == 0) || e != nil && e.Code != c.call {
			t.Errorf("%s: call error %v", c.name, err)
		}
		for i, want := range c.want {
			r := b.Results[i]
			if want == 0 && (r.Err != nil || !r.Allowed) || want != 0 && (r.Err == nil || r.Err.Code != want || r.Allowed) {
				t.Errorf("%s: result %d: %+v", c.name, i, r)
			}
		}
	}
}
