package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	sluice "github.com/sluicecluster/sluice/client"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// api is one way to spend a unit of a user of the domain auth. answer is "3 left", "denied" or "unavailable".
type api struct {
	name string
	ask  func(user string) (answer string, err error)
}

func answerOf(allowed bool, left int64) string {
	if !allowed {
		return "denied"
	}
	return fmt.Sprint(left, " left")
}

func (r *running) apis(t *testing.T, sdk *sluice.Client) []api {
	byGRPC := sluicev1.NewRateLimitServiceClient(r.conn(t))
	web := func(method, path, body string, headers ...string) (*http.Response, string) {
		resp, text := send(t, r.listen.http.Addr(), method, path, body, headers...)
		if resp.StatusCode == http.StatusServiceUnavailable {
			return resp, "unavailable"
		}
		return resp, text
	}
	return []api{
		{"gRPC", func(user string) (string, error) {
			res, err := byGRPC.Check(t.Context(), checksOf("auth", "user", user, sluicev1.Verb_VERB_CHECK))
			if status.Code(err) == codes.Unavailable {
				return "unavailable", nil
			} else if err != nil {
				return "", err
			}
			return answerOf(res.Decisions[0].GetAllowed(), res.Decisions[0].GetRemaining()), nil
		}},
		{"HTTP", func(user string) (string, error) {
			_, text := web("POST", "/v1/check", `{"domain":"auth","descriptor":[{"key":"user","value":"`+user+`"}]}`)
			if text == "unavailable" {
				return text, nil
			}
			var d struct {
				Allowed   bool
				Remaining int64
			}
			err := json.Unmarshal([]byte(text), &d)
			return answerOf(d.Allowed, d.Remaining), err
		}},
		{"Envoy", func(user string) (string, error) {
			res, err := askEnvoy(t, r, user)
			return answerOf(res.GetOverallCode() == ratelimitv3.RateLimitResponse_OK, int64(res.GetStatuses()[0].GetLimitRemaining())), err
		}},
		{"forward auth", func(user string) (string, error) {
			resp, text := web("PUT", "/v1/authorize/auth//x/../y", "", "X-User", user, "X-Forwarded-Method", "PUT")
			switch resp.StatusCode {
			case http.StatusOK, http.StatusForbidden: // as the rule says
				left, err := strconv.ParseInt(resp.Header.Get("X-RateLimit-Remaining"), 10, 64)
				return answerOf(resp.StatusCode == http.StatusOK, left), err
			}
			return text, nil
		}},
		{"SDK", func(user string) (string, error) {
			d, err := sdk.Key("auth", "user", user).Check(t.Context(), 1)
			if err == nil && d.Degraded != nil {
				err = d.Degraded
			}
			return answerOf(d.Allowed, d.Remaining), err
		}},
	}
}

func askEnvoy(t *testing.T, r *running, users ...string) (*ratelimitv3.RateLimitResponse, error) {
	req := &ratelimitv3.RateLimitRequest{Domain: "auth"}
	for _, u := range users {
		entries := []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: u}}
		req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{Entries: entries})
	}
	return ratelimitv3.NewRateLimitServiceClient(r.conn(t)).ShouldRateLimit(t.Context(), req)
}

