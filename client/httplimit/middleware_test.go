package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
)

// fake answers as a test says, and remembers what it was asked.
type fake struct {
	answer func(c limit.Check) (limit.Decision, error)
	asked  []limit.Check
	// after are refunds and charges.
	after []limit.Check
}

func (f *fake) Check(_ context.Context, c limit.Check) (limit.Decision, error) {
	if c.Verb != limit.VerbCheck {
		f.after = append(f.after, c)
		return limit.Decision{Allowed: true}, nil
	}
	f.asked = append(f.asked, c)
	return f.answer(c)
}

func (f *fake) CheckAll(ctx context.Context, checks ...limit.Check) (limit.Batch, error) {
	all, err := f.CheckEach(ctx, checks...)
	return limit.NewBatch(all), err
}

func (f *fake) CheckEach(ctx context.Context, checks ...limit.Check) ([]limit.Decision, error) {
	var all []limit.Decision
	for _, c := range checks {
		d, err := f.Check(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func always(d limit.Decision) *fake {
	return &fake{answer: func(limit.Check) (limit.Decision, error) { return d, nil }}
}

var (
	allowed = limit.Decision{
		Allowed: true, Verdict: limit.VerdictAllowed, Source: limit.SourceOwned, Counted: true, Limit: 10, Count: 10, Remaining: 9,
		Period: time.Minute, ResetAfter: 6 * time.Second, Rule: "shop/user", LimitName: "shop/user",
	}
	denied = limit.Decision{
		Verdict: limit.VerdictDenied, Source: limit.SourceOwned, Counted: true, Limit: 10, Count: 10,
		Period: time.Minute, ResetAfter: time.Minute, RetryAfter: 5500 * time.Millisecond, Rule: "shop/user", LimitName: "shop/user#2", LimitIndex: 1,
	}
)

// serve sends r through a Middleware and returns the answer and whether the handler was called.
func serve(t *testing.T, f *fake, c Config, r *http.Request) (*httptest.ResponseRecorder, bool) {
	t.Helper()
	if c.Domain == "" {
		c.Domain = "shop"
	}
	if c.Keys == nil {
		c.Keys = []Key{Header("user", "X-User")}
	}
	called := false
	w := httptest.NewRecorder()
	Middleware(f, c)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	rule.Response = &limit.Response{Status: 503, Body: "busy", Header: []limit.Header{{Name: "X-Why", Value: "limit"}}}
	status := denied
	status.Response = &limit.Response{Status: 418}
	never := denied
	never.Verdict, never.RetryAfter = limit.VerdictNever, 0
	unmatched := limit.Decision{Verdict: limit.VerdictNever, Source: limit.SourceUnmatched}
	open := limit.Decision{Allowed: true, Source: limit.SourceFailOpen}
	closed := limit.Decision{Source: limit.SourceFailClosed, Verdict: limit.VerdictDenied, RetryAfter: time.Second}
	for _, c := range []struct {
		name    string
		d       limit.Decision
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
		{"never", never, Config{}, 429, false,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"the amount is more than the limit can ever admit","violated-policies":["shop/user#2"]}`,
			map[string]string{"Retry-After": ""}},
		{"no rule", unmatched, Config{}, 429, false,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"no rule matches, and the rules of the domain deny such checks"}`,
			map[string]string{"Retry-After": "", "RateLimit-Policy": ""}},
		{"the rule's answer", rule, Config{}, 503, false, "busy", map[string]string{"X-Why": "limit", "Retry-After": "6", "Content-Type": "text/plain; charset=utf-8"}},
		{"the rule's status", status, Config{}, 418, false, "", nil},
		{"no counter", open, Config{}, 200, true, "", map[string]string{"RateLimit": "", "X-RateLimit-Limit": ""}},
		{"denied without a counter", closed, Config{}, 429, false, "", map[string]string{"RateLimit": "", "Retry-After": "1"}},
		{"shadowban", denied, Config{Shadowban: true, ShadowBody: "thanks"}, 200, false, "thanks", map[string]string{"Retry-After": "", "RateLimit": ""}},
		{"before a shadowban", allowed, Config{Shadowban: true}, 200, true, "", map[string]string{"RateLimit": "", "RateLimit-Policy": "", "X-RateLimit-Remaining": ""}},
		{"no headers", allowed, Config{NoHeaders: true}, 200, true, "", map[string]string{"RateLimit": "", "RateLimit-Policy": "", "X-RateLimit-Limit": ""}},
		{"denied without headers", denied, Config{NoHeaders: true}, 429, false, "", map[string]string{"RateLimit": "", "X-RateLimit-Retry-After": "", "Retry-After": "6"}},
		{"own answer", denied, Config{Denied: func(w http.ResponseWriter, _ *http.Request, d limit.Decision) { w.WriteHeader(420) }}, 420, false, "", map[string]string{"Retry-After": "6"}},
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
				if got := strings.Join(w.Header()[k], "|"); got != want {
					t.Errorf("%s: %q, want %q", k, got, want)
				}
			}
		})
	}
}

