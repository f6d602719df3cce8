package envoy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/test/onenode"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// decideFunc is a Decider that is one function.
type decideFunc func(context.Context, *check.Batch)

func (f decideFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }

// newLimiter returns a Service on d with one file of rules.
func newLimiter(t testing.TB, d check.Decider, rules string, change ...func(*limiter.Config)) *limiter.Limiter {
	t.Helper()
	return apitest.NewLimiter(t, d, rules, member.Member{Name: "n1", Boot: "b1", State: member.Serving}, change...)
}

func open(t testing.TB, c Config) *API {
	t.Helper()
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// openNode opens an API to a node of its own with one file of rules.
func openNode(t testing.TB, rules string) (*API, *onenode.Node) {
	n := apitest.NewNode(t)
	return open(t, Config{Limiter: newLimiter(t, n, rules)}), n
}

// descriptor has the entries given as "key=value".
func descriptor(entries ...string) *commonv3.RateLimitDescriptor {
	d := new(commonv3.RateLimitDescriptor)
	for _, text := range entries {
		key, value, _ := strings.Cut(text, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func request(domain string, ds ...*commonv3.RateLimitDescriptor) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: ds}
}

func TestConfigValidate(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Limiter") {
		t.Errorf("error %v", err)
	}
}

// TestBadRequests: what is wrong with all of a request is named, and nothing is charged.
func TestBadRequests(t *testing.T) {
	long := strings.Repeat("x", limiter.MaxText+1)
	good := descriptor("user=ann")
	for _, c := range []struct {
		name string
		req  *ratelimitv3.RateLimitRequest
		want string
	}{
		{"nothing", nil, "domain: empty"},
		{"no domain", request("", good), "domain: empty"},
		{"a long domain", request(long, good), "domain: 1025 bytes; want at most 1024"},
		{"no descriptors", request("shop"), "descriptors: empty; want at least one"},
		{"too many descriptors", request("shop", make([]*commonv3.RateLimitDescriptor, limiter.MaxChecks+1)...),
			"descriptors: there are 10001; want at most 10000"},
		{"nothing but wrong descriptors", request("shop", descriptor(), descriptor("=x")), "descriptors[0].entries: empty; want at least one"},
	} {
		d, n := openNode(t, apitest.Rules)
		res, err := d.ShouldRateLimit(t.Context(), c.req)
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), c.want) || res != nil {
			t.Errorf("%s: %v, %v; want InvalidArgument %q", c.name, res, err, c.want)
		}
		if n.Asked.Load() != 0 {
			t.Errorf("%s: %d checks reached the node", c.name, n.Asked.Load())
		}
	}
}

// TestBadDescriptors: what is wrong with one descriptor is named where it stands alone. Beside a good one it denies the request,
// wherever it stands: an error of the call would let it pass under failure_mode_deny: false.
func TestBadDescriptors(t *testing.T) {
	limited := func(o *override) *commonv3.RateLimitDescriptor {
		d := descriptor("user=ann")
		d.Limit = o
		return d
	}
	for _, c := range []struct {
		name string
		bad  *commonv3.RateLimitDescriptor
		want string
	}{
		{"no entries", descriptor(), "entries: empty; want at least one"},
		{"nil", nil, "entries: empty; want at least one"},
		{"65 entries", descriptor(make([]string, 65)...), "entries: there are 65; want at most 64"},
		{"no key", descriptor("user=ann", "=x"), "entries[1].key: empty"},
		{"a long key", descriptor(strings.Repeat("x", limiter.MaxText+1) + "="), "entries[0].key: 1025 bytes; want at most 1024"},
		{"an override without unit", limited(&override{RequestsPerUnit: 5}),
			"limit.unit: 0 is no unit; want 1 (SECOND), 2 (MINUTE), 3 (HOUR), 4 (DAY), 5 (MONTH), 6 (YEAR) or 7 (week)"},
		{"an eighth unit", limited(&override{Unit: 8}), "limit.unit: 8 is no unit; want"},
		{"a unit below 0", limited(&override{Unit: -1}), "limit.unit: -1 is no unit; want"},
		{"no units", limited(&override{Unit: typev3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(0)}),
			"limit.unit_multiplier: 0 is out of range; of this unit want 1 to 876600"},
		{"a thousand years", limited(&override{Unit: typev3.RateLimitUnit_YEAR, UnitMultiplier: wrapperspb.UInt32(1000)}),
			"limit.unit_multiplier: 1000 is out of range; of this unit want 1 to 100"},
	} {
		d, _ := openNode(t, apitest.Rules)
		_, err := d.ShouldRateLimit(t.Context(), request("shop", c.bad))
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "descriptors[0]."+c.want) {
			t.Errorf("%s: %v; want InvalidArgument %q", c.name, err, c.want)
		}
		good := descriptor("user=ann")
		const wrong, fine = " over reset=1s", " ok 3/MINUTE left=2 reset=1m0s"
		for i, ds := range [][]*commonv3.RateLimitDescriptor{{c.bad, good}, {good, c.bad}} {
			d, _ := openNode(t, apitest.Rules)
			res, err := d.ShouldRateLimit(t.Context(), request("shop", ds...))
			want := []string{"over:" + wrong + ";" + fine, "over:" + fine + ";" + wrong}[i]
			if err != nil || show(res) != want {
				t.Errorf("%s beside a good one: %s, %v; want %s", c.name, show(res), err, want)
			}
			all, n := openNode(t, apitest.Rules)
			all.config.AllOrNothing = true
			res, err = all.ShouldRateLimit(t.Context(), request("shop", ds...))
			if err != nil || res.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("%s, all or nothing: %v, %v; want over", c.name, res, err)
			}
			all.config.AllOrNothing = false
			if res, err := all.ShouldRateLimit(t.Context(), request("shop", good)); err != nil || show(res) != "ok:"+fine {
				t.Errorf("%s, all or nothing: something was charged: %s, %v after %d checks", c.name, show(res), err, n.Asked.Load())
			}
		}
	}
}

