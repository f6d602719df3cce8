package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// testRules are apitest's and some with a response of their own.
const testRules = apitest.Rules + `
  - key: custom
    rate_limit: {unit: minute, requests_per_unit: 0}
    response:
      status: 503
      headers: {X-Why: custom, Retry-After: "77", Content-Type: text/html}
      body: <p>later</p>
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 0}
    response: {body: later}
  - key: status
    rate_limit: {unit: minute, requests_per_unit: 0}
    response: {status: 420, headers: {X-Why: status}}
  - key: shared
    rate_limit: {unit: minute, requests_per_unit: 1}
    on_failure: share
`

func newLimiter(t testing.TB, d check.Decider, change ...func(*limiter.Config)) *limiter.Limiter {
	t.Helper()
	self := member.Member{Name: "n1", Boot: "b1", State: member.Serving, HTTP: "127.0.0.1:7461"}
	return apitest.NewLimiter(t, d, testRules, self, change...)
}

// decideFunc is a Decider.
type decideFunc func(ctx context.Context, b *check.Batch)

func (f decideFunc) Decide(ctx context.Context, b *check.Batch) { f(ctx, b) }

// newAPI returns an API on l that is ready, with changes.
func newAPI(t testing.TB, l limiter.Service, change ...func(*Config)) http.Handler {
	t.Helper()
	c := Config{Limiter: l, Ready: func() (bool, []string) { return true, nil }}
	for _, f := range change {
		f(&c)
	}
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	apitest.Hear(w.Header())
	return w
}

// call asks h and returns the answer, whose body is in m too when it is JSON.
func call(t testing.TB, h http.Handler, method, path, body string) (w *httptest.ResponseRecorder, m map[string]any) {
	t.Helper()
	w = serve(h, httptest.NewRequest(method, path, strings.NewReader(body)))
	describes(t, method, path, w)
	return w, decoded(t, w)
}

// decoded returns the body of w when it is JSON.
func decoded(t testing.TB, w *httptest.ResponseRecorder) (m map[string]any) {
	t.Helper()
	if strings.Contains(w.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
			t.Fatalf("body %q: %v", w.Body, err)
		}
	}
	return m
}

// post asks /v1/check and demands the status, of which 429 takes deny=429 in the query.
func post(t testing.TB, h http.Handler, body string, status int) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	path := "/v1/check"
	if status == http.StatusTooManyRequests {
		path += "?deny=429"
	}
	w, m := call(t, h, http.MethodPost, path, body)
	if w.Code != status {
		t.Fatalf("%s: status %d, want %d: %s", body, w.Code, status, w.Body)
	}
	return w, m
}

// ask is a request and its response: the status, and the body or a part of it. An empty method is POST. The path may be followed
// by headers, as in "/v1/charge Idempotency-Key: k".
type ask struct {
	method, path, body string
	status             int
	want               string
}

// play makes the requests, one after the other.
func play(t *testing.T, h http.Handler, asks ...ask) {
	t.Helper()
	for i, s := range asks {
		path, headers, _ := strings.Cut(s.path, " ")
		r := httptest.NewRequest(cmp.Or(s.method, http.MethodPost), path, strings.NewReader(s.body))
		for header := range strings.FieldsSeq(strings.ReplaceAll(headers, ": ", ":")) {
			name, value, _ := strings.Cut(header, ":")
			r.Header[name] = append(r.Header[name], value)
		}
		w := serve(h, r)
		describes(t, r.Method, path, w)
		if got := strings.TrimSpace(w.Body.String()); w.Code != s.status || !strings.Contains(got, s.want) || s.want != "" && s.want[0] == '{' && s.want[len(s.want)-1] == '}' && got != s.want {
			t.Errorf("step %d, %s %s: %d %s\nwant %d %s", i, s.path, s.body, w.Code, got, s.status, s.want)
		}
	}
}

// user is the body of one check, with more fields.
func user(name, more string) string {
	return `{"domain":"shop","descriptor":[{"key":"user","value":"` + name + `"}]` + more + `}`
}

