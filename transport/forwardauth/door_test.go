package forwardauth

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/internal/doortest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// open opens a door on d with one file of rules.
func open(t testing.TB, d check.Decider, file string, change ...func(*Config)) *Door {
	t.Helper()
	s := doortest.NewLimiter(t, d, file, member.Member{Name: "n1", Boot: "b1", State: member.Serving})
	c := Config{Limiter: s, Authorize: func(domain string) *rules.Authorize { return s.Rules().Authorize(domain) }}
	for _, f := range change {
		f(&c)
	}
	door, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return door
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
	n := doortest.NewNode(t)
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

// TestOriginal: what counts as the original request, of all that a call says.
func TestOriginal(t *testing.T) {
	const file = `
domain: web
authorize:
  trusted_proxies: [10.0.0.0/8]
  descriptors:
    - - {key: ip, from: client_address}
      - {key: method, from: method}
      - {key: host, from: host, default: none}
      - {key: path, from: path}
`
	const own = "authorize:\n  original: {method: X-Original-Method, uri: X-Original-URL, host: X-Original-Host}\n"
	const told = "X-Forwarded-Method: POST\nX-Forwarded-Uri: /told?x\nX-Forwarded-Host: Told.Example:443\nX-Forwarded-For: 203.0.113.5, 192.0.2.9"
	for _, c := range []struct {
		name, file, want string
		call             call
	}{
		{"told", file, "192.0.2.9 POST told.example /told", call{path: Prefix + "web", method: "HEAD", headers: told}},
		{"told, with a query of the call's own", file, "192.0.2.9 POST told.example /told", call{path: Prefix + "web?rd=1", headers: told}},
		{"without a host", file, "192.0.2.9 POST none /told", call{path: Prefix + "web", headers: strings.Replace(told, "Told.Example:443", "", 1)}},
		{"the call's own", file, "192.0.2.9 DELETE own.example /own/x", call{path: Prefix + "web/own//x", method: "DELETE", host: "own.example:80", headers: "X-Forwarded-For: 192.0.2.9\nX-Forwarded-Method: POST\nX-Forwarded-Host: a"}},
		{"the call's own, of anyone", file, "198.51.100.7 DELETE own.example /own", call{path: Prefix + "web/own", peer: "198.51.100.7:1", method: "DELETE", host: "own.example", headers: told}},
		{"the root", file, "192.0.2.9 GET own.example /", call{path: Prefix + "web/", host: "own.example", headers: "X-Forwarded-For: 192.0.2.9"}},
		{"IPv6", file, "2001:db8:1:2:: GET own.example /", call{path: Prefix + "web/", peer: "[2001:db8:1:2:3:4:5:6]:1", host: "own.example"}},
		{"mapped", file, "192.0.2.9 GET own.example /", call{path: Prefix + "web/", peer: "[::ffff:10.1.1.1]:1", host: "own.example", headers: "X-Forwarded-For: ::ffff:192.0.2.9"}},
		{"other headers", strings.Replace(file, "authorize:\n", own, 1), "192.0.2.9 PUT b.example /orig", call{path: Prefix + "web",
			headers: told + "\nX-Original-Method: PUT\nX-Original-URL: https://b.example/orig?y\nX-Original-Host: b.example"}},
	} {
		var got []string
		d := open(t, doortest.NewNode(t), c.file+"descriptors: [{key: x}]\n", func(conf *Config) { conf.Limiter = spy{conf.Limiter, &got} })
		w := ask(d, c.call)
		if w.Code != 200 || strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %d %q %s\nwant %q", c.name, w.Code, got, w.Body, c.want)
		}
	}
}

// spy notes the values of the descriptors that are checked.
type spy struct {
	transport.Limiter
	seen *[]string
}

func (s spy) Check(ctx context.Context, b *transport.Batch) error {
	for i := range b.Checks {
		var values []string
		for _, e := range b.Checks[i].Descriptor {
			values = append(values, e.Value)
		}
		*s.seen = append(*s.seen, strings.Join(values, " "))
	}
	return s.Limiter.Check(ctx, b)
}