// TestOddValues: whatever the value of a descriptor is, it is counted, and no other descriptor goes unlimited for it.
func TestOddValues(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	for _, odd := range []string{"unknown=" + long, "user=" + long, "unknown=\xff", "user=\xff", "user=" + long + "\xff"} {
		d, _ := openNode(t, apitest.Rules)
		want := 4 // with an unknown key three pass by the other's limit, else by either's
		for i := range 4 {
			res, err := d.ShouldRateLimit(t.Context(), request("shop", descriptor(odd), descriptor("user=ann")))
			if err != nil || len(res.GetStatuses()) != 2 {
				t.Fatalf("%.10q: %v, %v", odd, res, err)
			}
			if over := res.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT; over != (i == want-1) {
				t.Errorf("%.10q, request %d: %v", odd, i, res)
			}
		}
	}
	// Rules see the value as it came.
	d, _ := openNode(t, "domain: shop\ndescriptors:\n  - {key: path, value: '/login*.php', share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 1}}")
	for i, want := range []string{"ok", "over"} {
		path := "path=/login?" + strings.Repeat(fmt.Sprint(i), 3000) + ".php"
		res, err := d.ShouldRateLimit(t.Context(), request("shop", descriptor(path)))
		if err != nil || !strings.HasPrefix(show(res), want+":") {
			t.Errorf("request %d by a pattern: %v, %v; want %s", i, res, err, want)
		}
	}
}

func TestUnknownDomain(t *testing.T) {
	n := apitest.NewNode(t)
	d := open(t, Config{Limiter: newLimiter(t, n, apitest.Rules, func(c *limiter.Config) { c.RejectUnknownDomains = true })})
	_, err := d.ShouldRateLimit(t.Context(), request("shop2", descriptor("user=ann")))
	if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "domain: no rules for domain shop2" {
		t.Errorf("error %v", err)
	}
}

// TestDeniedWithoutARule: such a descriptor denies the request, and has no limit to show.
func TestDeniedWithoutARule(t *testing.T) {
	d, _ := openNode(t, "unmatched: deny\n"+apitest.Rules)
	res, err := d.ShouldRateLimit(t.Context(), request("shop", descriptor("user=ann"), descriptor("other=x")))
	if err != nil || res.OverallCode != ratelimitv3.RateLimitResponse_OVER_LIMIT || res.Statuses[0].Code != ratelimitv3.RateLimitResponse_OK {
		t.Fatalf("%v, %v", res, err)
	}
	if s := res.Statuses[1]; s.Code != ratelimitv3.RateLimitResponse_OVER_LIMIT || s.CurrentLimit != nil || s.DurationUntilReset != nil {
		t.Errorf("%v", s)
	}
}

