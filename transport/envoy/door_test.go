package envoy

import (
	"context"
	"errors"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/internal/doortest"
	"github.com/sluice-project/sluice/transport/internal/onenode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// decideFunc is a Decider that is one function.
type decideFunc func(context.Context, *check.Batch)

func (f decideFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }

// newLimiter returns a Service on d with one file of rules.
func newLimiter(t testing.TB, d check.Decider, rules string, change ...func(*transport.Config)) *transport.Service {
	t.Helper()
	return doortest.NewLimiter(t, d, rules, member.Member{Name: "n1", Boot: "b1", State: member.Serving}, change...)
}

func open(t testing.TB, c Config) *Door {
	t.Helper()
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// openNode opens a door to a node of its own with one file of rules.
func openNode(t testing.TB, rules string) (*Door, *onenode.Node) {
	n := doortest.NewNode(t)
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

// TestBadRequests: what is wrong is named, and nothing is charged, for the good descriptors
// beside it neither.
func TestBadRequests(t *testing.T) {
	long := strings.Repeat("x", transport.MaxText+1)
	limited := func(o *override) *commonv3.RateLimitDescriptor {
		d := descriptor("user=ann")
		d.Limit = o
		return d
	}
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
		{"too many descriptors", request("shop", make([]*commonv3.RateLimitDescriptor, transport.MaxChecks+1)...),
			"descriptors: there are 10001; want at most 10000"},
		{"no entries", request("shop", good, descriptor()), "descriptors[1].entries: empty; want at least one"},
		{"a nil descriptor", request("shop", good, nil), "descriptors[1].entries: empty; want at least one"},
		{"65 entries", request("shop", descriptor(make([]string, 65)...), good), "descriptors[0].entries: there are 65; want at most 64"},
		{"no key", request("shop", good, descriptor("user=ann", "=x")), "descriptors[1].entries[1].key: empty"},
		{"a long key", request("shop", good, descriptor(long+"=")), "descriptors[1].entries[0].key: 1025 bytes; want at most 1024"},
		{"a long value", request("shop", good, descriptor("user="+long)), "descriptors[1].entries[0].value: 1025 bytes; want at most 1024"},
		{"an override without unit", request("shop", good, limited(&override{RequestsPerUnit: 5})),
			"descriptors[1].limit.unit: 0 is no unit; want 1 (SECOND), 2 (MINUTE), 3 (HOUR), 4 (DAY), 5 (MONTH), 6 (YEAR) or 7 (week)"},
		{"an eighth unit", request("shop", good, limited(&override{Unit: 8})), "descriptors[1].limit.unit: 8 is no unit; want"},
		{"a unit below 0", request("shop", good, limited(&override{Unit: -1})), "descriptors[1].limit.unit: -1 is no unit; want"},
		{"no units", request("shop", good, limited(&override{Unit: typev3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(0)})),
			"descriptors[1].limit.unit_multiplier: 0 is out of range; of this unit want 1 to 876600"},
		{"a thousand years", request("shop", good, limited(&override{Unit: typev3.RateLimitUnit_YEAR, UnitMultiplier: wrapperspb.UInt32(1000)})),
			"descriptors[1].limit.unit_multiplier: 1000 is out of range; of this unit want 1 to 100"},
	} {
		d, n := openNode(t, doortest.Rules)
		res, err := d.ShouldRateLimit(t.Context(), c.req)
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), c.want) || res != nil {
			t.Errorf("%s: %v, %v; want InvalidArgument %q", c.name, res, err, c.want)
		}
		if n.Asked.Load() != 0 {
			t.Errorf("%s: %d checks reached the node", c.name, n.Asked.Load())
		}
	}
}

func TestUnknownDomain(t *testing.T) {
	n := doortest.NewNode(t)
	d := open(t, Config{Limiter: newLimiter(t, n, doortest.Rules, func(c *transport.Config) { c.RefuseUnknownDomains = true })})
	_, err := d.ShouldRateLimit(t.Context(), request("shop2", descriptor("user=ann")))
	if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "domain: no rules for domain shop2" {
		t.Errorf("error %v", err)
	}
}

