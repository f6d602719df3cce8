package forwardauth

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// web is what the tests ask about. The caller of httptest is 192.0.2.1; 10.0.0.0/8 are proxies.
const web = `
domain: web
authorize:
  trusted_proxies: [10.0.0.0/8]
  descriptors:
    - - {key: ip, from: client_address}
    - - {key: route, from: path, patterns: [/login, /api/*]}
      - {key: method, from: method, patterns: [GET, POST]}
    - - {key: user, from: header, name: X-User}
    - - {key: tenant, from: host, patterns: ["*.shop.example"], default: other}
descriptors:
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: route
    value: /login
    descriptors:
      - key: method
        value: POST
        rate_limit: {unit: minute, requests_per_unit: 2}
        response: {status: 420, headers: {X-Why: login}, body: slowly}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: tenant
    value: other
    rate_limit: {unlimited: true}
`

// decideFunc is a Decider that is one function.
type decideFunc func(context.Context, *check.Batch)

func (f decideFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }

// open opens an API on d with one file of rules.
func open(t testing.TB, d check.Decider, file string, change ...func(*Config)) *API {
	t.Helper()
	s := apitest.NewLimiter(t, d, file, member.Member{Name: "n1", Boot: "b1", State: member.Serving})
	c := Config{Limiter: s, Authorize: func(domain string) *rules.Authorize { return s.Rules().Authorize(domain) }}
	for _, f := range change {
		f(&c)
	}
	api, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// a call as a proxy makes it.
type call struct {
	method, path, peer string // GET, 10.0.0.1:80 by default
	host               string
	headers            string // "Name: value" lines
}

func (c call) request() *http.Request {
	if c.method == "" {
		c.method = "GET"
	}
	if c.peer == "" {
		c.peer = "10.0.0.1:80"
	}
	r := httptest.NewRequest(c.method, c.path, nil)
	r.RemoteAddr = c.peer
	if c.host != "" {
		r.Host = c.host
	}
	lines := bufio.NewScanner(strings.NewReader(c.headers))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		r.Header.Add(name, value)
	}
	return r
}

// forwarded is a call about a request in headers, as Traefik and Caddy make it.
func forwarded(method, uri, from string, more ...string) call {
	return call{path: Prefix + "web", headers: strings.Join(append([]string{
		"X-Forwarded-Method: " + method, "X-Forwarded-Uri: " + uri, "X-Forwarded-Host: a.shop.example", "X-Forwarded-For: " + from,
	}, more...), "\n")}
}

func ask(h http.Handler, c call) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, c.request())
	apitest.Hear(w.Header())
	return w
}

// problem returns the problem that w is, nil if it is none.
func problem(t testing.TB, w *httptest.ResponseRecorder) (p map[string]any) {
	t.Helper()
	if w.Header().Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
	}
	return p
}