// TestStrange: odd values are asked as they are, since the client takes any. If they made the check fail, to send one would be a
// way around the limit.
func TestStrange(t *testing.T) {
	for _, user := range []string{strings.Repeat("x", 1025), strings.Repeat("x", 1026), "anna\xff", "anna\xfe"} {
		f := always(denied)
		if w, called := serve(t, f, Config{}, request(user)); called || w.Code != 429 {
			t.Fatalf("%.10q: status %d, called %v", user, w.Code, called)
		}
		v := f.asked[0].Descriptor[0].Value
		if v != user {
			t.Errorf("%.10q is asked as %q", user, v)
		}
	}
}

// TestGone: who hangs up while the limit is asked does not get past it.
func TestGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{answer: func(limit.Check) (limit.Decision, error) {
		cancel()
		return limit.Decision{}, ctx.Err()
	}}
	if _, called := serve(t, f, Config{}, request("anna").WithContext(ctx)); called {
		t.Error("the handler was called")
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
		"amount 0":       {"anna", Config{Amount: func(*http.Request) int64 { return 0 }}},
	} {
		f := always(denied)
		if w, called := serve(t, f, c.config, request(c.user)); !called || w.Code != 200 || len(f.asked) != 0 {
			t.Errorf("%s: status %d, asked %v", name, w.Code, f.asked)
		}
	}
}

// TestSeveral: several descriptors are one decision, and the answer is about the one that counts.
func TestSeveral(t *testing.T) {
	f := &fake{answer: func(c limit.Check) (limit.Decision, error) {
		if c.Descriptor[0].Key == "ip" {
			return denied, nil
		}
		d := allowed
		d.Allowed, d.Verdict, d.RetryAfter = false, limit.VerdictDeniedByOthers, denied.RetryAfter
		return d, nil
	}}
	w, called := serve(t, f, Config{
		Keys:   []Key{Header("user", "X-User"), IP(), Header("tenant", "X-Tenant")},
		Amount: func(*http.Request) int64 { return 3 },
	}, request("anna"))
	header := map[string][]string(w.Header()) // by the names as they are sent
	name := "RateLimit"
	if called || w.Code != 429 || w.Header().Get("Retry-After") != "6" || header[name][0] != `"shop/user#2";r=0;t=6` {
		t.Errorf("status %d, called %v, %v", w.Code, called, header)
	}
	if len(f.asked) != 2 || f.asked[1].Amount != 3 || f.asked[1].Descriptor[0].Value != "192.0.2.1" {
		t.Errorf("asked %+v", f.asked)
	}
}

