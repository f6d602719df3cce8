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
	s := play(t, testRules, `
		user=u1 | user=u1 | user=u1 | user=u1 => allowed 2/3 | allowed 1/3 | allowed 0/3 | denied 0/3, in 1m
		user=u2 => allowed 2/3
		user=u3 *4 | user=u3 *9223372036854775807 => denied_never 3/3 | denied_never 3/3
		watched=x | watched=x => allowed 0/1 | allowed_shadow 0/1
		watched=y *9 => allowed_shadow 1/1
		user=x => allowed 2/3
	`)
	if r := mustCheck(t, s.Limiter, batch(t, entry("user", "x")))[0]; r.RuleName() != "shop/user" || r.Source != check.Owned || r.Owner != onenode.Name || r.Period != time.Minute {
		t.Errorf("%+v", r)
	}
}

func TestUnmatched(t *testing.T) {
	s := newScript(t, testRules)
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
		r := mustCheck(t, s.Limiter, batch(t, c.ask))[0]
		if !r.Allowed || r.Source != check.Unmatched || r.Remaining != math.MaxInt64 || r.Limit != math.MaxInt64 || r.RuleName() != c.rule || r.Limits != nil {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	if n := s.node.Asked.Load(); n != 0 {
		t.Errorf("%d of them were decided", n)
	}
	// Domains without rules have one count, however many they are.
	s.play("@elsewhere user=x | @" + UnknownDomains + " user=x | @elsewhere user=x [1/1m] => unmatched allowed | unmatched allowed | allowed 0/1")
	if got, want := s.Stats().Unmatched, map[string]uint64{"shop": 3, UnknownDomains: 3}; !maps.Equal(got, want) {
		t.Errorf("unmatched %v, want %v", got, want)
	}
	s.SetRules(nil)
	s.play("user=x => unmatched allowed")
	if s.Rules() != nil {
		t.Error("there are rules")
	}
}

// TestUnknownDomainRejected: limits of the check are good even where unknown domains are rejected.
func TestUnknownDomainRejected(t *testing.T) {
	s := newScript(t, testRules, func(c *Config) { c.RejectUnknownDomains = true })
	s.play(`
		@nowhere user=x | @nowhere user=x [1/1h] => unknown_domain domain | allowed 0/1
		nobody=x | user=x => unmatched allowed | allowed 2/3
	`)
}

// TestKeys: which checks share a counter.
func TestKeys(t *testing.T) {
	var got []check.Request
	s := newScript(t, testRules)
	s.config.Decider = decideFunc(func(_ context.Context, b *check.Batch) { got = append([]check.Request(nil), b.Requests...) })
	s.do("addr=10.1.2.3 | addr=10.1.2.4 | user=x [1/1s] | user=x | user=x [1/1s] | blocked=x")
	if len(got) != 6 || got[0].Key != got[1].Key {
		t.Fatalf("addresses of one prefix have two counters: %+v", got)
	}
	if got[2].Key == got[3].Key {
		t.Error("a check that brings its limits shares the rule's counter")
	}
	if got[2].Key != got[4].Key || got[2].Limits != got[4].Limits {
		t.Error("equal limits that come with checks are not one counter and one pointer")
	}
	if got[0].Key == got[3].Key || got[0].Key == (bucket.Key{}) || got[5].Limits.At(0).Count != 0 {
		t.Error("keys are not distinct")
	}
}

func TestInlineLimits(t *testing.T) {
	const once = "user=x [{algorithm: sliding_log, count: 1, period: 1h}]"
	s := play(t, testRules, once+" => allowed 0/1\n"+once+" => denied 0/1, in 1h\nuser=x => allowed 2/3")
	log := bucket.Limit{Algorithm: bucket.SlidingLog, Count: 1, Period: time.Hour}
	if r := mustCheck(t, s.Limiter, batch(t, all(entry("user", "x"), limits(log))))[0]; r.Rule != nil || r.Period != time.Hour {
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

// TestReset: the checks of one key are decided in the order in which they stand. A reset has no cost, and leaves the counter of limits
// that come with checks.
func TestReset(t *testing.T) {
	play(t, testRules, `
		user=x *3 | user=x *3 | user=x reset *-5 | user=x *3 | user=x *3 => allowed 0/3 | denied 0/3, in 1m | allowed 3/3 | allowed 0/3 | denied 0/3, in 1m
		user=x [1/1h] => allowed 0/1
		user=x reset | nobody=x reset | reset => allowed 3/3 | unmatched allowed | invalid descriptor
		user=x *3 | user=x [1/1h] => allowed 0/3 | denied 0/1, in 1h
	`)
}

// TestDrainAndNoDelay: the API's wish reaches the counter.
func TestDrainAndNoDelay(t *testing.T) {
	const queue = "user=q [{algorithm: leaky_queue, count: 60, period: 1m, burst: 5}] nodelay"
	play(t, testRules, "user=x *4 drain | user=x => denied_never 0/3 | denied 0/3, in 1m\n"+queue+" => allowed 4/5\n"+queue+" => denied 0/5, in 1s")
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
