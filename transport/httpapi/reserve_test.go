package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
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
	many := `{"checks":[` + strings.Repeat(user("a", "")+",", 16) + user("a", "") + `]}`
	play(t, newAPI(t, &apitest.Reserving{Service: l}),
		ask{"", "/v1/spend", `{"reservation":"r-1","units":4}`, 200, `{"allowed":true,"left":6}`},
		ask{"", "/v1/spend", `{"reservation":"r-1","units":11}`, 200, `{"allowed":false,"left":10}`},
		ask{"", "/v1/extend", `{"reservation":"r-1","more":5,"ttl":90}`, 200, `{"allowed":true,"units":15,"expires_after":90}`},
		ask{"", "/v1/extend", `{"reservation":"r-1","more":6}`, 200, `{"allowed":false,"units":10,"expires_after":60,"retry_after":2.5}`},
		ask{"", "/v1/extend", `{"reservation":"r-1","more":101}`, 200, `{"allowed":false,"units":10,"expires_after":60}`},
		ask{"", "/v1/settle", `{"reservation":"r-1","actual":3}`, 200, `{"charged":3,"returned":7}`},
		ask{"", "/v1/settle", `{"reservation":"r-1"}`, 200, `{"charged":0,"returned":10}`},
		ask{"", "/v1/settle", `{"reservation":"r-1","actual":11}`, 200, `{"charged":11,"returned":0,"late":true}`},
		ask{"", "/v1/held", user("a", ""), 200, `{"holdings":[{"id":"1f","use":"reservation","caller":"billing","units":10,"since":1.5,"expires_after":60}],"count":2,"units":12}`},
		ask{"", "/v1/spend", `{"reservation":"r-1","units":1,"more":1}`, 400, `unknown field \"more\"`},
		ask{"", "/v1/spend?deny=429", `{"reservation":"r-1","units":1}`, 400, `unknown query deny=429; want none`},
		ask{"", "/v1/settle", `{"actual":1}`, 400, `"field":"reservation"`},
		ask{"", "/v1/settle", `{"reservation":"r-3"}`, 404, `"code":"not_found"`},
		ask{"", "/v1/held", user("a", `,"limits":[]`), 400, `unknown field \"limits\"`},
		ask{"", "/v1/held", `{"domain":"shop"}`, 400, `"field":"descriptor"`},
		ask{"GET", "/v1/settle", "", 405, `want POST with JSON, for example: curl -d '{\"reservation\":\"ID\",\"actual\":3}' http://127.0.0.1:7461/v1/settle`},
	)
	play(t, newAPI(t, l),
		ask{"", "/v1/reserve", user("a", `,"units":0`), 400, `"field":"units"`},
		ask{"", "/v1/reserve", user("a", `,"units":2,"least":3`), 400, `"detail":"least: 3; want 1 to units`},
		ask{"", "/v1/reserve", user("a", `,"ttl":0.0009`), 400, `"detail":"ttl: 900µs; want 1ms or more`},
		ask{"", "/v1/reserve", user("a", `,"wait":1`), 400, `"detail":"descriptor: the rule has no limit with algorithm: concurrency"`},
		ask{"", "/v1/reserve", user("a", `,"wait":-1`), 400, `"field":"wait"`},
		ask{"", "/v1/reserve", user("a", `,"cost":1`), 400, `unknown field \"cost\"; want one of domain, descriptor, limits, checks, units, least, ttl`},
		ask{"", "/v1/reserve", `{"checks":[` + user("a", `,"verb":"read"`) + `]}`, 400, `unknown field \"verb\"`},
		ask{"", "/v1/reserve", many, 400, `"detail":"checks: 17 checks; want 1 to 16"`},
		ask{"", "/v1/reserve", `{"checks":[]}`, 400, `"detail":"checks: 0 checks; want 1 to 16"`},
		ask{"", "/v1/reserve", `{}`, 400, `"field":"domain"`},
		ask{"", "/v1/reserve?deny=1", user("a", ""), 400, `unknown query`},
	)
}

// TestReservationAccess: as over gRPC.
func TestReservationAccess(t *testing.T) {
	guard, _ := apitest.Guard(t, `
callers:
  - {name: ops, certificates: ['cn:ops'], grants: [{domains: [shop], verbs: [check]}]}
anonymous:
  - {domains: [shop], verbs: [check]}
  - {domains: [open], verbs: [read]}
`)
	h := newAPI(t, &apitest.Reserving{Service: newLimiter(t, apitest.NewNode(t))}, func(c *Config) { c.Guard = guard })
	other := strings.Replace(user("x", ""), "shop", "other", 1)
	play(t, h,
		ask{"", "/v1/reserve", user("x", ""), 200, `"reservation":`},
		ask{"", "/v1/reserve", other, 401, ""},
		ask{"", "/v1/spend", `{"reservation":"r-1","units":1}`, 200, ""},
		ask{"", "/v1/spend", `{"reservation":"r-2","units":1}`, 401, ""},
		ask{"", "/v1/extend", `{"reservation":"r-2"}`, 401, ""},
		ask{"", "/v1/settle", `{"reservation":"r-2"}`, 401, ""},
		ask{"", "/v1/held", user("x", ""), 401, ""},
		ask{"", "/v1/held", strings.Replace(user("x", ""), "shop", "open", 1), 200, ""},
	)
	if w, m := call(t, h, http.MethodPost, "/v1/reserve", `{"checks":[`+user("x", "")+","+other+`]}`); w.Code != 200 || m["reservation"] != nil {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
