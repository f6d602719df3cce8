package httpanswer_test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/httplimit"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/forwardauth"
	"github.com/sluicecluster/sluice/transport/grpcapi"
	"github.com/sluicecluster/sluice/transport/httpapi"
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

// about returns the headers of h's response about limits.
func about(h http.Handler, r *http.Request) map[string]string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	headers := map[string]string{}
	for name, values := range w.Header() {
		if strings.Contains(name, "RateLimit") || name == "Retry-After" {
			headers[name] = strings.Join(values, "|")
		}
	}
	return headers
}

// dial returns a client of a node's gRPC API. It remembers no denials, since the node's clock stands still.
func dial(t *testing.T, c grpcapi.Config) *sluice.Client {
	s, err := grpcapi.New(c)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(s.Options(nil)...)
	s.Register(g)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go g.Serve(lis)
	client, err := sluice.New(lis.Addr().String(), sluice.WithDenyCache(0), sluice.WithoutRouting())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		g.Stop()
		s.Close()
	})
	if err := client.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}
