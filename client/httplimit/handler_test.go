package httplimit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/client"
)

// fake answers as a test says, and remembers what it was asked.
type fake struct {
	answer func(c client.Check) (client.Decision, error)
	asked  []client.Check
}

func (f *fake) Check(_ context.Context, c client.Check) (client.Decision, error) {
	f.asked = append(f.asked, c)
	return f.answer(c)
}

func (f *fake) CheckAll(ctx context.Context, checks []client.Check) ([]client.Decision, error) {
	var all []client.Decision
	for _, c := range checks {
		d, err := f.Check(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func always(d client.Decision) *fake {
	return &fake{answer: func(client.Check) (client.Decision, error) { return d, nil }}
}

var (
	allowed = client.Decision{Allowed: true, Source: client.SourceHeld, Limit: 10, Remaining: 9, Period: time.Minute, ResetAfter: 6 * time.Second, Rule: "shop/user"}
	denied  = client.Decision{Source: client.SourceHeld, Limit: 10, Period: time.Minute, ResetAfter: time.Minute, RetryAfter: 5500 * time.Millisecond, Rule: "shop/user", LimitIndex: 1}
)

// serve sends r through a Handler and returns the answer and whether the handler was called.
func serve(t *testing.T, f *fake, c Config, r *http.Request) (*httptest.ResponseRecorder, bool) {
	t.Helper()
	if c.Domain == "" {
		c.Domain = "shop"
	}
	if c.Keys == nil {
		c.Keys = []Key{Header("user", "X-User")}
	}
	limit, err := Handler(f, c)
	if err != nil {
		t.Fatal(err)
	}
	called := false
	w := httptest.NewRecorder()
	limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called = true
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		}
	})).ServeHTTP(w, r)
	return w, called
}

func request(user string) *http.Request {
	r := httptest.NewRequest("POST", "/orders", strings.NewReader("body"))
	if user != "" {
		r.Header.Set("X-User", user)
	}
	return r
}

