package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// wrong is something that no client should send, about a key of the rules' user that nobody
// else asks for.
type wrong struct {
	name string
	// send returns what came back, an error or an answer, as one text.
	send func(ctx context.Context, n *process.Node, key string) string
	// want are parts of that text: the field at fault, or the rule that was broken.
	want []string
}

// rejects sends each of cases to a node and wants an answer that says what is wrong, and the
// key's counter left as it was, by the word of another node.
func rejects(t *testing.T, nodes []*process.Node, left func(t *testing.T, n *process.Node, key string) int64, full int64, cases []wrong) {
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			key := fmt.Sprintf("wrong-%d", i)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			got := c.send(ctx, nodes[i%len(nodes)], key)
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("the answer does not say %q: %.600s", want, got)
				}
			}
			if now := left(t, nodes[(i+1)%len(nodes)], key); now != full {
				t.Errorf("%d of %d are left: it was charged; the answer was %.600s", now, full, got)
			}
		})
	}
}

// userLeft reads how much of the rule's quota a user has left.
func userLeft(t *testing.T, n *process.Node, key string) int64 {
	t.Helper()
	res, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
		Domain: "shop", Descriptor_: process.Entries("user", key), Verb: sluicev1.Verb_VERB_READ,
	}}})
	if err != nil || res.Decisions[0].Error != nil || res.Decisions[0].GetLimit() != userQuota {
		t.Fatalf("reading %s: %v, %v", key, res, err)
	}
	return res.Decisions[0].GetRemaining()
}

// said is an answer or an error as text.
func said(answer any, err error) string {
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(fmt.Sprint(answer)), " ")
}

const long = 1025

// bytes of text, one more than there may be

// repeat returns n times x.
func repeat[T any](n int, x T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = x
	}
	return list
}

