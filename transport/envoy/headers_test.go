package envoy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicecluster/sluice/test/apitest"
)

// headers shows what Envoy is to add to its answer.
func headers(res *ratelimitv3.RateLimitResponse) string {
	var all []string
	for _, h := range res.GetResponseHeadersToAdd() {
		all = append(all, h.GetKey()+": "+h.GetValue())
	}
	return strings.Join(all, ", ")
}

func limitHeaders(limit, remaining, reset int) string {
	return fmt.Sprintf("RateLimit-Limit: %d, RateLimit-Remaining: %d, RateLimit-Reset: %d", limit, remaining, reset)
}

func TestResponseHeaders(t *testing.T) {
	const rules = three + `
  - key: hourly
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: part
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: flow
    rate_limit: {algorithm: token_bucket, period: 1s, count: 3}
  - key: free
    rate_limit: {unlimited: true}
  - key: blocked
    rate_limit: {unit: day, requests_per_unit: 0}
`
	n := apitest.NewNode(t)
	d := open(t, Config{Limiter: newLimiter(t, n, rules), ResponseHeaders: true})
	for _, c := range []struct{ asked, want string }{
		{"user=ann", limitHeaders(3, 2, 60)},
		{"nobody=x | free=x", ""},
		// The one with the least remaining, of equals the first.
		{"user=ann | hourly=x | nobody=x", limitHeaders(3, 1, 60)},
		{"user=bob | hourly=x", limitHeaders(2, 0, 3600)},
		// The one that is over, and of those the one to wait for longest.
		{"user=ann | user=ann | hourly=y", limitHeaders(3, 0, 60)},
		{"user=ann | hourly=x | hourly=y", limitHeaders(2, 0, 3600)},
		{"part=x", limitHeaders(1, 0, 86400)},
		{"user=ann | part=x", limitHeaders(1, 0, 86400)},
		// A quota that is over while others are not has the least remaining.
		{"part=x | part=y | hourly=z", limitHeaders(1, 0, 86400)},
		// Rounded up: a third of a second.
		{"flow=x +hits=2", limitHeaders(3, 1, 1)},
		{"blocked=x", limitHeaders(0, 0, 86400)},
		{"user=new +limit=7/MINUTE", limitHeaders(7, 6, 60)},
	} {
		res, err := d.ShouldRateLimit(t.Context(), parseRequest(t, c.asked))
		if err != nil || headers(res) != c.want {
			t.Errorf("%s: %q, %v; want %q", c.asked, headers(res), err, c.want)
		}
	}
	silent := open(t, Config{Limiter: newLimiter(t, n, rules)})
	if res, err := silent.ShouldRateLimit(t.Context(), parseRequest(t, "user=ann")); err != nil || headers(res) != "" {
		t.Errorf("without the setting: %q, %v", headers(res), err)
	}
}

// TestRuleResponse: a rule's body and headers go with a denial, and with nothing else.
func TestRuleResponse(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1}
    response: {status: 503, body: "Come back later.\n", headers: {Content-Type: text/x-later, Retry-After: 7}}
  - key: group
    rate_limit: {unit: minute, requests_per_unit: 1}
    response: {headers: {X-Group: full}}
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: part
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
    response: {body: quota}