// TestConversation: what a proxy hears about a client, until each of its limits is spent.
func TestConversation(t *testing.T) {
	n := apitest.NewNode(t)
	d := open(t, n, web)
	for i, c := range []struct {
		call   call
		status int
		want   map[string]string
	}{
		{forwarded("POST", "/login?next=/", "192.0.2.9"), 200, map[string]string{
			"RateLimit-Policy":  `"web/route=/login/method=POST";q=2;w=60, "web/ip";q=5;w=60`,
			"RateLimit":         `"web/route=/login/method=POST";r=1;t=60, "web/ip";r=4;t=60`,
			"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "60", "Retry-After": "", "Content-Type": "",
		}},
		{forwarded("GET", "/login", "192.0.2.9"), 200, map[string]string{"RateLimit": `"web/ip";r=3;t=60`}},
		{forwarded("POST", "//x/../%6cogin", "192.0.2.9"), 200, map[string]string{"X-RateLimit-Remaining": "0"}},
		{forwarded("POST", "/login", "192.0.2.9"), 420, map[string]string{
			"X-Why": "login", "Retry-After": "60", "X-RateLimit-Retry-After": "60", "Content-Type": "text/plain; charset=utf-8",
			"RateLimit": `"web/route=/login/method=POST";r=0;t=60, "web/ip";r=2;t=60`, "X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0",
		}},
		// The denial has cost the address nothing.
		{forwarded("GET", "/", "192.0.2.9"), 200, map[string]string{"RateLimit": `"web/ip";r=1;t=60`}},
		{forwarded("GET", "/", "192.0.2.9", "X-User: ann"), 200, map[string]string{"RateLimit": `"web/ip";r=0;t=60, "web/user";r=2;t=3600`}},
		{forwarded("GET", "/", "192.0.2.9", "X-User: ann"), 429, map[string]string{
			"Content-Type": "application/problem+json", "Retry-After": "60", "RateLimit": `"web/ip";r=0;t=60, "web/user";r=2;t=3600`,
		}},
		{forwarded("GET", "/", "192.0.2.10", "X-User: ann"), 200, map[string]string{"RateLimit": `"web/user";r=1;t=3600, "web/ip";r=4;t=60`}},
	} {
		w := ask(d, c.call)
		if w.Code != c.status {
			t.Fatalf("call %d: %d %s", i, w.Code, w.Body)
		}
		for name, want := range c.want {
			if got := w.Header().Get(name); got != want {
				t.Errorf("call %d: %s is %q, want %q", i, name, got, want)
			}
		}
		if w.Code == 200 && w.Body.Len() != 0 {
			t.Errorf("call %d: a body: %s", i, w.Body)
		}
		if p := problem(t, w); p != nil && (p["title"] != "Quota exceeded" || p["violated-policies"].([]any)[0] != "web/ip") {
			t.Errorf("call %d: %v", i, p)
		}
	}
	w := ask(d, call{path: Prefix + "web/img/x.png", peer: "192.0.2.77:1", host: "a.shop.example"})
	if w.Code != 200 || w.Header().Get("X-RateLimit-Remaining") != "4" {
		t.Errorf("from a caller that is no proxy: %d %v", w.Code, w.Header())
	}
	w = ask(d, call{path: Prefix + "nobody", peer: "192.0.2.77:1"})
	if p := problem(t, w); w.Code != 404 || p["code"] != "not_found" {
		t.Errorf("a domain that is not known: %d %s", w.Code, w.Body)
	}
}

func TestLeaving(t *testing.T) {
	n := apitest.NewNode(t)
	leaving := false
	d := open(t, n, web, func(c *Config) { c.Leaving = func() bool { return leaving } })
	if w := ask(d, forwarded("GET", "/", "192.0.2.9")); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	asked := n.Asked.Load()
	leaving = true
	if w := ask(d, forwarded("GET", "/", "192.0.2.9")); w.Code != 503 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("while leaving: %d %v", w.Code, w.Header())
	}
	if n.Asked.Load() != asked {
		t.Error("it was asked about all the same")
	}
}

// TestBefore: only what is below the prefix is the API's, and comes to it as it was written.
func TestBefore(t *testing.T) {
	var got string
	n := apitest.NewNode(t)
	d := open(t, n, web)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { got = r.URL.Path })
	h := d.Before(mux)
	for _, path := range []string{"/v1/check", "/v1/authorize", "/"} {
		got = ""
		if w := ask(h, call{path: path}); w.Code != 200 || got != path {
			t.Errorf("%s: %d, and the others see %q", path, w.Code, got)
		}
	}
	for _, path := range []string{"web//login", "web/./login", "web/x/../login", "%77eb/login"} {
		got = ""
		n.Now.Add(int64(time.Minute))
		w := ask(h, call{method: "POST", path: Prefix + path, host: "a.shop.example"})
		if w.Code != 200 || got != "" || !strings.Contains(w.Header().Get("RateLimit-Policy"), "/login") {
			t.Errorf("%s: %d %v, and the others see %q", path, w.Code, w.Header(), got)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{{}, {Limiter: spy{}}, {Authorize: func(string) *rules.Authorize { return nil }}} {
		if d, err := New(c); err == nil {
			t.Errorf("%+v makes %v", c, d)
		}
	}
}