func TestAPIsRejectSluice(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	// spoilt asks for one unit of the key, spoilt.
	spoilt := func(spoil func(c *sluicev1.Check)) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			c := &sluicev1.Check{Domain: "shop", Descriptor_: process.Entries("user", key)}
			spoil(c)
			res, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{c}})
			return said(res, err)
		}
	}
	limited := func(l *sluicev1.Limit) func(context.Context, *process.Node, string) string {
		return spoilt(func(c *sluicev1.Check) { c.Limits = []*sluicev1.Limit{l} })
	}
	raw := func(message func(key string) []byte) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			n.API() // connects
			out := []byte{}
			in := message(key)
			err := n.Conn.Invoke(ctx, sluicev1.RateLimitService_Check_FullMethodName, &in, &out, grpc.ForceCodec(process.BytesCodec{}))
			return said("an answer", err)
		}
	}
	rejects(t, nodes, userLeft, userQuota, []wrong{
		{"no domain", spoilt(func(c *sluicev1.Check) { c.Domain = "" }), []string{"ERROR_CODE_INVALID", "checks[0].domain"}},
		{"long domain", spoilt(func(c *sluicev1.Check) { c.Domain = strings.Repeat("d", long) }), []string{"checks[0].domain", "1025"}},
		{"no descriptor", spoilt(func(c *sluicev1.Check) { c.Descriptor_ = nil }), []string{"checks[0].descriptor"}},
		{"empty key", spoilt(func(c *sluicev1.Check) { c.Descriptor_[0].Key = "" }), []string{"checks[0].descriptor[0].key"}},
		{"long key", spoilt(func(c *sluicev1.Check) { c.Descriptor_[0].Key = strings.Repeat("k", long) }), []string{"checks[0].descriptor[0].key"}},
		{"65 entries", spoilt(func(c *sluicev1.Check) { c.Descriptor_ = repeat(65, c.Descriptor_[0]) }), []string{"checks[0].descriptor", "64"}},
		{"negative cost", spoilt(func(c *sluicev1.Check) { c.Cost = new(int64); *c.Cost = -1 }), []string{"checks[0].cost"}},
		{"unknown verb", spoilt(func(c *sluicev1.Check) { c.Verb = 9 }), []string{"checks[0].verb"}},
		{"unknown algorithm", limited(&sluicev1.Limit{Algorithm: 99, Count: 5, PeriodNs: 1e9}), []string{"checks[0].limits[0].algorithm"}},
		{"no period", limited(&sluicev1.Limit{Count: 5}), []string{"checks[0].limits[0].period"}},
		{"negative count", limited(&sluicev1.Limit{Count: -5, PeriodNs: 1e9}), []string{"checks[0].limits[0].count"}},
		{"17 limits", spoilt(func(c *sluicev1.Check) { c.Limits = repeat(17, &sluicev1.Limit{Count: 5, PeriodNs: 1e9}) }), []string{"checks[0].limits", "16"}},
		{"10,001 checks", func(ctx context.Context, n *process.Node, key string) string {
			one := &sluicev1.Check{Domain: "shop", Descriptor_: process.Entries("user", key)}
			res, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: repeat(10_001, one)})
			return said(res, err)
		}, []string{"InvalidArgument", "checks", "10,000"}},
		{"no checks", func(ctx context.Context, n *process.Node, _ string) string {
			res, err := n.API().Check(ctx, &sluicev1.CheckRequest{})
			return said(res, err)
		}, []string{"InvalidArgument", "checks"}},
		{"one of two is wrong, all or nothing", func(ctx context.Context, n *process.Node, key string) string {
			res, err := n.API().Check(ctx, &sluicev1.CheckRequest{AllOrNothing: true, Checks: []*sluicev1.Check{
				{Domain: "shop", Descriptor_: process.Entries("user", key)}, {Domain: "", Descriptor_: process.Entries("user", key)},
			}})
			return said(res, err)
		}, []string{"checks[1].domain"}},
		{"a charge, all or nothing", func(ctx context.Context, n *process.Node, key string) string {
			res, err := n.API().Check(ctx, &sluicev1.CheckRequest{AllOrNothing: true, Checks: []*sluicev1.Check{
				{Domain: "shop", Descriptor_: process.Entries("user", key), Verb: sluicev1.Verb_VERB_CHARGE},
			}})
			return said(res, err)
		}, []string{"checks[0].verb"}},
		{"noise", raw(func(string) []byte { return []byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3} }), []string{"Internal"}},
		{"a number where text belongs", raw(func(key string) []byte {
			check := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7) // domain
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "user")
			entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), key)
			check = protowire.AppendBytes(protowire.AppendTag(check, 2, protowire.BytesType), entry)
			return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), check)
		}), nil}, // a field that it does not know, so that the domain is missing
		{"5 MiB", raw(func(string) []byte { return make([]byte, 5<<20) }), []string{"ResourceExhausted", "larger than max"}},
		{"huge metadata", func(ctx context.Context, n *process.Node, key string) string {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-much", strings.Repeat("m", 1<<20))
			res, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{Domain: "shop", Descriptor_: process.Entries("user", key)}}})
			return said(res, err)
		}, []string{"header list size"}},
	})

	// A stream outlives what is wrong with one of its requests.
	t.Run("stream", func(t *testing.T) {
		stream, err := nodes[0].API().CheckStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for id, ask := range []struct {
			checks []*sluicev1.Check
			want   string
		}{
			{nil, "checks"},
			{[]*sluicev1.Check{{Domain: "", Descriptor_: process.Entries("user", "streamed")}}, "checks[0].domain"},
			{repeat(10_001, &sluicev1.Check{Domain: "shop", Descriptor_: process.Entries("user", "streamed")}), "10,000"},
			{[]*sluicev1.Check{{Domain: "shop", Descriptor_: process.Entries("user", "streamed"), Verb: 9}}, "checks[0].verb"},
			{[]*sluicev1.Check{{Domain: "shop", Descriptor_: process.Entries("user", "streamed")}}, "allowed:true"},
		} {
			if err := stream.Send(&sluicev1.CheckRequest{Id: uint64(id), Checks: ask.checks}); err != nil {
				t.Fatal(err)
			}
			res, err := stream.Recv()
			if got := said(res, err); err != nil || !strings.Contains(got, ask.want) || res.Id != uint64(id) {
				t.Errorf("request %d: %.600s; want %q", id, got, ask.want)
			}
		}
		if left := userLeft(t, nodes[1], "streamed"); left != userQuota-1 {
			t.Errorf("%d left; want all but what the only sound check took", left)
		}
	})
}