// TestSettings: what the keys of authorize change.
func TestSettings(t *testing.T) {
	const file = `
domain: web
authorize:
  KEYS
  descriptors:
    - - {key: a, value: x}
    - - {key: b, from: header, name: X-B, default: none}
descriptors:
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 9}
  - key: b
    value: one
    rate_limit: {unit: minute, requests_per_unit: 1}
    response: {status: 503}
`
	for _, c := range []struct {
		keys   string
		status int
		left   string // of a, after a denial
	}{
		{"denied_status: ~", 503, "8"},
		{"denied_status: 403", 403, "8"},
		{"all_or_nothing: false", 503, "7"},
	} {
		d := open(t, doortest.NewNode(t), strings.Replace(file, "KEYS", c.keys, 1))
		one := call{path: Prefix + "web", headers: "X-B: one"}
		if w := ask(d, one); w.Code != 200 {
			t.Fatalf("%s: %d %s", c.keys, w.Code, w.Body)
		}
		w := ask(d, one)
		if w.Code != c.status || w.Header().Get("X-RateLimit-Limit") != "1" || w.Header().Get("Retry-After") != "60" {
			t.Errorf("%s: %d %v, want %d", c.keys, w.Code, w.Header(), c.status)
		}
		if p := problem(t, w); p["status"] != float64(c.status) || p["violated-policies"].([]any)[0] != "web/b=one" {
			t.Errorf("%s: %v", c.keys, p)
		}
		if !strings.Contains(w.Header().Get("RateLimit"), `"web/a";r=`+c.left) {
			t.Errorf("%s: RateLimit is %s, want %s left of a", c.keys, w.Header().Get("RateLimit"), c.left)
		}
	}
}

// TestNothingToCheck: a request that no descriptor, or no rule, is for passes without headers.
func TestNothingToCheck(t *testing.T) {
	n := doortest.NewNode(t)
	const file = `
domain: web
authorize:
  descriptors:
    - - {key: user, from: header, name: X-User, patterns: [a*, b*]}
descriptors:
  - key: user
    value: b*
    rate_limit: {unit: minute, requests_per_unit: 0}
`
	var seen []string
	d := open(t, n, file, func(c *Config) { c.Limiter = spy{c.Limiter, &seen} })
	for _, headers := range []string{"", "X-User: ", "X-User: carl", "X-User: ann"} {
		w := ask(d, call{path: Prefix + "web", headers: headers})
		if w.Code != 200 || len(w.Header()) != 0 {
			t.Errorf("%q: %d %v", headers, w.Code, w.Header())
		}
	}
	if n.Asked.Load() != 0 || len(seen) != 1 || seen[0] != "a*" {
		t.Errorf("%d checks were decided of %q, want none of a*", n.Asked.Load(), seen)
	}
	if w := ask(d, call{path: Prefix + "web", headers: "X-User: bob"}); w.Code != 429 {
		t.Errorf("bob: %d", w.Code)
	}
}

// TestDelay: a queue has room, but nobody can be held back.
func TestDelay(t *testing.T) {
	d := open(t, doortest.NewNode(t), `
domain: web
authorize: {descriptors: [[{key: a, value: x}]]}
descriptors:
  - key: a
    rate_limit: {algorithm: leaky_queue, count: 1, period: 10s, burst: 5}
`)
	if w := ask(d, call{path: Prefix + "web"}); w.Code != 200 {
		t.Errorf("the first: %d %s", w.Code, w.Body)
	}
	if w := ask(d, call{path: Prefix + "web"}); w.Code != 429 || w.Header().Get("Retry-After") != "10" {
		t.Errorf("the second: %d %v", w.Code, w.Header())
	}
}