// TestFailures: a descriptor that a rule holds is answered by what the rule says of failures where nobody decided, and never
// by an error of the call, which Envoy passes under failure_mode_deny: false.
func TestFailures(t *testing.T) {
	const rules = apitest.Rules + `
  - key: part
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: closed
    on_failure: closed
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: open
    on_failure: open
    rate_limit: {unit: minute, requests_per_unit: 1}
`
	for _, c := range []struct {
		name string
		// keys and what becomes of each: allowed, denied or an error.
		keys     string
		outcomes []any
		change   func(*Config)
		want     string
	}{
		{"no owner", "user", []any{check.ErrNoOwner}, nil, "OVER_LIMIT OVER_LIMIT"},
		{"closed", "closed", []any{check.ErrNoOwner}, nil, "OVER_LIMIT OVER_LIMIT"},
		{"open", "open", []any{check.ErrNoOwner}, nil, "OK OK"},
		{"only watched", "watched", []any{check.ErrNoOwner}, nil, "OK OK"},
		{"no owner of the second", "user user", []any{true, check.ErrNoOwner}, nil, "OVER_LIMIT OK OVER_LIMIT"},
		{"a full queue", "user user", []any{true, check.ErrOverloaded}, nil, "OVER_LIMIT OK OVER_LIMIT"},
		{"only full queues", "user user", []any{check.ErrOverloaded, check.ErrOverloaded}, nil, "OVER_LIMIT OVER_LIMIT OVER_LIMIT"},
		{"full queues of open rules", "open open", []any{check.ErrOverloaded, check.ErrOverloaded}, nil, "OK OK OK"},
		{"another error", "user", []any{errors.New("node n2 is odd")}, nil, "OVER_LIMIT OVER_LIMIT"},
		{"one is over", "open user", []any{check.ErrNoOwner, false}, nil, "OVER_LIMIT OK OVER_LIMIT"},
		{"one quota of two", "part part", []any{true, check.ErrNoOwner}, nil, "OK OK OVER_LIMIT"},
		{"all quotas", "part part", []any{false, check.ErrNoOwner}, nil, "OVER_LIMIT OVER_LIMIT OVER_LIMIT"},
		{"all or nothing", "user user", []any{true, check.ErrNoOwner}, func(c *Config) { c.AllOrNothing = true }, "OVER_LIMIT OVER_LIMIT OVER_LIMIT"},
		{"a node without time", "user other open", nil, func(c *Config) { c.Admit = func() bool { return false } }, "OVER_LIMIT OVER_LIMIT OK OK"},
		{"a node without time and no rule", "other", nil, func(c *Config) { c.Admit = func() bool { return false } }, "OK OK"},
	} {
		decider := decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Answers {
				switch o := c.outcomes[i].(type) {
				case error:
					b.Answers[i].Err = o
				case bool:
					b.Answers[i].Source, b.Answers[i].Allowed = check.Owned, o
				}
			}
		})
		conf := Config{Limiter: newLimiter(t, decider, rules)}
		if c.change != nil {
			c.change(&conf)
		}
		req := request("shop")
		for key := range strings.FieldsSeq(c.keys) {
			req.Descriptors = append(req.Descriptors, descriptor(key+"=x"))
		}
		res, err := open(t, conf).ShouldRateLimit(t.Context(), req)
		got := ""
		if err != nil {
			got = status.Code(err).String() + " " + status.Convert(err).Message()
		} else {
			got = res.GetOverallCode().String()
			for _, s := range res.GetStatuses() {
				got += " " + s.GetCode().String()
			}
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestStandIns: what on_failure and on_partition answered is an answer, of which only the code
// is known where no counter was looked at.
func TestStandIns(t *testing.T) {
	for _, c := range []struct {
		source check.Source
		open   bool
		want   string
	}{
		{check.Open, true, "ok: ok"},
		{check.Closed, false, "over: over reset=1s"},
	} {
		d := open(t, Config{ResponseHeaders: true, Limiter: newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) {
			b.Answers[0].Source, b.Answers[0].Allowed = c.source, c.open
			if !c.open {
				b.Answers[0].RetryAfter = 1e9
			}
		}), apitest.Rules)})
		res, err := d.ShouldRateLimit(t.Context(), request("shop", descriptor("user=ann")))
		if err != nil || show(res) != c.want || len(res.GetResponseHeadersToAdd()) != 0 {
			t.Errorf("%v, %v; want %q and no headers", res, err, c.want)
		}
	}
}