func TestAPIsRejectHTTP(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	post := func(format string, headers ...string) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			status, body, err := request(ctx, http.MethodPost, "http://"+n.HTTP+"/v1/check", strings.ReplaceAll(format, "KEY", key), headers...)
			return fmt.Sprintf("%d %s %v", status, body, err)
		}
	}
	const sound = `"domain": "shop", "descriptor": [{"key": "user", "value": "KEY"}]`
	rejects(t, nodes, userLeft, userQuota, []wrong{
		{"a cost of text", post(`{` + sound + `, "cost": "many"}`), []string{"400", `"field":"cost"`}},
		{"a cost of parts", post(`{` + sound + `, "cost": 1.5}`), []string{"400", `"field":"cost"`}},
		{"a negative cost", post(`{` + sound + `, "cost": -1}`), []string{"400", `"field":"cost"`}},
		{"an unknown verb", post(`{` + sound + `, "verb": "steal"}`), []string{"400", `"field":"verb"`}},
		{"an object where a list belongs", post(`{"domain": "shop", "descriptor": {"key": "user", "value": "KEY"}}`), []string{"400", "descriptor"}},
		{"no domain", post(`{"descriptor": [{"key": "user", "value": "KEY"}]}`), []string{"400", `"field":"domain"`}},
		{"no descriptor", post(`{"domain": "shop"}`), []string{"400", `"field":"descriptor"`}},
		{"an unknown field", post(`{` + sound + `, "costs": 1}`), []string{"400", "costs"}},
		{"a field twice", post(`{` + sound + `, "domain": "shop"}`), []string{"400", "domain"}},
		{"an unknown algorithm", post(`{` + sound + `, "limits": [{"algorithm": "guess", "count": 1, "period": 1}]}`), []string{"400", "limits[0].algorithm"}},
		{"a limit without a period", post(`{` + sound + `, "limits": [{"count": 1}]}`), []string{"400", "limits[0].period"}},
		{"something after it", post(`{` + sound + `} {}`), []string{"400"}},
		{"half of it", post(`{` + sound), []string{"400", "offset"}},
		{"no JSON", post(`user=KEY`), []string{"400"}},
		{"nothing", post(``), []string{"400"}},
		{"10,001 checks", post(`{"checks": [` + strings.Repeat(`{`+sound+`},`, 10_000) + `{` + sound + `}]}`), []string{"400", `"field":"checks"`}},
		{"5 MiB", post(`{` + sound + `, "verb": "` + strings.Repeat("x", 5<<20) + `"}`), []string{"413"}},
		{"huge headers", post(`{`+sound+`}`, "X-Much: "+strings.Repeat("m", 1<<20)), []string{"431"}},
		{"another method", func(ctx context.Context, n *process.Node, key string) string {
			status, body, err := request(ctx, http.MethodGet, "http://"+n.HTTP+"/v1/check", strings.ReplaceAll(`{`+sound+`}`, "KEY", key))
			return fmt.Sprintf("%d %s %v", status, body, err)
		}, []string{"405"}},
	})
}

