package forwardauth

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/internal/apitest"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

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
		d := open(t, apitest.NewNode(t), strings.Replace(file, "KEYS", c.keys, 1))
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

// TestDeniedWithoutARule: a descriptor that no rule matches denies the request if the domain says so.
func TestDeniedWithoutARule(t *testing.T) {
	for _, c := range []struct {
		unmatched string
		status    int
	}{{"allow", 200}, {"deny", 429}} {
		d := open(t, apitest.NewNode(t), `
domain: web
unmatched: `+c.unmatched+`
authorize:
  descriptors:
    - - {key: ip, from: client_address}
    - - {key: user, from: header, name: X-User}
descriptors:
  - {key: ip, limits: [5/1m]}
  - {key: user, value: ann, limits: [5/1m]}
`)
		for user, status := range map[string]int{"ann": 200, "bob": c.status} {
			w := ask(d, call{path: Prefix + "web", headers: "X-User: " + user})
			if w.Code != status || (status == 429) != strings.Contains(w.Body.String(), "no rule matches, and the rules of the domain deny such checks") {
				t.Errorf("%s: %s: %d %s", c.unmatched, user, w.Code, w.Body)
			}
		}
	}
}

// TestNothingToCheck: a request that no descriptor, or no rule, is for passes without headers.
func TestNothingToCheck(t *testing.T) {
	n := apitest.NewNode(t)
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
	d := open(t, apitest.NewNode(t), `
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

// TestShadow: a rule that only watches rejects nobody.
func TestShadow(t *testing.T) {
	d := open(t, apitest.NewNode(t), `
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
	d := open(t, apitest.NewNode(t), `
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

// TestFailures: what no node could decide is rejected, and never with a status of success.
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
		{"no owner", [2]any{check.ErrNoOwner, true}, "true", 503, "unavailable"},
		{"no owner of the second", [2]any{true, check.ErrNoOwner}, "false", 503, "unavailable"},
		{"a full queue", [2]any{true, check.ErrOverloaded}, "true", 503, "overloaded"},
		{"only full queues", [2]any{check.ErrOverloaded, check.ErrOverloaded}, "true", 503, "overloaded"},
		{"another error", [2]any{errors.New("node n2 is odd"), true}, "true", 503, "unavailable"},
		{"a denial settles it", [2]any{check.ErrNoOwner, false}, "false", 429, nil},
		{"not where all is denied with it", [2]any{check.ErrNoOwner, false}, "true", 503, "unavailable"},
		{"closed", [2]any{true, check.Closed}, "true", 429, nil},
		{"open", [2]any{check.Open, check.Open}, "true", 200, nil},
	} {
		d := open(t, decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Answers {
				b.Answers[i].Source = check.Owned
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

// TestRuleResponse: whom a rule denies gets its response. Its headers go before ours in any spelling.
func TestRuleResponse(t *testing.T) {
	d := open(t, apitest.NewNode(t), `
domain: web
authorize:
  descriptors:
    - - {key: kind, from: header, name: X-Kind}
descriptors:
  - key: kind
    value: custom
    rate_limit: {unit: minute, requests_per_unit: 0}
    response:
      status: 503
      headers: {X-Why: custom, Retry-After: "77", Content-Type: text/html, ratelimit: mine}
      body: <p>later</p>
  - key: kind
    value: plain
    rate_limit: {unit: minute, requests_per_unit: 0}
    response: {body: later}
  - key: kind
    value: status
    rate_limit: {unit: minute, requests_per_unit: 0}
    response: {status: 420, headers: {X-Why: status}}
`)
	for _, c := range []struct {
		kind    string
		status  int
		body    string // whole, or a part of a problem
		headers map[string]string
	}{
		{"custom", 503, "<p>later</p>", map[string]string{"X-Why": "custom", "Retry-After": "77", "Content-Type": "text/html", "Ratelimit": "mine", "RateLimit-Policy": `"web/kind=custom";q=0;w=60`}},
		{"plain", 429, "later", map[string]string{"Content-Type": "text/plain; charset=utf-8"}},
		{"status", 420, `"status":420`, map[string]string{"X-Why": "status", "Content-Type": httpanswer.TypeProblem}},
	} {
		w := ask(d, call{path: Prefix + "web", headers: "X-Kind: " + c.kind})
		got := w.Body.String()
		if isProblem := w.Header().Get("Content-Type") == httpanswer.TypeProblem; w.Code != c.status || !isProblem && got != c.body || !strings.Contains(got, c.body) {
			t.Errorf("%s: %d %q, want %d %q", c.kind, w.Code, got, c.status, c.body)
		}
		for k, want := range c.headers {
			if got := w.Header().Get(k); got != want {
				t.Errorf("%s: %s is %q, want %q", c.kind, k, got, want)
			}
		}
	}
}

// TestSlotByTTL: a request takes a slot for the ttl of its rule or until the ID in the response is settled, and its other limits are charged.
func TestSlotByTTL(t *testing.T) {
	n := apitest.NewNode(t)
	const file = `
domain: web
authorize:
  all_or_nothing: false
  descriptors:
    - - {key: export, from: header, name: X-Export}
    - - {key: user, from: header, name: X-User}
    - - {key: queue, from: header, name: X-Queue}
descriptors:
  - key: export
    limits: [{algorithm: concurrency, count: 2}]
    reservation: {ttl: 5s}
  - key: user
    limits: [4/1h]
  - key: queue
    limits: [{algorithm: leaky_queue, count: 5, period: 1h}]
`
	var service *limiter.Limiter
	d := open(t, n, file, func(c *Config) { service = c.Limiter.(*limiter.Limiter) })
	export := call{path: Prefix + "web", headers: "X-Export: pdf\nX-User: ann"}
	wants := func(what string, w *httptest.ResponseRecorder, status int, left string) string {
		t.Helper()
		if w.Code != status || (w.Header().Get("Sluice-Slot") != "") != (status == 200) || !strings.Contains(w.Header().Get("RateLimit"), `"web/user";r=`+left) {
			t.Errorf("%s: %d %v %s", what, w.Code, w.Header(), w.Body)
		}
		return w.Header().Get("Sluice-Slot")
	}
	first := wants("the first", ask(d, export), 200, "3")
	n.Now.Add(int64(time.Second))
	wants("the second", ask(d, export), 200, "2")
	if w := ask(d, export); w.Header().Get("Retry-After") != "4" {
		t.Errorf("%v", w.Header())
	} else {
		wants("both are in use, and nobody pays", w, 429, "2")
	}
	if s, err := service.Settle(t.Context(), first, 0); err != nil || s.Returned != 1 {
		t.Errorf("%+v %v", s, err)
	}
	wants("the service has ended one", ask(d, export), 200, "1")
	n.Now.Add(int64(5 * time.Second))
	wants("one has ended by itself", ask(d, export), 200, "0")
	n.Now.Add(int64(5 * time.Second))
	if wants("the user's limit", ask(d, export), 429, "0"); n.Asked.Load() == 0 {
		t.Error("nothing was asked")
	}
	for range 2 { // the denial has taken nothing
		if w := ask(d, call{path: Prefix + "web", headers: "X-Export: pdf"}); w.Code != 200 || w.Header().Get("Sluice-Slot") == "" {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	if w := ask(d, call{path: Prefix + "web", headers: "X-User: bob"}); w.Code != 200 || w.Header().Get("Sluice-Slot") != "" {
		t.Errorf("without a slot: %d %v", w.Code, w.Header())
	}
	w := ask(d, call{path: Prefix + "web", headers: "X-Export: csv\nX-Queue: q"})
	if p := problem(t, w); w.Code != 400 || p["code"] != "invalid" || !strings.Contains(w.Body.String(), "web/queue cannot be reserved: a queue delays") {
		t.Errorf("with a queue: %d %s", w.Code, w.Body)
	}
	if w := ask(d, call{path: Prefix + "web", headers: "X-Queue: q"}); w.Code != 200 {
		t.Errorf("the queue alone: %d %s", w.Code, w.Body)
	}
}