`
	n := apitest.NewNode(t)
	d := open(t, Config{Limiter: newLimiter(t, n, rules), ResponseHeaders: true})
	ours := limitHeaders(1, 0, 60)
	for _, c := range []struct{ asked, body, headers string }{
		{"user=x | group=x | plain=x | part=x", "", ours},
		{"user=x", "Come back later.\n", "Content-Type: text/x-later, Retry-After: 7, " + ours},
		{"plain=x", "", ours},
		{"plain=x | group=x", "", "X-Group: full, " + ours},
		{"plain=x | group=x | user=x", "", "X-Group: full, " + ours},
		{"part=x | part=y", "", ours},
		{"part=x | part=y", "quota", ours},
	} {
		res, err := d.ShouldRateLimit(t.Context(), parseRequest(t, c.asked))
		if err != nil || string(res.GetRawBody()) != c.body || headers(res) != c.headers {
			t.Errorf("%s: body %q, headers %q, %v; want %q, %q", c.asked, res.GetRawBody(), headers(res), err, c.body, c.headers)
		}
	}
}

func TestDynamicMetadata(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
    metadata: {tier: gold, route: {to: a, weight: 1.5, tags: [x, null]}}
  - key: group
    rate_limit: {unit: minute, requests_per_unit: 1}
    metadata: {tier: silver, route: {to: b, via: c}, on: true}
  - key: free
    rate_limit: {unlimited: true}
    metadata: {never: shown}
`
	n := apitest.NewNode(t)
	d := open(t, Config{Limiter: newLimiter(t, n, rules), DynamicMetadata: true})
	for _, c := range []struct{ asked, want string }{
		{"user=x | group=x | free=x", `{"domain": "d", "descriptors": [{"entries": ["user=x"]}, {"entries": ["group=x"]}, {"entries": ["free=x"]}],
			"metadata": {"tier": "gold", "route": {"to": "a", "weight": 1.5, "tags": ["x", null], "via": "c"}, "on": true}}`},
		{"group=x +all=2 +hits=1 | user=x", `{"domain": "d", "hitsAddend": 2, "descriptors": [{"entries": ["group=x"], "hitsAddend": 1}, {"entries": ["user=x"]}]}`},
		{"group=x | user=y", `{"domain": "d", "descriptors": [{"entries": ["group=x"]}, {"entries": ["user=y"]}],
			"metadata": {"tier": "gold", "route": {"to": "a", "weight": 1.5, "tags": ["x", null]}}}`},
		{"own=x +limit=5/MINUTE | own=y +limit=1/HOUR*2", `{"domain": "d", "descriptors": [{"entries": ["own=x"], "limit": "requests_per_unit:5 unit:MINUTE"},
			{"entries": ["own=y"], "limit": "requests_per_unit:1 unit:HOUR unit_multiplier:{value:2}"}]}`},
		{"nobody=x on=y", `{"domain": "d", "descriptors": [{"entries": ["nobody=x", "on=y"]}]}`},
		{"group=y", `{"domain": "d", "descriptors": [{"entries": ["group=y"]}], "metadata": {"tier": "silver", "route": {"to": "b", "via": "c"}, "on": true}}`},
	} {
		var want map[string]any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		res, err := d.ShouldRateLimit(t.Context(), parseRequest(t, c.asked))
		if err != nil || !reflect.DeepEqual(res.GetDynamicMetadata().AsMap(), want) {
			t.Errorf("%s:\ngot  %v, %v\nwant %v", c.asked, res.GetDynamicMetadata().AsMap(), err, want)
		}
	}
	silent := open(t, Config{Limiter: newLimiter(t, n, rules)})
	if res, err := silent.ShouldRateLimit(t.Context(), parseRequest(t, "group=z")); err != nil || res.GetDynamicMetadata() != nil {
		t.Errorf("without the setting: %v, %v", res.GetDynamicMetadata(), err)
	}
	// Nothing of a request may change what the rules say.
	req := request("d", descriptor("user=z"), descriptor("group=zz"))
	req.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	if res, err := d.ShouldRateLimit(t.Context(), req); err != nil || res.GetDynamicMetadata().AsMap()["metadata"].(map[string]any)["route"].(map[string]any)["to"] != "a" {
		t.Errorf("the same again: %v, %v", res, err)
	}
}

// TestHeadersOfADeniedBatch: they, the body and the numbers are those of the limit that denies, in every order.
func TestHeadersOfADeniedBatch(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - {key: a, limits: [5/1h], response: {body: "a is spent"}}
  - {key: b, limits: [1/1h], response: {body: "b is spent"}}
`
	d := open(t, Config{Limiter: newLimiter(t, apitest.NewNode(t), rules), AllOrNothing: true, ResponseHeaders: true})
	for _, c := range []struct {
		asked, body, headers string
		left                 []uint32
	}{
		{"a=z | b=z", "", limitHeaders(1, 0, 3600), []uint32{4, 0}},
		{"a=z | b=z", "b is spent", limitHeaders(1, 0, 3600), []uint32{4, 0}},
		{"b=z | a=z", "b is spent", limitHeaders(1, 0, 3600), []uint32{0, 4}},
	} {
		res, err := d.ShouldRateLimit(t.Context(), parseRequest(t, c.asked))
		var left []uint32
		for _, s := range res.GetStatuses() {
			left = append(left, s.GetLimitRemaining())
		}
		if err != nil || string(res.GetRawBody()) != c.body || headers(res) != c.headers || !reflect.DeepEqual(left, c.left) {
			t.Errorf("%s: %q, %q, %v left, %v; want %q, %q, %v", c.asked, res.GetRawBody(), headers(res), left, err, c.body, c.headers, c.left)
		}
	}
}