// TestFailures: what nobody decided is an error, so that Envoy's failure_mode_deny counts,
// unless another descriptor settles it.
func TestFailures(t *testing.T) {
	const rules = doortest.Rules + `
  - key: part
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
`
	for _, c := range []struct {
		name string
		// what becomes of each descriptor: allowed, denied or an error.
		users  []any
		parts  []any
		change func(*Config)
		want   string
	}{
		{"no holder", []any{check.ErrNoHolder}, nil, nil,
			"Unavailable descriptors[0]: no node that may decide this key answered in time; it is not known whether the cost was charged"},
		{"no holder of the second", []any{true, check.ErrNoHolder}, nil, nil, "Unavailable descriptors[1]: no node"},
		{"a full queue", []any{true, check.ErrOverloaded}, nil, nil, "ResourceExhausted descriptors[1]: a queue to the deciding node is full"},
		{"only full queues", []any{check.ErrOverloaded, check.ErrOverloaded}, nil, nil, "ResourceExhausted descriptors[0]: a queue"},
		{"either", []any{check.ErrNoHolder, check.ErrOverloaded}, nil, nil, "ResourceExhausted descriptors[1]: a queue"},
		{"another error", []any{errors.New("node n2 is odd")}, nil, nil, "Unavailable descriptors[0]: node n2 is odd"},
		{"one is over", []any{check.ErrNoHolder, false}, nil, nil, "OVER_LIMIT UNKNOWN OVER_LIMIT"},
		{"a quota that is over settles nothing", []any{check.ErrNoHolder}, []any{true, false}, nil, "Unavailable descriptors[0]: no node"},
		{"all quotas that are over do", []any{check.ErrNoHolder}, []any{false, false}, nil, "OVER_LIMIT UNKNOWN OVER_LIMIT OVER_LIMIT"},
		{"a quota that failed is not over", nil, []any{false, check.ErrNoHolder}, nil, "Unavailable descriptors[1]: no node"},
		{"all or nothing", []any{false, check.ErrNoHolder}, nil, func(c *Config) { c.AllOrNothing = true }, "Unavailable descriptors[1]: no node"},
	} {
		outcomes := append(c.users, c.parts...)
		decider := decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Answers {
				switch o := outcomes[i].(type) {
				case error:
					b.Answers[i].Err = o
				case bool:
					b.Answers[i].Source, b.Answers[i].Allowed = check.Held, o
				}
			}
		})
		conf := Config{Limiter: newLimiter(t, decider, rules)}
		if c.change != nil {
			c.change(&conf)
		}
		req := request("shop")
		for i := range outcomes {
			key := "user=ann"
			if i >= len(c.users) {
				key = "part=x"
			}
			req.Descriptors = append(req.Descriptors, descriptor(key))
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
		}), doortest.Rules)})
		res, err := d.ShouldRateLimit(t.Context(), request("shop", descriptor("user=ann")))
		if err != nil || show(res) != c.want || len(res.GetResponseHeadersToAdd()) != 0 {
			t.Errorf("%v, %v; want %q and no headers", res, err, c.want)
		}
	}
}

func TestLeaving(t *testing.T) {
	n := doortest.NewNode(t)
	leaving := false
	d := open(t, Config{Limiter: newLimiter(t, n, doortest.Rules), Leaving: func() bool { return leaving }})
	req := request("shop", descriptor("user=ann"))
	if _, err := d.ShouldRateLimit(t.Context(), req); err != nil {
		t.Error(err)
	}
	leaving = true
	if _, err := d.ShouldRateLimit(t.Context(), req); status.Code(err) != codes.Unavailable {
		t.Errorf("while leaving: %v, want Unavailable", err)
	}
	if n.Asked.Load() != 1 {
		t.Errorf("%d checks reached the node, want 1", n.Asked.Load())
	}
}