// TestShadow: a rule that only watches refuses nobody.
func TestShadow(t *testing.T) {
	d := open(t, doortest.NewNode(t), `
domain: web
authorize: {descriptors: [[{key: a, value: x}], [{key: b, value: y}]]}
descriptors:
  - key: a
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: b
    rate_limit: {unit: minute, requests_per_unit: 1}
`)
	if w := ask(d, call{path: Prefix + "web"}); w.Code != 200 {
		t.Errorf("the first: %d %s", w.Code, w.Body)
	}
	w := ask(d, call{path: Prefix + "web"})
	if p := problem(t, w); w.Code != 429 || p["violated-policies"].([]any)[0] != "web/b" {
		t.Errorf("the second: %d %s", w.Code, w.Body)
	}
}

// TestReplaces: the descriptors are those of one request.
func TestReplaces(t *testing.T) {
	d := open(t, doortest.NewNode(t), `
domain: web
authorize: {descriptors: [[{key: all, value: x}], [{key: vip, from: header, name: X-Vip}]]}
descriptors:
  - key: all
    rate_limit: {name: everybody, unit: minute, requests_per_unit: 0}
  - key: vip
    rate_limit: {name: vip, unit: minute, requests_per_unit: 5, replaces: [{name: everybody}]}
`)
	if w := ask(d, call{path: Prefix + "web"}); w.Code != 429 {
		t.Errorf("everybody: %d", w.Code)
	}
	w := ask(d, call{path: Prefix + "web", headers: "X-Vip: ann"})
	if w.Code != 200 || w.Header().Get("RateLimit-Policy") != `"vip";q=5;w=60` {
		t.Errorf("a VIP: %d %v", w.Code, w.Header())
	}
}

// TestFailures: what no node could decide is refused, and never with a status of success.
func TestFailures(t *testing.T) {
	const file = `
domain: web
authorize: {all_or_nothing: %, descriptors: [[{key: a, value: x}], [{key: b, value: y}]]}
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	for _, c := range []struct {
		name     string
		outcomes [2]any // of the two checks
		whole    string
		status   int
		code     any
	}{
		{"no holder", [2]any{check.ErrNoHolder, true}, "true", 503, "unavailable"},
		{"no holder of the second", [2]any{true, check.ErrNoHolder}, "false", 503, "unavailable"},
		{"a full queue", [2]any{true, check.ErrOverloaded}, "true", 503, "overloaded"},
		{"only full queues", [2]any{check.ErrOverloaded, check.ErrOverloaded}, "true", 503, "overloaded"},
		{"another error", [2]any{errors.New("node n2 is odd"), true}, "true", 503, "unavailable"},
		{"a denial settles it", [2]any{check.ErrNoHolder, false}, "false", 429, nil},
		{"not where all is denied with it", [2]any{check.ErrNoHolder, false}, "true", 503, "unavailable"},
		{"closed", [2]any{true, check.Closed}, "true", 429, nil},
		{"open", [2]any{check.Open, check.Open}, "true", 200, nil},
	} {
		d := open(t, decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Answers {
				b.Answers[i].Source = check.Held
				switch o := c.outcomes[i].(type) {
				case error:
					b.Answers[i].Err = o
				case check.Source:
					b.Answers[i].Source, b.Answers[i].Allowed = o, o == check.Open
				case bool:
					b.Answers[i].Allowed = o
				}
			}
		}), strings.Replace(file, "%", c.whole, 1))
		w := ask(d, call{path: Prefix + "web"})
		if p := problem(t, w); w.Code != c.status || w.Code != 200 && p["code"] != c.code {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
		if c.status == 503 && w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: Retry-After is %q", c.name, w.Header().Get("Retry-After"))
		}
		if got := w.Header().Get("RateLimit"); (c.name == "open" || c.status == 503) && got != "" {
			t.Errorf("%s: RateLimit is %s, of what nobody counted", c.name, got)
		}
	}
}

func TestLeaving(t *testing.T) {
	n := doortest.NewNode(t)
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

// TestBefore: only what is below the prefix is the door's, and comes to it as it was written.
func TestBefore(t *testing.T) {
	var got string
	n := doortest.NewNode(t)
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
