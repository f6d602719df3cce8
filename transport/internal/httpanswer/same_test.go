package httpanswer_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-project/sluice/client/httplimit"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/internal/member"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/forwardauth"
	"github.com/sluice-project/sluice/transport/grpcapi"
	"github.com/sluice-project/sluice/transport/httpapi"
	"github.com/sluice-project/sluice/transport/internal/apitest"
)

// sameRules have a key of each kind of limit.
const sameRules = `
domain: web
authorize:
  descriptors:
    - - {key: KIND, from: header, name: X-User}
descriptors:
  - key: unnamed
    limits: [{algorithm: fixed_window, count: 2, period: 1m}]
  - key: named
    name: naïve
    limits: [{algorithm: fixed_window, count: 2, period: 1m}]
  - key: burst
    limits: [{algorithm: token_bucket, count: 2, period: 3s, burst: 3}]
  - key: short
    limits: [{algorithm: sliding_log, count: 2, period: 100ms}]
  - key: two
    limits:
      - {name: hourly, algorithm: token_bucket, count: 2, period: 1h}
      - {name: sustained, algorithm: fixed_window, count: 3, period: 5s}
  - key: second
    limits:
      - {algorithm: fixed_window, count: 9, period: 1m}
      - {algorithm: sliding_window, count: 2, period: day}
  - key: blocked
    limits: [{count: 0, period: 1m}]
  - key: queue
    limits: [{algorithm: leaky_bucket, count: 1, period: 1s, burst: 2}]
  - key: shadow
    shadow_mode: true
    limits: [{count: 1, period: 1m}]
  - key: unlimited
    limits: [{unlimited: true}]
`

// TestSameHeaders: the HTTP API, forward auth and a Go service behind httplimit send the same values for one rule.
func TestSameHeaders(t *testing.T) {
	for _, kind := range []string{"unnamed", "named", "burst", "short", "two", "second", "blocked", "queue", "shadow", "unlimited", "unmatched"} {
		file := strings.Replace(sameRules, "KIND", kind, 1)
		l := apitest.NewLimiter(t, apitest.NewNode(t), file, member.Member{Name: "n1", Boot: "b1", State: member.Serving})
		api, err := httpapi.New(httpapi.Config{Limiter: l, Ready: func() (bool, []string) { return true, nil }})
		if err != nil {
			t.Fatal(err)
		}
		auth, err := forwardauth.New(forwardauth.Config{Limiter: l, Authorize: func(domain string) *rules.Authorize { return l.Rules().Authorize(domain) }})
		if err != nil {
			t.Fatal(err)
		}
		service := httplimit.Middleware(dial(t, grpcapi.Config{Limiter: l}), httplimit.Config{
			Domain: "web", Keys: []httplimit.Key{httplimit.Header(kind, "X-User")},
		})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for i := range 5 {
			want := about(api, httptest.NewRequest("POST", "/v1/check", strings.NewReader(fmt.Sprintf(`{"domain":"web","descriptor":[{"key":%q,"value":"http"}]}`, kind))))
			if limited := kind != "unlimited" && kind != "unmatched"; limited != (want["RateLimit"] != "") {
				t.Fatalf("%s: the HTTP API answers %v", kind, want)
			}
			for name, h := range map[string]http.Handler{forwardauth.Prefix + "web": auth.Before(http.NotFoundHandler()), "/": service} {
				r := httptest.NewRequest("GET", name, nil)
				r.Header.Set("X-User", name)
				if got := about(h, r); !maps.Equal(got, want) {
					t.Errorf("%s, check %d at %s:\n got %v\nwant %v", kind, i, name, got, want)
				}
			}
		}
	}
}

// about returns the status, and the headers of h's response about limits.
func about(h http.Handler, r *http.Request) map[string]string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	headers := map[string]string{"status": fmt.Sprint(w.Code)}
	for name, values := range w.Header() {
		if strings.Contains(name, "RateLimit") || name == "Retry-After" {
			headers[name] = strings.Join(values, "|")
		}
	}
	return headers
}

// remote is a Limiter that asks a node by gRPC, and no more.
type remote struct {
	limit.Limiter
	node sluicev1.RateLimitServiceClient
}

func dial(t *testing.T, c grpcapi.Config) remote {
	s, err := grpcapi.New(c)
	if err != nil {
		t.Fatal(err)
	}
	g, lis := grpc.NewServer(s.Options(0, nil)...), bufconn.Listen(1<<16)
	s.Register(g)
	go g.Serve(lis)
	conn, err := grpc.NewClient("passthrough:///api", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		s.Close()
	})
	return remote{node: sluicev1.NewRateLimitServiceClient(conn)}
}

func (r remote) Check(ctx context.Context, c limit.Check) (limit.Decision, error) {
	res, err := r.node.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
		Domain: c.Domain, Descriptor_: []*sluicev1.Entry{{Key: c.Descriptor[0].Key, Value: c.Descriptor[0].Value}},
	}}})
	if err != nil {
		return limit.Decision{}, err
	}
	d := res.GetDecisions()[0]
	return limit.Decision{
		Allowed: d.GetAllowed(), Verdict: limit.Verdict(d.GetVerdict()), Source: limit.Source(d.GetSource()), Rule: d.GetRule(),
		LimitName: d.GetLimitName(), LimitIndex: int(d.GetLimitIndex()), Counted: d.Limit != nil, Limit: d.GetLimit(), Remaining: d.GetRemaining(),
		Count: d.GetCount(), Burst: d.GetBurst(), Period: time.Duration(d.GetPeriodNs()), ResetAfter: time.Duration(d.GetResetAfterNs()),
		RetryAfter: time.Duration(d.GetRetryAfterNs()),
	}, nil
}
