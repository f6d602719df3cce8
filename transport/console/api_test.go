package console

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/watch"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const shop = `
domain: shop
descriptors:
  - key: user
    redact: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: free
    rate_limit: {unlimited: true}
`

// testCluster is an API on a node that holds all keys.
type testCluster struct {
	http.Handler
	hub     *watch.Hub
	limiter *limiter.Limiter
	others  []facts.Node
}

func newTestCluster(t *testing.T, guard *access.Guard) *testCluster {
	t.Helper()
	n := apitest.NewNode(t)
	s := apitest.NewLimiter(t, n, shop, member.Member{Name: "n1", Boot: "b"}, func(c *limiter.Config) {
		c.Cluster.(*apitest.Cluster).Facts = func(_ context.Context, key bucket.Key, limits *bucket.Limits) (facts.Key, error) {
			k := facts.Key{Node: "n1", Owner: true, Gen: 1}
			list, known := n.Table.Look(n.Now.Load(), key, limits)
			for _, one := range list {
				k.Limits = append(k.Limits, facts.Limit(one))
			}
			k.Counted = known
			return k, nil
		}
	})
	w := &testCluster{limiter: s}
	w.hub = watch.NewHub(watch.Config{
		Members: s.Members, Here: s.FactsHere, Top: s.Top,
		Others: func(context.Context, int) ([]facts.Node, []string) { return w.others, nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.hub.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	d, err := New(Config{Limiter: s, Hub: w.hub, Rules: s.Rules, Guard: guard, URL: "http://127.0.0.1:7461", Command: "sluice console"})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	d.Mount(mux)
	w.Handler = mux
	return w
}

// ask is an operator's call with headers "Name: value", "Host: name" among them.
func (w *testCluster) ask(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	return w.askAs(access.AsOperator(context.Background()), method, path, body, headers...)
}

// askAs is ask by who ctx says.
func (w *testCluster) askAs(ctx context.Context, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.RemoteAddr, r.Host = "127.0.0.1:9", "127.0.0.1:7461"
	if method == "POST" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	return rec
}

// TestPage: everybody gets the page, which may load nothing from elsewhere and is not shown stale.
func TestPage(t *testing.T) {
	w := newTestCluster(t, nil)
	for at, kind := range map[string]string{
		"/console": "text/html; charset=utf-8", "/console/console.js": "text/javascript; charset=utf-8", "/console/charts.js": "text/javascript; charset=utf-8",
		"/console/client.js": "text/javascript; charset=utf-8", "/console/dom.js": "text/javascript; charset=utf-8", "/console/inspect.js": "text/javascript; charset=utf-8",
		"/console/session.js": "text/javascript; charset=utf-8", "/console/views.js": "text/javascript; charset=utf-8",
		"/console/console.css": "text/css; charset=utf-8", "/console/icon.svg": "image/svg+xml",
	} {
		res := w.askAs(t.Context(), "GET", at, "")
		h := res.Header()
		if res.Code != 200 || h.Get("Content-Type") != kind || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %d %v", at, res.Code, h)
		}
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy %q has no %s", at, csp, want)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") {
			t.Errorf("%s: the policy is %q", at, csp)
		}
		if strings.Contains(res.Body.String(), "https://") || strings.Contains(res.Body.String(), "//cdn") {
			t.Errorf("%s loads something from elsewhere", at)
		}
		if again := w.ask("GET", at, "", "If-None-Match: "+h.Get("ETag")); again.Code != 304 || again.Body.Len() != 0 {
			t.Errorf("%s, known already: %d", at, again.Code)
		}
		if head := w.ask("HEAD", at, ""); head.Code != 200 || head.Body.Len() != 0 {
			t.Errorf("HEAD %s: %d", at, head.Code)
		}
		if res := w.ask("POST", at, ""); res.Code != 405 || res.Header().Get("Allow") == "" {
			t.Errorf("POST %s: %d", at, res.Code)
		}
	}
	if res := w.ask("GET", "/console/", ""); res.Code != 301 || res.Header().Get("Location") != "/console" {
		t.Errorf("/console/: %d", res.Code)
	}
	if res := w.ask("GET", "/", ""); res.Code != 302 || res.Header().Get("Location") != "/console" {
		t.Errorf("/: %d", res.Code)
	}
	if html := w.ask("GET", "/console", "").Body.String(); strings.Contains(html, "style=") || strings.Contains(html, "onclick") || strings.Count(html, "<script") != 1 {
		t.Error("the page has what its policy forbids")
	}
}

const ann = `{"domain":"shop","descriptor":[{"key":"user","value":"ann"}]}`

// TestRejected: with what. Who may is in TestLogin.
func TestRejected(t *testing.T) {
	w := newTestCluster(t, nil)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		want                     string
	}{
		{"a form", "POST", "/console/api/inspect/reset", ann, []string{"Content-Type: text/plain"}, 415, "application/json"},
		{"no JSON", "POST", "/console/api/inspect", "{", nil, 400, "invalid body"},
		{"something behind", "POST", "/console/api/inspect", ann + "x", nil, 400, "invalid body: more after"},
		{"unknown field", "POST", "/console/api/inspect", `{"domain":"shop","cost":1}`, nil, 400, "cost"},
		{"no descriptor", "POST", "/console/api/inspect", `{"domain":"shop"}`, nil, 400, "descriptor: empty"},
		{"too large", "POST", "/console/api/inspect", `{"domain":"` + strings.Repeat("x", 2<<20) + `"}`, nil, 413, "1 MiB"},
		{"wrong method", "GET", "/console/api/inspect", "", nil, 405, "want POST"},
		{"nothing to reset", "POST", "/console/api/inspect/reset", `{"domain":"shop","descriptor":[{"key":"free","value":"x"}]}`, nil, 404, "nothing to reset"},
	} {
		res := w.ask(c.method, c.path, c.body, c.headers...)
		if res.Code != c.status || !strings.Contains(res.Body.String(), c.want) || res.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s %v, want %d %q", c.name, res.Code, res.Body, res.Header(), c.status, c.want)
		}
	}
}

func TestInspectAndReset(t *testing.T) {
	w := newTestCluster(t, nil)
	b := limiter.NewBatch()
	defer b.Release()
	c := b.Add()
	c.Domain, c.Descriptor = "shop", append(c.Descriptor, rulesEntry("user", "ann"))
	if err := w.limiter.Check(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	look := func() (x inspection) {
		t.Helper()
		res := w.ask("POST", "/console/api/inspect", ann)
		if err := json.Unmarshal(res.Body.Bytes(), &x); err != nil || res.Code != 200 {
			t.Fatalf("%d %s", res.Code, res.Body)
		}
		return x
	}
	x := look()
	if x.Rule.Name != "shop/user" || x.Owner != "n1" || !x.Counted || !x.MayReset || x.Descriptor[0].Value != "ann" || !strings.HasPrefix(x.Shown[0].Value, "redacted:") ||
		len(x.Limits) != 1 || x.Limits[0].Spent != 1 || x.Limits[0].Remaining != 2 || x.Limits[0].ResetAfter != 60 || x.Limits[0].Text != "3 in 1m, fixed window" || x.Levels[0].Tries[0].Matched || !x.Levels[0].Tries[1].Matched {
		t.Errorf("%+v", x)
	}
	if res := w.ask("POST", "/console/api/inspect/reset", ann); res.Code != 200 || strings.TrimSpace(res.Body.String()) != `{"rule":"shop/user","owner":"n1"}` {
		t.Errorf("%d %s", res.Code, res.Body)
	}
	if x := look(); x.Counted || x.Limits[0].Spent != 0 {
		t.Errorf("after the reset: %+v", x)
	}
	res := w.ask("GET", "/console/api/rules", "")
	var set ruleSet
	if err := json.Unmarshal(res.Body.Bytes(), &set); err != nil || len(set.Rules) != 2 || !set.Rules[0].Path[0].Redact || set.Rules[1].Limits[0] != "unlimited" || set.Hash == "" {
		t.Errorf("%s %v", res.Body, err)
	}
}

// pipes is a listener of connections in memory, which have deadlines.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.ended) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestWatch: events as text/event-stream, on connections that the server would have ended; the last one goes with its
// token; and watchers are so many.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, token := onePolicy(t, "read")
		guard := access.NewGuard(policy, slog.New(slog.DiscardHandler), time.Now)
		w := newTestCluster(t, guard)
		w.others = []facts.Node{{Name: "n2", Region: "eu", Regions: []facts.Region{{Name: "us", State: facts.RegionUnknown}}}}
		server := &http.Server{Handler: w, ReadTimeout: 1500 * time.Millisecond, WriteTimeout: 1500 * time.Millisecond}
		l := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
		go server.Serve(l)
		defer server.Close()
		client := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
		defer client.CloseIdleConnections()
		get := func(token string) *http.Response {
			t.Helper()
			r, err := http.NewRequestWithContext(t.Context(), "GET", "http://n1.test/console/api/watch", nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		if res := get(""); res.StatusCode != 401 || res.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("without a token: %v", res)
		} else {
			res.Body.Close()
		}
		res := get(token)
		defer res.Body.Close()
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%v", res)
		}
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		seen, regions := map[string]int{}, false
		for seen[watch.EventState] < 3 && lines.Scan() { // 2 s: longer than the server's time-outs
			if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				seen[event]++
			}
			regions = regions || strings.Contains(lines.Text(), `"regions":[{"name":"eu","self":true,`) && strings.Contains(lines.Text(), `{"name":"us","state":"unknown",`)
		}
		if !regions {
			t.Error("no state has the regions")
		}
		if seen[watch.EventHistory] != 1 || seen[watch.EventState] != 3 || seen[watch.EventTop] != 1 {
			t.Errorf("%v, %v", seen, lines.Err())
		}
		if res := w.askAs(t.Context(), "POST", "/console/api/inspect/reset", ann, "Authorization: Bearer "+token); res.Code != 403 {
			t.Errorf("reset by who may only read: %d %s", res.Code, res.Body)
		}
		if r := w.askAs(t.Context(), "POST", "/console/api/inspect", ann, "Authorization: Bearer "+token, "Host: sluice.example"); r.Code != 200 || !strings.Contains(r.Body.String(), `"may_reset":false`) {
			t.Errorf("by token, from elsewhere: %d %s", r.Code, r.Body)
		}

		var more []*watch.Watcher
		for {
			one, err := w.hub.Watch()
			if err != nil {
				break
			}
			more = append(more, one)
		}
		if res := get(token); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
			t.Errorf("one too many: %v", res)
		} else {
			res.Body.Close()
		}
		for _, one := range more {
			one.Close()
		}

		other, _ := onePolicy(t, "read")
		guard.SetPolicy(other) // the token is taken away
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Errorf("the stream does not end in order: %v", err)
		}
	})
}

func rulesEntry(key, value string) rules.Entry { return rules.Entry{Key: key, Value: value} }

// onePolicy knows one caller, who has this verb in all domains, and returns the caller's token.
func onePolicy(t *testing.T, verb string) (*access.Policy, string) {
	t.Helper()
	return apitest.Policy(t, "callers: [{name: one, tokens: [TOKEN], grants: [{domains: ['*'], verbs: ["+verb+"]}]}]")
}