func TestAPIsRejectEnvoy(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	type request = ratelimitv3.RateLimitRequest
	type override = commonv3.RateLimitDescriptor_RateLimitOverride
	// spoilt asks about two descriptors in a request that is wrong as a whole: neither is charged.
	spoilt := func(spoil func(r *request)) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			r := &request{Domain: "shop"}
			for _, value := range []string{key, key + "-other"} {
				r.Descriptors = append(r.Descriptors, &commonv3.RateLimitDescriptor{
					Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: value}},
				})
			}
			spoil(r)
			n.API() // connects
			res, err := ratelimitv3.NewRateLimitServiceClient(n.Conn).ShouldRateLimit(ctx, r)
			return said(res, err)
		}
	}
	// bad asks about the descriptor of the key alone, spoilt. Beside a sound one it would deny the request instead.
	bad := func(spoil func(d *commonv3.RateLimitDescriptor)) func(context.Context, *process.Node, string) string {
		return spoilt(func(r *request) {
			r.Descriptors = r.Descriptors[:1]
			spoil(r.Descriptors[0])
		})
	}
	rejects(t, nodes, userLeft, userQuota, []wrong{
		{"no domain", spoilt(func(r *request) { r.Domain = "" }), []string{"InvalidArgument", "domain"}},
		{"long domain", spoilt(func(r *request) { r.Domain = strings.Repeat("d", long) }), []string{"InvalidArgument", "domain", "1025"}},
		{"no descriptors", spoilt(func(r *request) { r.Descriptors = nil }), []string{"InvalidArgument", "descriptors"}},
		{"10,001 descriptors", spoilt(func(r *request) { r.Descriptors = repeat(10_001, r.Descriptors[0]) }), []string{"InvalidArgument", "descriptors", "10001"}},
		{"no entries", bad(func(d *commonv3.RateLimitDescriptor) { d.Entries = nil }), []string{"InvalidArgument", "descriptors[0].entries"}},
		{"65 entries", bad(func(d *commonv3.RateLimitDescriptor) { d.Entries = repeat(65, d.Entries[0]) }), []string{"InvalidArgument", "descriptors[0].entries"}},
		{"empty key", bad(func(d *commonv3.RateLimitDescriptor) { d.Entries[0].Key = "" }), []string{"InvalidArgument", "descriptors[0].entries[0].key"}},
		{"long key", bad(func(d *commonv3.RateLimitDescriptor) { d.Entries[0].Key = strings.Repeat("k", long) }), []string{"InvalidArgument", "descriptors[0].entries[0].key"}},
		{"no unit", bad(func(d *commonv3.RateLimitDescriptor) { d.Limit = &override{RequestsPerUnit: 5} }), []string{"InvalidArgument", "descriptors[0].limit.unit"}},
		{"unknown unit", bad(func(d *commonv3.RateLimitDescriptor) { d.Limit = &override{RequestsPerUnit: 5, Unit: 99} }), []string{"InvalidArgument", "descriptors[0].limit.unit"}},
		{"no multiple of a unit", bad(func(d *commonv3.RateLimitDescriptor) {
			d.Limit = &override{RequestsPerUnit: 5, Unit: 1, UnitMultiplier: wrapperspb.UInt32(0)}
		}), []string{"InvalidArgument", "descriptors[0].limit.unit_multiplier"}},
	})
}

