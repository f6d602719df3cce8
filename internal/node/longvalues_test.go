package node

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sluice "github.com/sluicecluster/sluice/client"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestLongValues: a value that is too long to be counted as it is has one counter, by whichever API it comes, and a value that
// differs in its last byte has another.
func TestLongValues(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	writeRule(t, s.Rules, "domain: auth\nauthorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\n"+
		"descriptors:\n  - {key: user, value: 'u*', rate_limit: {count: 5, period: 1h}}\n")
	n := startNode(t, s)
	conn, err := grpc.NewClient(n.listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sdk, err := sluice.New(n.listen.grpc.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer sdk.Close()
	address := "http://" + n.listen.http.Addr().String()
	post := func(path, body string, header http.Header) bool {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: %s", path, res.Status)
		}
		return res.StatusCode == http.StatusOK
	}
	apis := []struct {
		name string
		ask  func(user string) (allowed bool, err error)
	}{
		{"gRPC", func(user string) (bool, error) {
			res, err := sluicev1.NewRateLimitServiceClient(conn).Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{
				{Domain: "auth", Descriptor_: []*sluicev1.Entry{{Key: "user", Value: user}}}}})
			if err != nil {
				return false, err
			}
			return res.GetDecisions()[0].GetAllowed(), nil
		}},
		{"HTTP", func(user string) (bool, error) {
			body, err := json.Marshal(map[string]any{"domain": "auth", "descriptor": []map[string]string{{"key": "user", "value": user}}})
			return post("/v1/check?deny=429", string(body), http.Header{"Content-Type": {"application/json"}}), err
		}},
		{"Envoy", func(user string) (bool, error) {
			res, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "auth",
				Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}}}}})
			return res.GetOverallCode() == ratelimitv3.RateLimitResponse_OK, err
		}},
		{"forward auth", func(user string) (bool, error) {
			return post("/v1/authorize/auth/x", "", http.Header{"X-User": {user}}), nil
		}},
		{"SDK", func(user string) (bool, error) {
			d, err := sdk.Key("auth", "user", user).Check(t.Context(), 1)
			return d.Allowed && d.Degraded == nil, err
		}},
	}
	for _, user := range []string{"u" + strings.Repeat("x", 1024), "u" + strings.Repeat("x", 1023) + "y", "u" + strings.Repeat("z", 30_000)} {
		for _, limit := range []bool{true, false} { // five APIs spend the five
			for _, api := range apis {
				if allowed, err := api.ask(user); err != nil || allowed != limit {
					t.Errorf("%s, %d bytes: allowed %v, %v; want %v", api.name, len(user), allowed, err, limit)
				}
			}
		}
	}
}