// TestErrors: a request that could not be decided passes, which is logged, unless Failed says otherwise.
func TestErrors(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	f := &fake{answer: func(limit.Check) (limit.Decision, error) { return limit.Decision{}, limit.ErrForbidden }}
	h := Middleware(f, Config{Domain: "shop", Keys: []Key{IP()}})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	for range 3 {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, request("anna")); w.Code != 204 {
			t.Errorf("by default: status %d", w.Code)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "domain=shop") || !strings.Contains(got, "forbidden") {
		t.Errorf("three failures were logged as %s", got)
	}
	for _, pass := range []bool{false, true} {
		w, called := serve(t, f, Config{
			Failed: func(_ context.Context, err error) bool {
				if !errors.Is(err, limit.ErrForbidden) {
					t.Errorf("%v", err)
				}
				return pass
			},
			Denied: func(w http.ResponseWriter, _ *http.Request, d limit.Decision) {
				if !errors.Is(d.Degraded, limit.ErrForbidden) {
					t.Errorf("%+v", d)
				}
				w.WriteHeader(503)
			},
		}, request("anna"))
		if called != pass || !pass && (w.Code != 503 || w.Header().Get("Retry-After") != "1") {
			t.Errorf("Failed returns %v: status %d, called %v", pass, w.Code, called)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w, called := serve(t, f, Config{}, request("anna").WithContext(ctx)); called || w.Code != 503 {
		t.Errorf("a request that has ended: status %d, called %v", w.Code, called)
	}
}

// TestWaits: a denied request waits as long as it may, and no longer; what a queue would have wait too long gives its
// place back. Package limit has the rest.
func TestWaits(t *testing.T) {
	soon := func(d limit.Decision) limit.Decision { d.RetryAfter = 2 * time.Second; return d }
	queue := allowed
	queue.Delay = 2 * time.Second
	for _, c := range []struct {
		name    string
		answers []limit.Decision // one after the other
		max     time.Duration
		status  int
		from    time.Duration // and a tenth more at most
		refunds int
	}{
		{"soon enough", []limit.Decision{soon(denied), allowed}, 3 * time.Second, 200, 2 * time.Second, 0},
		{"too late", []limit.Decision{denied}, 3 * time.Second, 429, 0, 0},
		{"never waits", []limit.Decision{soon(denied)}, 0, 429, 0, 0},
		{"a queue", []limit.Decision{queue}, 3 * time.Second, 200, 2 * time.Second, 0},
		{"a long queue", []limit.Decision{queue}, time.Second, 429, 0, 1},
		{"a queue, not waited in", []limit.Decision{queue}, 0, 429, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{answer: func(limit.Check) (limit.Decision, error) {
					d := c.answers[0]
					if len(c.answers) > 1 {
						c.answers = c.answers[1:]
					}
					return d, nil
				}}
				began := time.Now()
				w, called := serve(t, f, Config{MaxWait: c.max}, request("anna"))
				took := time.Since(began)
				if w.Code != c.status || called != (c.status == 200) || took < c.from || took > c.from+c.from/10 || len(f.after) != c.refunds {
					t.Errorf("status %d after %v, refunds %v", w.Code, took, f.after)
				}
				if (w.Header().Get("Retry-After") == "") != called {
					t.Errorf("%v", w.Header())
				}
			})
		})
	}
}

// TestBody: more than the cap is rejected, announced or not, before the check.
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

// TestConfig: a wrong field is named, by Validate and in a panic.
func TestConfig(t *testing.T) {
	keys := []Key{IP()}
	for want, c := range map[string]Config{
		"Domain": {Keys: keys}, "Keys is empty": {Domain: "shop"}, "Keys[1]": {Domain: "shop", Keys: []Key{IP(), nil}},
		"MaxWait": {Domain: "shop", Keys: keys, MaxWait: -1}, "MaxBody": {Domain: "shop", Keys: keys, MaxBody: -1},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		panics(t, want, func() { Middleware(always(allowed), c) })
		panics(t, want, func() { NewTransport(always(allowed), nil, c) })
	}
	panics(t, "Limiter", func() { Middleware(nil, Config{Domain: "shop", Keys: keys}) })
	panics(t, "NoHeaders", func() { NewTransport(always(allowed), nil, Config{Domain: "shop", Keys: keys, NoHeaders: true}) })
}

// panics wants f to panic with a text that contains want.
func panics(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
			t.Errorf("panic %s, want %s", got, want)
		}
	}()
	f()
}

