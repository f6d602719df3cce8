package node

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

// TestGubernatorAPI: one counter, whichever node and port its clients ask, whose answers name the
// node that decided if it is another; and a node that drains takes no more.
func TestGubernatorAPI(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2)
	conn, err := grpc.NewClient(nodes[0].listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := gubernatorv1.NewV1Client(conn)
	byGRPC := func(q *gubernatorv1.RateLimitReq) *gubernatorv1.RateLimitResp {
		res, err := client.GetRateLimits(t.Context(), &gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{q}})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetResponses()[0]
	}
	byHTTP := func(q *gubernatorv1.RateLimitReq) *gubernatorv1.RateLimitResp {
		body, err := protojson.Marshal(&gubernatorv1.GetRateLimitsReq{Requests: []*gubernatorv1.RateLimitReq{q}})
		if err != nil {
			t.Fatal(err)
		}
		return nodes[1].postGubernator(t, string(body)).GetResponses()[0]
	}
	elsewhere := 0
	for key := range 20 {
		q := &gubernatorv1.RateLimitReq{Name: "api", UniqueKey: fmt.Sprint(key), Hits: 1, Limit: 4, Duration: 3_600_000}
		var owners []string
		for i, ask := range []func(*gubernatorv1.RateLimitReq) *gubernatorv1.RateLimitResp{byGRPC, byHTTP, byGRPC, byHTTP, byGRPC, byHTTP} {
			r := ask(q)
			over := r.GetStatus() == gubernatorv1.Status_OVER_LIMIT
			if r.GetError() != "" || r.GetRemaining() != int64(max(0, 3-i)) || over != (i >= 4) {
				t.Errorf("key %d, check %d: %v", key, i, r)
			}
			if i < 2 {
				owners = append(owners, r.GetMetadata()["owner"])
			}
		}
		switch fmt.Sprint(owners) {
		case "[ n1]":
		case "[n2 ]":
			elsewhere++
		default:
			t.Errorf("key %d: n1 names the owner %q, n2 %q; want the one that is not asked", key, owners[0], owners[1])
		}
	}
	if elsewhere == 0 || elsewhere == 20 {
		t.Errorf("%d of 20 keys are n2's", elsewhere)
	}
	health, err := client.HealthCheck(t.Context(), &gubernatorv1.HealthCheckReq{})
	if err != nil || health.GetStatus() != "healthy" || health.GetPeerCount() != 2 || health.GetAdvertiseAddress() != nodes[0].listen.grpc.Addr().String() {
		t.Errorf("health: %v, %v", health, err)
	}
	if code, body := nodes[1].get(t, "/v1/HealthCheck"); code != http.StatusOK || !strings.Contains(body, "peer_count") {
		t.Errorf("health by HTTP: %d %s", code, body)
	}
	if code, body := nodes[1].get(t, "/admin/v1alpha1/members"); code != http.StatusOK || !strings.Contains(body, `"self":"n2"`) {
		t.Errorf("sluice's own HTTP API: %d %s", code, body)
	}

	nodes[0].leaving.Store(true) // its counters are being handed over
	if r := byGRPC(&gubernatorv1.RateLimitReq{Name: "api", UniqueKey: "late", Hits: 1, Limit: 4, Duration: 3_600_000}); r.GetRemaining() != 3 {
		t.Errorf("while leaving: %v", r)
	}
	nodes[0].draining.Store(true)
	if _, err := client.LiveCheck(t.Context(), &gubernatorv1.LiveCheckReq{}); status.Code(err) != codes.Unavailable {
		t.Errorf("while draining: %v, want Unavailable", err)
	}
}

// postGubernator asks r's HTTP port.
func (r *running) postGubernator(t *testing.T, body string) *gubernatorv1.GetRateLimitsResp {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+r.listen.http.Addr().String()+"/v1/GetRateLimits", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	res := new(gubernatorv1.GetRateLimitsResp)
	if err := protojson.Unmarshal(text, res); err != nil {
		t.Fatalf("%d %s: %v", resp.StatusCode, text, err)
	}
	return res
}