func TestConfigValidate(t *testing.T) {
	ready := func() (bool, []string) { return true, nil }
	for field, c := range map[string]Config{
		"Limiter": {Ready: ready},
		"Ready":   {Limiter: &limiter.Limiter{}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
}

func TestRoutes(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "sluice_up 1\n") })
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)), func(c *Config) { c.Metrics = metrics })
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/healthz", 200, ""},
		{"HEAD", "/healthz", 200, ""},
		{"POST", "/healthz", 405, "GET, HEAD"},
		{"GET", "/readyz", 200, ""},
		{"DELETE", "/readyz", 405, "GET, HEAD"},
		{"GET", "/metrics", 200, ""},
		{"POST", "/metrics", 405, "GET, HEAD"},
		{"GET", "/admin/v1alpha1/members", 200, ""},
		{"PUT", "/admin/v1alpha1/members", 405, "GET, HEAD"},
		{"GET", "/admin/v1alpha1/members/forget", 405, "POST"},
		{"POST", "/admin/v1alpha1/members/forget", 403, ""},
		{"POST", "/admin/v1alpha1/members/n1", 404, ""},
		{"GET", "/v1/check", 405, "POST"},
		{"POST", "/v1/check", 400, ""},
		{"POST", "/v1/check?deny=1", 400, ""},
		{"GET", "/v1/reset", 405, "POST"},
		{"GET", "/v1/charge", 405, "POST"},
		{"OPTIONS", "/v1/check", 405, "POST"},
		{"GET", "/v1/nodes", 200, ""},
		{"POST", "/v1/nodes", 405, "GET, HEAD"},
		{"GET", "/", 404, ""},
		{"POST", "/v1/check/x", 404, ""},
	} {
		w, m := call(t, h, c.method, c.path, "")
		if w.Code != c.status || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, Allow %q; want %d, %q", c.method, c.path, w.Code, w.Header().Get("Allow"), c.status, c.allow)
		}
		if c.status >= 400 && (w.Header().Get("Content-Type") != httpanswer.TypeProblem || m["status"] != float64(c.status) || m["detail"] == "") {
			t.Errorf("%s %s: %s %s", c.method, c.path, w.Header().Get("Content-Type"), w.Body)
		}
	}
	want := `want POST with JSON, for example: curl -d '{"domain":"auth","descriptor":["user=ann"]}' http://127.0.0.1:7461/v1/check`
	if _, m := call(t, h, "GET", "/v1/check", ""); m["detail"] != want {
		t.Errorf("GET /v1/check: %v", m["detail"])
	}
	if w, _ := call(t, newAPI(t, newLimiter(t, apitest.NewNode(t))), "GET", "/metrics", ""); w.Code != http.StatusNotFound {
		t.Errorf("/metrics without a handler: %d", w.Code)
	}
}

func TestProbes(t *testing.T) {
	var broken error
	var skipped []string
	ready, reasons := false, []string{"not joined", "no rules"}
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)), func(c *Config) {
		c.RulesError = func() error { return broken }
		c.RulesSkipped = func() []string { return skipped }
		c.Ready = func() (bool, []string) { return ready, reasons }
	})
	for _, c := range []struct {
		name, path string
		set        func()
		status     int
		body       string
	}{
		{"alive", "/healthz", func() {}, 200, `{"status":"alive"}`},
		{"alive with broken rules", "/healthz", func() { broken = errors.New("auth.yaml:3: unknown key") }, 200,
			`{"status":"alive","rules_error":"auth.yaml:3: unknown key"}`},
		{"alive with a file that is not read", "/healthz", func() { broken, skipped = nil, []string{"a.conf: its name"} }, 200,
			`{"status":"alive","rules_skipped":["a.conf: its name"]}`},
		{"not ready", "/readyz", func() {}, 503, `{"ready":false,"reasons":["not joined","no rules"]}`},
		{"ready", "/readyz", func() { ready, reasons = true, nil }, 200, `{"ready":true}`},
	} {
		c.set()
		w, _ := call(t, h, "GET", c.path, "")
		if w.Code != c.status || strings.TrimSpace(w.Body.String()) != c.body || w.Header().Get("Content-Type") != httpanswer.TypeJSON {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
	}
}

// A whole server, for what a recorder does not do.
func TestServer(t *testing.T) {
	srv := NewServer(newAPI(t, newLimiter(t, apitest.NewNode(t))))
	if srv.ReadHeaderTimeout == 0 || srv.ReadTimeout == 0 || srv.WriteTimeout == 0 || srv.IdleTimeout == 0 {
		t.Error("a time-out is not set")
	}
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = srv
	ts.Start()
	defer ts.Close()
	res, err := ts.Client().Post(ts.URL+"/v1/check", "application/json", strings.NewReader(user("x", "")))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !strings.Contains(string(body), `"allowed":true`) {
		t.Errorf("%d %s %v", res.StatusCode, body, err)
	}
	ts.Client().CloseIdleConnections()
}