// TestKeys: what each makes of a request.
func TestKeys(t *testing.T) {
	r := httptest.NewRequest("PUT", "http://API.example.com:8080/users/7", nil)
	r.Header.Set("X-Key", "secret")
	r.Pattern = "PUT /users/{id}"
	mux := http.NewServeMux()
	mux.Handle("PUT /users/{name}", http.NotFoundHandler())
	for name, c := range map[string]struct {
		key  Key
		want string
	}{
		"method":     {Method(), "[{method PUT}]"},
		"route":      {Route(), "[{route /users/{id}}]"},
		"mux":        {RouteOf(mux), "[{route /users/{name}}]"},
		"no mux":     {RouteOf(http.NewServeMux()), "[{route none}]"},
		"path":       {Path(), "[{path /users/7}]"},
		"renamed":    {Method().As("verb"), "[{verb PUT}]"},
		"first":      {First(Header("k", "X-None"), Method(), Host()), "[{method PUT}]"},
		"no one":     {First(Header("k", "X-None")), "none"},
		"host":       {Host(), "[{host api.example.com}]"},
		"header":     {Header("k", "X-Key"), "[{k secret}]"},
		"value":      {Value("a", "b"), "[{a b}]"},
		"user":       {User(func(*http.Request) string { return "u" }), "[{user u}]"},
		"api key":    {APIKey("X-Key"), "[{api_key 2bb80d537b1da3e38bd30361aa855686}]"},
		"no api key": {APIKey("X-None"), "none"},
		"joined":     {Join(Method(), Value("a", "b")), "[{method PUT} {a b}]"},
		"missing":    {Join(Method(), Header("k", "X-None")), "none"},
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

func sprint(entries []limit.Entry) string {
	var parts []string
	for _, e := range entries {
		parts = append(parts, "{"+e.Key+" "+e.Value+"}")
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// TestForged: values that clients can invent do not make a counter each.
func TestForged(t *testing.T) {
	r := httptest.NewRequest("BREW", "/", nil)
	if e, _ := Method()(r); e[0].Value != "OTHER" {
		t.Errorf("method %v", e)
	}
	for path, want := range map[string]string{"//a/./b": "/a/b", "/x/../a": "/a", "": "/", "/a/": "/a", "/%61": "/a"} {
		r := httptest.NewRequest("GET", "http://h"+path, nil)
		if e, _ := Path()(r); e[0].Value != want {
			t.Errorf("path %s: %v, want %s", path, e, want)
		}
	}
	for host, want := range map[string]string{"H.example:80": "h.example", "[2001:DB8::1]:80": "2001:db8::1", "h": "h"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		if e, _ := Host()(r); e[0].Value != want {
			t.Errorf("host %s: %v, want %s", host, e, want)
		}
	}
}

// TestIP: the address of the connection, and behind trusted proxies the one before them; package key has the rest.
func TestIP(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct{ name, remote, forwarded, want string }{
		{"no proxy", "192.0.2.7:1000", "", "192.0.2.7"},
		{"forged", "192.0.2.7:1000", "1.1.1.1", "192.0.2.7"},
		{"a proxy", "10.0.0.1:1000", "1.1.1.1, 192.0.2.7", "192.0.2.7"},
		{"IPv6", "[2001:db8:1:2:3::4]:1000", "", "2001:db8:1:2::"},
		{"no address", "@", "1.1.1.1", ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.remote
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		entries, ok := IP(proxies...)(r)
		if ok != (c.want != "") || ok && entries[0] != (limit.Entry{Key: "ip", Value: c.want}) {
			t.Errorf("%s: %v, %v, want %q", c.name, entries, ok, c.want)
		}
	}
}

// TestTransport: a request goes out when its limit admits it, and not at all when it does not.
func TestTransport(t *testing.T) {
	sent := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { sent++; w.WriteHeader(304) }))
	defer server.Close()
	now := allowed
	var fails error
	f := &fake{answer: func(limit.Check) (limit.Decision, error) { return now, fails }}
	c := http.Client{Transport: NewTransport(f, nil, Config{
		Domain: "out", Keys: []Key{Host()},
		ChargeIf: func(status int) int64 { return int64(status % 304) }, // what has not changed is free
	})}
	res, err := c.Get(server.URL)
	if err != nil || sent != 1 || len(f.asked) != 1 || f.asked[0].Descriptor[0] != (limit.Entry{Key: "host", Value: "127.0.0.1"}) {
		t.Fatalf("%v, %d sent, asked %v", err, sent, f.asked)
	}
	res.Body.Close()
	if len(f.after) != 1 || f.after[0].Verb != limit.VerbRefund {
		t.Errorf("after the response: %+v", f.after)
	}
	now.Allowed, now.Verdict = false, limit.VerdictNever
	if _, err := c.Post(server.URL, "text/plain", strings.NewReader("x")); !errors.Is(err, limit.ErrNever) || sent != 1 {
		t.Errorf("%v, %d sent", err, sent)
	}
	body := &closing{Reader: strings.NewReader("x")}
	r, err := http.NewRequest("POST", server.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Transport.RoundTrip(r); err == nil || !body.closed {
		t.Errorf("%v, the body is closed: %v", err, body.closed)
	}
	now = denied
	ctx, cancel := context.WithTimeout(t.Context(), denied.RetryAfter-time.Second)
	defer cancel()
	if _, err := c.Transport.RoundTrip(r.Clone(ctx)); !errors.Is(err, limit.ErrWouldExceedDeadline) {
		t.Errorf("too late: %v", err)
	}
	bounded := NewTransport(f, nil, Config{Domain: "out", Keys: []Key{Host()}, MaxWait: time.Second})
	if _, err := bounded.RoundTrip(r); !errors.Is(err, limit.ErrDenied) || errors.Is(err, limit.ErrWouldExceedDeadline) {
		t.Errorf("longer than MaxWait: %v", err)
	}
	fails = limit.ErrForbidden
	strict := NewTransport(f, nil, Config{Domain: "out", Keys: []Key{Host()}, Failed: func(context.Context, error) bool { return false }, MaxWait: 1})
	if _, err := strict.RoundTrip(r); !errors.Is(err, limit.ErrDenied) || !errors.Is(err, limit.ErrForbidden) || sent != 1 {
		t.Errorf("failed: %v", err)
	}
	if res, err := bounded.RoundTrip(r); err != nil || sent != 2 {
		t.Errorf("passed: %v", err)
	} else {
		res.Body.Close()
	}
}

// closing knows whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// BenchmarkHandler is what a request that is admitted pays, without the decision.
func BenchmarkHandler(b *testing.B) {
	limit := Middleware(quick{}, Config{Domain: "shop", Keys: []Key{IP()}})
	h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("GET", "/", nil)
	w := discard{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.h)
		h.ServeHTTP(w, r)
	}
}

type quick struct{ limit.Limiter }

func (quick) Check(context.Context, limit.Check) (limit.Decision, error) { return allowed, nil }

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// slots is a Limiter of so many slots for all.
type slots struct {
	fake
	free  int
	lost  context.CancelFunc
	asked []time.Duration
}

func (s *slots) InFlight(ctx context.Context, c limit.Check, most time.Duration) (limit.Decision, context.Context, func(), error) {
	if s.asked = append(s.asked, most); c.Domain == "broken" {
		return limit.Decision{}, nil, nil, errors.New("no rule")
	}
	if s.free == 0 {
		return limit.Decision{Verdict: limit.VerdictDenied}, nil, nil, ctx.Err()
	}
	s.free--
	held, cancel := context.WithCancel(ctx)
	s.lost = cancel
	return allowed, held, func() { cancel(); s.free++ }, nil
}

func TestInFlight(t *testing.T) {
	s := &slots{free: 2}
	var during func(r *http.Request)
	two := Config{Domain: "shop", Keys: []Key{Value("a", "x"), Value("b", "y")}, InFlight: true, MaxWait: time.Second}
	serve := func(c Config, r *http.Request) int {
		w := httptest.NewRecorder()
		Middleware(s, c)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { during(r) })).ServeHTTP(w, r)
		return w.Code
	}
	request := httptest.NewRequest("GET", "/", nil)
	during = func(r *http.Request) {
		if s.free != 0 || r.Context().Err() != nil {
			t.Errorf("%d free, %v", s.free, r.Context().Err())
		}
		s.lost()
		if r.Context().Err() == nil {
			t.Error("the request goes on without its slot")
		}
	}
	if code := serve(two, request); code != 200 || s.free != 2 || len(s.asked) != 2 || s.asked[0] != time.Second {
		t.Errorf("%d, %d free, waits %v", code, s.free, s.asked)
	}
	s.free = 1 // for one of the two
	if code := serve(two, request); code != 429 || s.free != 1 {
		t.Errorf("%d, %d free", code, s.free)
	}
	s.free = 0
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if code := serve(two, request.WithContext(gone)); code != 503 {
		t.Errorf("a client that has gone: %d", code)
	}
	two.Domain, during = "broken", func(*http.Request) {}
	if code := serve(two, request); code != 200 {
		t.Errorf("an error: %d", code)
	}
	two.Failed = func(context.Context, error) bool { return false }
	if code := serve(two, request); code != 429 {
		t.Errorf("an error that denies: %d", code)
	}
	two.ChargeIf = func(int) int64 { return 1 }
	if two.Validate() == nil {
		t.Error("ChargeIf goes with InFlight")
	}
	defer func() {
		if recover() == nil {
			t.Error("InFlight goes without slots")
		}
	}()
	two.ChargeIf = nil
	Middleware(always(allowed), two)
}