// TestTwoNodes: a counter is one, whichever node and API is asked.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2, func(c *Config) {
		c.EnvoyAllOrNothing, c.EnvoyResponseHeaders, c.EnvoyDynamicMetadata = true, true, true
	})
	const tree = "descriptors:\n  - {key: user, value: 'u*', rate_limit: {count: 5, period: 1h}, metadata: {tier: gold}}\n"
	set := func(authorize string) {
		t.Helper()
		writeRule(t, nodes[0].config.Rules, "domain: auth\n"+authorize+tree)
		for _, n := range nodes {
			await(t, "set to check "+authorize, func() bool { return (n.authorize("auth") != nil) == (authorize != "") })
		}
	}
	if status, body := nodes[1].get(t, "/v1/authorize/auth//x"); status != 404 || !strings.Contains(body, "no rule file in force has authorize") {
		t.Errorf("without authorize: %d %s", status, body)
	}
	set("authorize: {denied_status: 403, descriptors: [[{key: user, from: header, name: X-User}]]}\n")
	sdk, _ := newClient(t, nodes[1].listen.grpc.Addr().String())
	apis := append(nodes[0].apis(t, sdk), nodes[1].apis(t, sdk)...)

	t.Run("a counter", func(t *testing.T) {
		for i := range apis {
			// A value that is too long to be counted as it is has a counter, too, and one that differs in its last byte has another.
			for _, user := range []string{"u", "u" + strings.Repeat("x", 1023), "u" + strings.Repeat("z", 30_000)} {
				user += fmt.Sprint(i)
				for n := range apis {
					api, want := apis[(i+n)%len(apis)], answerOf(n < 5, int64(4-n))
					if got, err := api.ask(user); err != nil || got != want {
						t.Errorf("%d bytes, %s, check %d: %s, %v; want %s", len(user), api.name, n, got, err, want)
					}
				}
			}
		}
	})
	t.Run("Envoy's flags", func(t *testing.T) {
		if res, err := askEnvoy(t, nodes[0], "ux", "ux", "ux", "ux", "ux", "ux", "uy"); err != nil || res.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("six of five: %v, %v", res, err)
		}
		res, err := askEnvoy(t, nodes[0], "ux", "ux", "ux", "ux", "ux")
		if err != nil || res.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
			t.Errorf("something was charged by a request that was over: %v, %v", res, err)
		}
		if hs := res.GetResponseHeadersToAdd(); len(hs) != 3 || hs[0].GetKey() != "RateLimit-Limit" || hs[0].GetValue() != "5" {
			t.Errorf("headers: %v", hs)
		}
		if got := res.GetDynamicMetadata().AsMap()["metadata"]; fmt.Sprint(got) != "map[tier:gold]" {
			t.Errorf("metadata: %v", got)
		}
	})
	t.Run("gubernator", func(t *testing.T) { gubernatorOfTwo(t, nodes) })
	t.Run("a limit that is lowered", func(t *testing.T) { lowered(t, nodes) })
	set("")
	if status, _ := nodes[1].get(t, "/v1/authorize/auth"); status != 404 {
		t.Errorf("without authorize again: %d", status)
	}
	set("authorize: {denied_status: 403, descriptors: [[{key: user, from: header, name: X-User}]]}\n")

	nodes[0].leaving.Store(true) // its counters are being handed over
	for _, api := range apis[:4] {
		if got, err := api.ask("u leaving " + api.name); err != nil || got != "4 left" {
			t.Errorf("%s, while leaving: %s, %v", api.name, got, err)
		}
	}
	if r := nodes[0].gubernator(t, gubernatorOf("api", "late", 1, 4)); r.GetRemaining() != 3 {
		t.Errorf("gubernator, while leaving: %v", r)
	}
	nodes[0].draining.Store(true)
	for i, want := range []string{"4 left", "3 left", "2 left", "unavailable"} { // Envoy may take an error for a pass
		if got, err := apis[i].ask("u draining"); err != nil || got != want {
			t.Errorf("%s, while draining: %s, %v; want %s", apis[i].name, got, err, want)
		}
	}
	if _, err := gubernatorv1.NewV1Client(nodes[0].conn(t)).LiveCheck(t.Context(), &gubernatorv1.LiveCheckReq{}); status.Code(err) != codes.Unavailable {
		t.Errorf("gubernator, while draining: %v, want Unavailable", err)
	}
}

func gubernatorOf(name, key string, hits, limit int64) *gubernatorv1.RateLimitReq {
	return &gubernatorv1.RateLimitReq{Name: name, UniqueKey: key, Hits: hits, Limit: limit, Duration: 3_600_000}
}

// gubernator makes a check by gRPC.
func (r *running) gubernator(t *testing.T, q *gubernatorv1.RateLimitReq) *gubernatorv1.RateLimitResp {
	t.Helper()
	res, err := gubernatorv1.NewV1Client(r.conn(t)).GetRateLimits(t.Context(), &gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{q}})
	do(t, err)
	return res.GetResponses()[0]
}

