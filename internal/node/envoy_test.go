package node

import (
	"fmt"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestEnvoyAPI: Envoy's checks are those of the rule files, counted with everybody else's,
// whichever node it asks; and a node that drains answers what still comes.
func TestEnvoyAPI(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2)
	var clients []ratelimitv3.RateLimitServiceClient
	for _, n := range nodes {
		conn, err := grpc.NewClient(n.listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients = append(clients, ratelimitv3.NewRateLimitServiceClient(conn))
	}
	ask := func(node int, users ...string) (*ratelimitv3.RateLimitResponse, error) {
		req := &ratelimitv3.RateLimitRequest{Domain: "auth"}
		for _, u := range users {
			req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{
				Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: u}},
			})
		}
		return clients[node].ShouldRateLimit(t.Context(), req)
	}
	for i := range 10 {
		user := fmt.Sprint(i)
		for check := range 3 {
			res, err := ask((i+check)%2, user)
			if err != nil {
				t.Fatal(err)
			}
			want := ratelimitv3.RateLimitResponse_OK
			if check == 2 { // the rule has 2 an hour
				want = ratelimitv3.RateLimitResponse_OVER_LIMIT
			}
			s := res.GetStatuses()[0]
			if res.GetOverallCode() != want || s.GetCode() != want || s.GetLimitRemaining() != uint32(max(0, 1-check)) ||
				s.GetCurrentLimit().GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_HOUR || s.GetDurationUntilReset().AsDuration() <= 0 {
				t.Errorf("user %s, check %d: %v", user, check, res)
			}
		}
		if got := nodes[i%2].left(t, user); got != 0 {
			t.Errorf("user %s, asked otherwise: %d are left", user, got)
		}
	}
	nodes[0].leaving.Store(true) // its counters are being handed over
	if res, err := ask(0, "late"); err != nil || res.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("while leaving: %v, %v", res, err)
	}
	nodes[0].draining.Store(true)
	if res, err := ask(0, "late"); err != nil || res.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("while draining: %v, %v", res, err)
	}
	if res, err := ask(0, "late"); err != nil || res.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("while draining, beyond the limit: %v, %v", res, err)
	}
}

// TestEnvoySettings: each flag reaches the API.
func TestEnvoySettings(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n    metadata: {tier: gold}\n")
	s.EnvoyAllOrNothing, s.EnvoyResponseHeaders, s.EnvoyDynamicMetadata = true, true, true
	n := startNode(t, s)
	conn, err := grpc.NewClient(n.listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	user := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "ann"}}}
	other := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "bob"}}}
	client := ratelimitv3.NewRateLimitServiceClient(conn)
	ask := func(ds ...*commonv3.RateLimitDescriptor) *ratelimitv3.RateLimitResponse {
		res, err := client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "auth", Descriptors: ds})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := ask(user, user, user, other); res.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("three of two: %v", res)
	}
	res := ask(user, user)
	if res.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("something was charged by a request that was over: %v", res)
	}
	if hs := res.GetResponseHeadersToAdd(); len(hs) != 3 || hs[0].GetKey() != "RateLimit-Limit" || hs[0].GetValue() != "2" {
		t.Errorf("headers: %v", hs)
	}
	if got := res.GetDynamicMetadata().AsMap()["metadata"]; fmt.Sprint(got) != "map[tier:gold]" {
		t.Errorf("metadata: %v", got)
	}
}
