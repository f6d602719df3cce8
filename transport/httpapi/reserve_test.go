package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/apitest"
)

func TestReserve(t *testing.T) {
	f := &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}
	h := newAPI(t, f)
	for _, c := range []struct {
		name, body string
		status     int
		want       string
		request    limiter.ReserveRequest
	}{
		{"one", user("a", `,"units":2,"least":1,"ttl":90`), 200, `"allowed":true,"decisions":[{"allowed":true,"verdict":"allowed","limit":3,"remaining":1,`,
			limiter.ReserveRequest{Units: 2, Least: 1, TTL: 90 * time.Second}},
		{"the rest of the response", user("b", `,"units":2,"ttl":90.5`), 200, `}],"reservation":"r-1","units":2,"expires_after":90.5}`,
			limiter.ReserveRequest{Units: 2, TTL: 90500 * time.Millisecond}},
		{"waiting", user("f", `,"units":2,"wait":0.5`), 200, `"units":2,`, limiter.ReserveRequest{Units: 2, Wait: 500 * time.Millisecond}},
		{"by the estimate", user("c", ""), 200, `"units":1,"expires_after":60}`, limiter.ReserveRequest{}},
		{"a list", `{"units":1,"checks":[` + user("d", "") + "," + user("e", "") + `]}`, 200, `"reservation":"r-1"`, limiter.ReserveRequest{Units: 1}},
		{"denied", user("a", `,"units":3`), 200, `"allowed":false,"retry_after":`, limiter.ReserveRequest{Units: 3}},
		{"denied with status", user("a", `,"units":3`), 429, `"title":"Quota exceeded"`, limiter.ReserveRequest{Units: 3}},
	} {
		path := "/v1/reserve"
		if c.status == 429 {
			path += "?deny=429"
		}
		w, m := call(t, h, http.MethodPost, path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || f.Reserved != c.request {
			t.Errorf("%s: %d %s, request %+v", c.name, w.Code, w.Body, f.Reserved)
		}
		if denied := m["allowed"] == false; denied != (w.Header().Get("Retry-After") != "") || denied != (m["reservation"] == nil) {
			t.Errorf("%s: %v %s", c.name, w.Header(), w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/reserve", strings.NewReader(user("k", "")))
	r.Header.Set("Idempotency-Key", "k")
	if w := serve(h, r); w.Code != 200 || f.Key != "k" {
		t.Errorf("%d %s, key %q", w.Code, w.Body, f.Key)
	}
}

func TestReservation(t *testing.T) {
	l := newLimiter(t, apitest.NewNode(t))
	h, rejects := newAPI(t, &apitest.Reserving{Service: l}), newAPI(t, l)
	many := `{"checks":[` + strings.Repeat(user("a", "")+",", 16) + user("a", "") + `]}`
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v1/spend", `{"reservation":"r-1","units":4}`, 200, `{"allowed":true,"left":6}`},
		{"/v1/spend", `{"reservation":"r-1","units":11}`, 200, `{"allowed":false,"left":10}`},
		{"/v1/extend", `{"reservation":"r-1","more":5,"ttl":90}`, 200, `{"allowed":true,"units":15,"expires_after":90}`},
		{"/v1/extend", `{"reservation":"r-1","more":6}`, 200, `{"allowed":false,"units":10,"expires_after":60,"retry_after":2.5}`},
		{"/v1/extend", `{"reservation":"r-1","more":101}`, 200, `{"allowed":false,"units":10,"expires_after":60}`},
		{"/v1/settle", `{"reservation":"r-1","actual":3}`, 200, `{"charged":3,"returned":7}`},
		{"/v1/settle", `{"reservation":"r-1"}`, 200, `{"charged":0,"returned":10}`},
		{"/v1/settle", `{"reservation":"r-1","actual":11}`, 200, `{"charged":11,"returned":0,"late":true}`},
		{"/v1/held", user("a", ""), 200, `{"holdings":[{"id":"1f","use":"reservation","caller":"billing","units":10,"since":1.5,"expires_after":60}],"count":2,"units":12}`},

		{"/v1/reserve", user("a", `,"units":0`), 400, `"field":"units"`},
		{"/v1/reserve", user("a", `,"units":2,"least":3`), 400, `"detail":"least: 3; want 1 to units`},
		{"/v1/reserve", user("a", `,"ttl":0.0009`), 400, `"detail":"ttl: 900µs; want 1ms or more`},
		{"/v1/reserve", user("a", `,"wait":1`), 400, `"detail":"descriptor: the rule has no limit with algorithm: concurrency"`},
		{"/v1/reserve", user("a", `,"wait":-1`), 400, `"field":"wait"`},
		{"/v1/reserve", user("a", `,"cost":1`), 400, `unknown field \"cost\"; want one of domain, descriptor, limits, checks, units, least, ttl`},
		{"/v1/reserve", `{"checks":[` + user("a", `,"verb":"read"`) + `]}`, 400, `unknown field \"verb\"`},
		{"/v1/reserve", many, 400, `"detail":"checks: 17 checks; want 1 to 16"`},
		{"/v1/reserve", `{"checks":[]}`, 400, `"detail":"checks: 0 checks; want 1 to 16"`},
		{"/v1/reserve", `{}`, 400, `"field":"domain"`},
		{"/v1/reserve?deny=1", user("a", ""), 400, `unknown query`},
		{"/v1/spend", `{"reservation":"r-1","units":1,"more":1}`, 400, `unknown field \"more\"`},
		{"/v1/spend?deny=429", `{"reservation":"r-1","units":1}`, 400, `unknown query deny=429; want none`},
		{"/v1/settle", `{"actual":1}`, 400, `"field":"reservation"`},
		{"/v1/settle", `{"reservation":"r-3"}`, 404, `"code":"not_found"`},
		{"/v1/held", user("a", `,"limits":[]`), 400, `unknown field \"limits\"`},
		{"/v1/held", `{"domain":"shop"}`, 400, `"field":"descriptor"`},
	} {
		at := h
		if strings.HasPrefix(c.path, "/v1/reserve") {
			at = rejects
		}
		w, _ := call(t, at, http.MethodPost, c.path, c.body)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || !strings.Contains(got, c.want) || c.status == 200 && got != c.want {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, w.Code, got, c.status, c.want)
		}
	}
	if w, m := call(t, h, http.MethodGet, "/v1/settle", ""); w.Code != 405 ||
		m["detail"] != `want POST with JSON, for example: curl -d '{"reservation":"ID","actual":3}' http://127.0.0.1:7461/v1/settle` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestReservationAccess: as over gRPC.
func TestReservationAccess(t *testing.T) {
	policy, err := access.Parse("callers.yaml", []byte(`
callers:
  - {name: ops, certificates: ['cn:ops'], grants: [{domains: [shop], verbs: [check]}]}
anonymous:
  - {domains: [shop], verbs: [check]}
  - {domains: [open], verbs: [read]}
`))
	if err != nil {
		t.Fatal(err)
	}
	h := newAPI(t, &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}, func(c *Config) {
		c.Guard = access.NewGuard(policy, slog.New(slog.DiscardHandler), time.Now)
	})
	other := strings.Replace(user("x", ""), "shop", "other", 1)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/reserve", user("x", ""), 200},
		{"/v1/reserve", other, 401},
		{"/v1/reserve", `{"checks":[` + user("x", "") + "," + other + `]}`, 200},
		{"/v1/spend", `{"reservation":"r-1","units":1}`, 200},
		{"/v1/spend", `{"reservation":"r-2","units":1}`, 401},
		{"/v1/extend", `{"reservation":"r-2"}`, 401},
		{"/v1/settle", `{"reservation":"r-2"}`, 401},
		{"/v1/held", user("x", ""), 401},
		{"/v1/held", strings.Replace(user("x", ""), "shop", "open", 1), 200},
	} {
		w, m := call(t, h, http.MethodPost, c.path, c.body)
		if w.Code != c.status || m["reservation"] != nil && strings.Contains(c.body, "other") {
			t.Errorf("%s %s: %d %s", c.path, c.body, w.Code, w.Body)
		}
	}
}