// TestAnswers: what a client sees of each decision.
func TestAnswers(t *testing.T) {
	rule := denied
	rule.Response = &client.Response{Status: 503, Body: "busy", Header: []client.Header{{Name: "X-Why", Value: "limit"}}}
	status := denied
	status.Response = &client.Response{Status: 418}
	never := denied
	never.RetryAfter = client.Never
	open := client.Decision{Allowed: true, Source: client.SourceFailOpen}
	for _, c := range []struct {
		name    string
		d       client.Decision
		config  Config
		status  int
		called  bool
		body    string
		headers map[string]string
	}{
		{"allowed", allowed, Config{}, 200, true, "", map[string]string{
			"RateLimit-Policy": `"shop/user";q=10;w=60`, "RateLimit": `"shop/user";r=9;t=6`,
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "6", "Retry-After": "",
		}},
		{"denied", denied, Config{}, 429, false,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"try again later","violated-policies":["shop/user#2"]}`,
			map[string]string{"Retry-After": "6", "RateLimit": `"shop/user#2";r=0;t=6`, "Content-Type": "application/problem+json"}},
		{"never", never, Config{}, 429, false, "", map[string]string{"Retry-After": ""}},
		{"the rule's answer", rule, Config{}, 503, false, "busy", map[string]string{"X-Why": "limit", "Retry-After": "6", "Content-Type": "text/plain; charset=utf-8"}},
		{"the rule's status", status, Config{}, 418, false, "", nil},
		{"nobody counted", open, Config{}, 200, true, "", map[string]string{"RateLimit": "", "X-RateLimit-Limit": ""}},
		{"shadowban", denied, Config{Shadowban: true, ShadowBody: "thanks"}, 200, false, "thanks", map[string]string{"Retry-After": "", "RateLimit": ""}},
		{"own answer", denied, Config{Denied: func(w http.ResponseWriter, _ *http.Request, d client.Decision) { w.WriteHeader(420) }}, 420, false, "", map[string]string{"Retry-After": "6"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, called := serve(t, always(c.d), c.config, request("anna"))
			if w.Code != c.status || called != c.called {
				t.Errorf("status %d, called %v", w.Code, called)
			}
			if c.body != "" && w.Body.String() != c.body {
				t.Errorf("body %s\nwant %s", w.Body, c.body)
			}
			for k, want := range c.headers {
				if got := w.Header().Get(k); got != want {
					t.Errorf("%s: %q, want %q", k, got, want)
				}
			}
		})
	}
}

// TestPasses: what is not to be asked is not.
func TestPasses(t *testing.T) {
	for name, c := range map[string]struct {
		user   string
		config Config
	}{
		"no key applies": {"", Config{}},
		"skipped":        {"anna", Config{Skip: func(*http.Request) bool { return true }}},
		"costs nothing":  {"anna", Config{Cost: func(*http.Request) int64 { return 0 }}},
	} {
		f := always(denied)
		if w, called := serve(t, f, c.config, request(c.user)); !called || w.Code != 200 || len(f.asked) != 0 {
			t.Errorf("%s: status %d, asked %v", name, w.Code, f.asked)
		}
	}
}

// TestSeveral: several descriptors are one decision, and the answer is about the one that counts.
func TestSeveral(t *testing.T) {
	f := &fake{answer: func(c client.Check) (client.Decision, error) {
		if c.Descriptor[0].Key == "ip" {
			return denied, nil
		}
		d := allowed
		d.Allowed = false // all or nothing
		return d, nil
	}}
	w, called := serve(t, f, Config{
		Keys: []Key{Header("user", "X-User"), IP(), Header("tenant", "X-Tenant")},
		Cost: func(*http.Request) int64 { return 3 },
	}, request("anna"))
	if called || w.Code != 429 || w.Header().Get("Retry-After") != "6" {
		t.Errorf("status %d, called %v, %v", w.Code, called, w.Header())
	}
	if len(f.asked) != 2 || f.asked[1].Cost != 3 || f.asked[1].Descriptor[0].Value != "192.0.2.1" {
		t.Errorf("asked %+v", f.asked)
	}
}

// TestErrors: the limit is not worth an outage, unless its owner says so.
func TestErrors(t *testing.T) {
	f := &fake{answer: func(client.Check) (client.Decision, error) { return client.Decision{}, client.ErrClosed }}
	if w, called := serve(t, f, Config{}, request("anna")); !called || w.Code != 200 {
		t.Errorf("by default: status %d, called %v", w.Code, called)
	}
	w, called := serve(t, f, Config{Failed: func(w http.ResponseWriter, _ *http.Request, _ http.Handler, err error) {
		if !errors.Is(err, client.ErrClosed) {
			t.Errorf("%v", err)
		}
		w.WriteHeader(503)
	}}, request("anna"))
	if called || w.Code != 503 {
		t.Errorf("closed: status %d, called %v", w.Code, called)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, called := serve(t, f, Config{}, request("anna").WithContext(ctx)); called {
		t.Error("the handler of a request that has ended was called")
	}
}

// TestWaits: a denied request waits as long as it may, and no longer.
func TestWaits(t *testing.T) {
	after := func(d time.Duration) *fake {
		began := time.Now()
		return &fake{answer: func(client.Check) (client.Decision, error) {
			if left := d - time.Since(began); left > 0 {
				x := denied
				x.RetryAfter = left
				return x, nil
			}
			return allowed, nil
		}}
	}
	queue := allowed
	queue.Delay = 2 * time.Second
	for _, c := range []struct {
		name   string
		f      func() *fake
		max    time.Duration
		status int
		took   time.Duration
	}{
		{"soon enough", func() *fake { return after(2 * time.Second) }, 3 * time.Second, 200, 2 * time.Second},
		{"too late", func() *fake { return after(4 * time.Second) }, 3 * time.Second, 429, 0},
		{"never waits", func() *fake { return after(time.Second) }, 0, 429, 0},
		{"a queue", func() *fake { return always(queue) }, 3 * time.Second, 200, 2 * time.Second},
		{"a long queue", func() *fake { return always(queue) }, time.Second, 429, 0},
		{"a queue, told", func() *fake { return always(queue) }, 0, 200, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w, _ := serve(t, c.f(), Config{MaxWait: c.max}, request("anna"))
				if w.Code != c.status || time.Since(began) != c.took {
					t.Errorf("status %d after %v", w.Code, time.Since(began))
				}
				if c.name == "a queue, told" && w.Header().Get("Retry-After") != "2" {
					t.Errorf("%v", w.Header())
				}
			})
		})
	}
}

// TestBody: more than the cap is refused, announced or not, before anybody is asked.
func TestBody(t *testing.T) {
	f := always(allowed)
	if w, called := serve(t, f, Config{MaxBody: 3}, request("anna")); called || w.Code != 413 || len(f.asked) != 0 {
		t.Errorf("announced: status %d, called %v", w.Code, called)
	}
	r := request("anna")
	r.ContentLength = -1
	if w, called := serve(t, f, Config{MaxBody: 3}, r); !called || w.Code != 413 {
		t.Errorf("not announced: status %d, called %v", w.Code, called)
	}
	if w, _ := serve(t, f, Config{MaxBody: 4}, request("anna")); w.Code != 200 {
		t.Errorf("just enough: status %d", w.Code)
	}
}

// TestConfig: wrong ones are named.
func TestConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"Domain": {Keys: []Key{IP()}}, "Keys": {Domain: "shop"},
		"MaxWait": {Domain: "shop", Keys: []Key{IP()}, MaxWait: -1}, "MaxBody": {Domain: "shop", Keys: []Key{IP()}, MaxBody: -1},
	} {
		if _, err := Handler(always(allowed), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := Handler(nil, Config{Domain: "shop", Keys: []Key{IP()}}); err == nil {
		t.Error("no Checker was accepted")
	}
}

// TestKeys: what each makes of a request.
func TestKeys(t *testing.T) {
	r := httptest.NewRequest("PUT", "http://API.example.com:8080/users/7", nil)
	r.Header.Set("X-Key", "secret")
	r.Pattern = "PUT /users/{id}"
	for name, c := range map[string]struct {
		key  Key
		want string
	}{
		"method":  {Method(), "[{method PUT}]"},
		"route":   {Route(), "[{route /users/{id}}]"},
		"host":    {Host(), "[{host api.example.com}]"},
		"header":  {Header("k", "X-Key"), "[{k secret}]"},
		"value":   {Value("a", "b"), "[{a b}]"},
		"user":    {User(func(*http.Request) string { return "u" }), "[{user u}]"},
		"api key": {APIKey("X-Key"), "[{api_key 2bb80d537b1da3e38bd30361aa855686}]"},
		"joined":  {Keys(Method(), Value("a", "b")), "[{method PUT} {a b}]"},
		"missing": {Keys(Method(), Header("k", "X-None")), "none"},
	} {
		entries, ok := c.key(r)
		got := strings.ReplaceAll(strings.ReplaceAll(sprint(entries), "\n", ""), "\t", "")
		if !ok {
			got = "none"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func sprint(entries []client.Entry) string {
	var parts []string
	for _, e := range entries {
		parts = append(parts, "{"+e.Key+" "+e.Value+"}")
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// TestIP: only what trusted proxies have written counts.
func TestIP(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct{ name, remote, forwarded, want string }{
		{"no proxy", "192.0.2.7:1000", "", "192.0.2.7"},
		{"forged", "192.0.2.7:1000", "1.1.1.1", "192.0.2.7"},
		{"one proxy", "10.0.0.1:1000", "192.0.2.7", "192.0.2.7"},
		{"forged before a proxy", "10.0.0.1:1000", "1.1.1.1, 192.0.2.7", "192.0.2.7"},
		{"two proxies", "10.0.0.1:1000", "192.0.2.7, 10.0.0.2", "192.0.2.7"},
		{"all proxies", "10.0.0.1:1000", "10.0.0.3, 10.0.0.2", "10.0.0.3"},
		{"garbage", "10.0.0.1:1000", "192.0.2.7, <script>", "10.0.0.1"},
		{"with a port", "10.0.0.1:1000", "192.0.2.7:4711", "192.0.2.7"},
		{"IPv6", "[2001:db8:1:2:3::4]:1000", "", "2001:db8:1:2::/64"},
		{"IPv6 behind a proxy", "[fd00::1]:1000", "[2001:db8:1:2:3::4]:99", "2001:db8:1:2::/64"},
		{"IPv4 in IPv6", "[::ffff:192.0.2.7]:1000", "", "192.0.2.7"},
		{"a zone", "[fe80::1%eth0]:1000", "", "fe80::/64"},
		{"no address", "@", "1.1.1.1", ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.remote
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		entries, ok := IP(proxies...)(r)
		if ok != (c.want != "") || ok && entries[0].Value != c.want {
			t.Errorf("%s: %v, %v, want %q", c.name, entries, ok, c.want)
		}
	}
}

// waiter implements Waiter.
type waiter func(c client.Check) error

func (w waiter) Wait(_ context.Context, c client.Check) (client.Decision, error) {
	return client.Decision{}, w(c)
}

// TestTransport: a request goes out when its limit admits it, and not at all when it does not.
func TestTransport(t *testing.T) {
	sent := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent++ }))
	defer server.Close()
	var asked []client.Check
	var fails error
	c := http.Client{Transport: &Transport{Domain: "out", Key: Host(), Waiter: waiter(func(q client.Check) error {
		asked = append(asked, q)
		return fails
	})}}
	res, err := c.Get(server.URL)
	if err != nil || sent != 1 || len(asked) != 1 || asked[0].Descriptor[0] != client.KV("host", "127.0.0.1") {
		t.Fatalf("%v, %d sent, asked %v", err, sent, asked)
	}
	res.Body.Close()
	fails = client.ErrWouldExceedDeadline
	if _, err := c.Post(server.URL, "text/plain", strings.NewReader("x")); !errors.Is(err, client.ErrWouldExceedDeadline) || sent != 1 {
		t.Errorf("%v, %d sent", err, sent)
	}
	if _, err := (&http.Client{Transport: &Transport{}}).Get(server.URL); err == nil || !strings.Contains(err.Error(), "needs") {
		t.Errorf("%v", err)
	}
}

// BenchmarkHandler is what a request that is admitted pays, without the decision.
func BenchmarkHandler(b *testing.B) {
	limit, err := Handler(quick{}, Config{Domain: "shop", Keys: []Key{IP()}})
	if err != nil {
		b.Fatal(err)
	}
	h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("GET", "/", nil)
	w := discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.h)
		h.ServeHTTP(w, r)
	}
}

type quick struct{}

func (quick) Check(context.Context, client.Check) (client.Decision, error) { return allowed, nil }
func (quick) CheckAll(context.Context, []client.Check) ([]client.Decision, error) {
	return nil, nil
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