func TestAPIsRejectGubernator(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	type item = gubernatorv1.RateLimitReq
	fresh := func(key string) *item {
		return &item{Name: "shop", UniqueKey: key, Hits: 1, Limit: userQuota, Duration: 86_400_000}
	}
	call := func(ctx context.Context, n *process.Node, items ...*item) (*gubernatorv1.GetRateLimitsResp, error) {
		n.API() // connects
		return gubernatorv1.NewV1Client(n.Conn).GetRateLimits(ctx, &gubernatorv1.GetRateLimitsReq{Requests: items})
	}
	left := func(t *testing.T, n *process.Node, key string) int64 {
		t.Helper()
		read := fresh(key)
		read.Hits = 0
		res, err := call(t.Context(), n, read)
		if err != nil || res.Responses[0].Error != "" {
			t.Fatalf("reading %s: %v, %v", key, res, err)
		}
		return res.Responses[0].Remaining
	}
	spoilt := func(spoil func(q *item)) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			q := fresh(key)
			spoil(q)
			return said(call(ctx, n, q))
		}
	}
	post := func(format string, headers ...string) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			body := strings.ReplaceAll(format, "KEY", key)
			status, answer, err := request(ctx, http.MethodPost, "http://"+n.HTTP+"/v1/GetRateLimits", body, headers...)
			return fmt.Sprintf("%d %s %v", status, answer, err)
		}
	}
	const sound = `"name": "shop", "unique_key": "KEY", "hits": "1", "limit": "20"`
	const one = `{` + sound + `, "duration": "86400000"}`
	rejects(t, nodes, left, userQuota, []wrong{
		{"1001 items", func(ctx context.Context, n *process.Node, key string) string {
			return said(call(ctx, n, repeat(1001, fresh(key))...))
		}, []string{"OutOfRange", "requests", "1001"}},
		{"no key", spoilt(func(q *item) { q.UniqueKey = "" }), []string{"field 'unique_key' cannot be empty"}},
		{"no name", spoilt(func(q *item) { q.Name = "" }), []string{"field 'namespace' cannot be empty"}},
		{"long name", spoilt(func(q *item) { q.Name = strings.Repeat("n", long) }), []string{"field 'name'", "1025"}},
		{"unknown algorithm", spoilt(func(q *item) { q.Algorithm = 7 }), []string{"field 'algorithm'", "7"}},
		{"unknown behaviour", spoilt(func(q *item) { q.Behavior = 64 }), []string{"field 'behavior'", "64"}},
		{"no unit of the calendar", spoilt(func(q *item) {
			q.Behavior, q.Duration = gubernatorv1.Behavior_DURATION_IS_GREGORIAN, 9
		}), []string{"field 'duration'", "9"}},
		{"1001 items by HTTP", post(`{"requests": [` + strings.Repeat(one+",", 1000) + one + `]}`), []string{"400", "requests", "1001"}},
		{"a limit of text", post(`{"requests": [{` + sound + `, "duration": "long"}]}`), []string{"400", "duration"}},
		{"an object where a list belongs", post(`{"requests": ` + one + `}`), []string{"400"}},
		{"a behaviour's name that there is not", post(`{"requests": [{` + sound + `, "duration": "86400000", "behavior": "SUDDEN"}]}`), []string{"400", "requests[0].behavior", "SUDDEN"}},
		{"no JSON", post(`name=shop`), []string{"400"}},
		{"5 MiB", post(`{"requests": [` + one + `], "x": "` + strings.Repeat("x", 5<<20) + `"}`), []string{"413"}},
		{"huge headers", post(`{"requests": [`+one+`]}`, "X-Much: "+strings.Repeat("m", 1<<20)), []string{"431"}},
		{"another method", func(ctx context.Context, n *process.Node, key string) string {
			status, body, err := request(ctx, http.MethodPut, "http://"+n.HTTP+"/v1/GetRateLimits", `{"requests": [`+strings.ReplaceAll(one, "KEY", key)+`]}`)
			return fmt.Sprintf("%d %s %v", status, body, err)
		}, []string{"405"}},
	})

	t.Run("the other items of a call are answered", func(t *testing.T) {
		broken := fresh("broken")
		broken.Behavior = 1 << 20
		res, err := call(t.Context(), nodes[0], fresh("good"), broken, fresh("good"))
		if err != nil || len(res.Responses) != 3 {
			t.Fatalf("%v, %v", res, err)
		}
		if r := res.Responses; r[0].Remaining != userQuota-1 || r[1].Error == "" || r[2].Remaining != userQuota-2 {
			t.Errorf("%v", r)
		}
		if now := left(t, nodes[1], "broken"); now != userQuota {
			t.Errorf("%d of the broken one are left: it was charged", now)
		}
	})
}