// gubernatorOfTwo: answers name the node that decided if it is another than the one that was asked.
func gubernatorOfTwo(t *testing.T, nodes []*running) {
	byHTTP := func(q *gubernatorv1.RateLimitReq) *gubernatorv1.RateLimitResp {
		body, err := protojson.Marshal(&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{q}})
		do(t, err)
		_, text := send(t, nodes[1].listen.http.Addr(), "POST", "/v1/GetRateLimits", string(body))
		res := new(gubernatorv1.GetRateLimitsResp)
		if err := protojson.Unmarshal([]byte(text), res); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return res.GetResponses()[0]
	}
	elsewhere := make(map[string]int)
	for key := range 20 {
		var owners []string
		for i := range 6 {
			q := gubernatorOf("api", fmt.Sprint(key), 1, 4)
			var r *gubernatorv1.RateLimitResp
			if i%2 == 0 {
				r = nodes[0].gubernator(t, q)
			} else {
				r = byHTTP(q)
			}
			over := r.GetStatus() == gubernatorv1.Status_OVER_LIMIT
			if r.GetError() != "" || r.GetRemaining() != int64(max(0, 3-i)) || over != (i >= 4) {
				t.Errorf("key %d, check %d: %v", key, i, r)
			}
			owners = append(owners, r.GetMetadata()["owner"])
		}
		elsewhere[strings.Join(owners[:2], ",")]++
	}
	if len(elsewhere) != 2 || elsewhere[",n1"] == 0 || elsewhere["n2,"] == 0 {
		t.Errorf("n1 and n2 name the owners %v of 20 keys; want the one that is not asked", elsewhere)
	}
	health, err := gubernatorv1.NewV1Client(nodes[0].conn(t)).HealthCheck(t.Context(), &gubernatorv1.HealthCheckReq{})
	if err != nil || health.GetStatus() != "healthy" || health.GetPeerCount() != 2 || health.GetAdvertiseAddress() != nodes[0].listen.grpc.Addr().String() {
		t.Errorf("health: %v, %v", health, err)
	}
	for path, want := range map[string]string{"/v1/HealthCheck": "peer_count", "/admin/v1alpha1/members": `"self":"n2"`} {
		if code, body := nodes[1].get(t, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// lowered: who has spent 1000 an hour waits for six minutes when the limit becomes 10 an hour, by limits in the check, by a rule
// file, and for gubernator's clients; and changing back refills nothing.
func lowered(t *testing.T, nodes []*running) {
	const most = 360 * time.Second
	waits := func(what string, denied bool, wait, most time.Duration) {
		t.Helper()
		if !denied || wait > most || wait <= 0 {
			t.Errorf("%s: denied %v, to wait %v, at most %v", what, denied, wait, most)
		}
	}
	for key := range 6 {
		ask := func(node int, call string, cost, count int64) (allowed bool, wait time.Duration) {
			t.Helper()
			var d struct {
				Allowed    bool
				RetryAfter float64 `json:"retry_after"`
			}
			body := fmt.Sprintf(`{"domain":"d","descriptor":["key=%d"],"cost":%d,"limits":[{"algorithm":"token_bucket","count":%d,"period":3600}]}`, key, cost, count)
			if status := nodes[node].post(t, "/v1/"+call, body, &d); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			return d.Allowed, time.Duration(d.RetryAfter * float64(time.Second))
		}
		if allowed, _ := ask(0, "check", 1000, 1000); !allowed {
			t.Fatal("denied at first")
		}
		for i, call := range []string{"read", "read", "check", "check", "read", "check"} {
			allowed, wait := ask(i%2, call, 1, 10)
			waits("limits in the check, "+call, !allowed, wait, most)
		}
		if allowed, _ := ask(1, "check", 500, 1000); allowed {
			t.Error("changed back: allowed")
		}
	}
	reload := func(count int64) {
		t.Helper()
		const rule = "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: %d, period: 1h, algorithm: token_bucket}\n"
		writeRule(t, nodes[0].config.Rules, fmt.Sprintf(rule, count))
		for _, r := range nodes {
			await(t, "reloaded", func() bool {
				return r.decide(t, sluicev1.Verb_VERB_READ, "auth", "user", "other").GetLimit() == count
			})
		}
	}
	reload(50)
	for range 50 {
		nodes[0].check(t, "ann")
	}
	reload(10)
	for _, r := range nodes {
		for _, v := range []sluicev1.Verb{sluicev1.Verb_VERB_READ, sluicev1.Verb_VERB_CHECK} {
			d := r.decide(t, v, "auth", "user", "ann")
			waits("rule file", !d.GetAllowed(), time.Duration(d.GetRetryAfterNs()), most)
		}
	}
	for algorithm, most := range map[gubernatorv1.Algorithm]time.Duration{gubernatorv1.Algorithm_LEAKY_BUCKET: most, gubernatorv1.Algorithm_TOKEN_BUCKET: time.Hour} {
		ask := func(node int, hits, limit int64) *gubernatorv1.RateLimitResp {
			q := gubernatorOf("g", algorithm.String(), hits, limit)
			q.Algorithm = algorithm
			return nodes[node].gubernator(t, q)
		}
		if r := ask(0, 1000, 1000); r.GetStatus() != gubernatorv1.Status_UNDER_LIMIT || r.GetRemaining() != 0 {
			t.Fatal(r)
		}
		for i := range int64(4) {
			r := ask(int(i/2), i%2, 10)
			over := r.GetStatus() == gubernatorv1.Status_OVER_LIMIT
			waits(algorithm.String(), over, time.Until(time.UnixMilli(r.GetResetTime())), most+time.Millisecond) // reset_time is the next whole one
		}
	}
}
