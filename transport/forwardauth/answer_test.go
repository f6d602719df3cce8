package forwardauth

import (
	"context"
	"errors"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
)

// tell makes calls about requests with headers, "Name: value, Name: value => STATUS", and compares the status, headers of the response
// that follow it as [Name: value], where [Name:] is none, and the text behind them, which must be in the body.
func tell(t *testing.T, d *API, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		asked, want, ok := strings.Cut(line, "=> ")
		if !ok {
			continue
		}
		w := ask(d, call{path: Prefix + "web", headers: strings.ReplaceAll(strings.TrimSpace(asked), ", ", "\n")})
		status, want, _ := strings.Cut(want, " ")
		good := strconv.Itoa(w.Code) == status
		for strings.HasPrefix(want, "[") {
			var header string
			header, want, _ = strings.Cut(want[1:], "]")
			name, value, _ := strings.Cut(header, ":")
			good = good && w.Header().Get(name) == strings.TrimSpace(value)
			want = strings.TrimSpace(want)
		}
		if !good || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s\ngot %d %v %s", line, w.Code, w.Header(), w.Body)
		}
	}
}

// TestAnswers: what a caller hears for the keys of authorize, and the options of domains and rules.
func TestAnswers(t *testing.T) {
	const (
		two = "authorize: {KEYS descriptors: [[{key: a, value: x}], [{key: b, from: header, name: X-B, default: none}]]}\n" +
			"descriptors: [{key: a, limits: [9/1m]}, {key: b, value: one, limits: [1/1m], response: {status: 503}}]"
		users = "authorize: {descriptors: [[{key: ip, from: client_address}], [{key: user, from: header, name: X-User}]]}\n" +
			"descriptors: [{key: ip, limits: [5/1m]}, {key: user, value: ann, limits: [5/1m]}]"
		denied = `[X-RateLimit-Limit: 1] [Retry-After: 60] [RateLimit-Policy: "web/b=one";q=1;w=60, "web/a";q=9;w=60] `
	)
	for _, c := range []struct{ name, file, lines string }{
		{"the status of the rule", strings.Replace(two, "KEYS", "", 1), `
			X-B: one => 200
			X-B: one => 503 ` + denied + `[RateLimit: "web/b=one";r=0;t=60, "web/a";r=8;t=60] "violated-policies":["web/b=one"]
		`},
		{"denied_status", strings.Replace(two, "KEYS", "denied_status: 403,", 1), `
			X-B: one => 200
			X-B: one => 403 ` + denied + `[RateLimit: "web/b=one";r=0;t=60, "web/a";r=8;t=60] "status":403
		`},
		{"all_or_nothing", strings.Replace(two, "KEYS", "all_or_nothing: false,", 1), `
			X-B: one => 200
			X-B: one => 503 ` + denied + `[RateLimit: "web/b=one";r=0;t=60, "web/a";r=7;t=60] "status":503
		`},
		{"what no rule matches", users, "X-User: ann => 200\nX-User: bob => 200"},
		{"what no rule matches is denied", "unmatched: deny\n" + users, `
			X-User: ann => 200
			X-User: bob => 429 no rule matches, and the rules of the domain deny such checks
		`},
		{"a queue has room, but nobody can be held back",
			"authorize: {descriptors: [[{key: a, value: x}]]}\ndescriptors: [{key: a, limits: [{algorithm: leaky_queue, count: 1, period: 10s, burst: 5}]}]",
			"=> 200\n=> 429 [Retry-After: 10]"},
		{"a rule that only watches rejects nobody", "authorize: {descriptors: [[{key: a, value: x}], [{key: b, value: y}]]}\n" +
			"descriptors: [{key: a, shadow_mode: true, limits: [0/1m]}, {key: b, limits: [1/1m]}]", `
			=> 200
			=> 429 "violated-policies":["web/b"]
		`},
		{"the descriptors are those of one request", "authorize: {descriptors: [[{key: all, value: x}], [{key: vip, from: header, name: X-Vip}]]}\n" +
			"descriptors: [{key: all, limits: [{name: everybody, count: 0, period: 1m}]}, " +
			"{key: vip, rate_limit: {name: vip, unit: minute, requests_per_unit: 5, replaces: [{name: everybody}]}}]", `
			=> 429
			X-Vip: ann => 200 [RateLimit-Policy: "vip";q=5;w=60]
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, open(t, apitest.NewNode(t), "domain: web\n"+c.file), c.lines) })
	}
}

// TestNothingToCheck: a request that no descriptor, or no rule, is for passes without headers.
func TestNothingToCheck(t *testing.T) {
	n := apitest.NewNode(t)
	const file = `
domain: web
authorize: {descriptors: [[{key: user, from: header, name: X-User, patterns: [a*, b*]}]]}
descriptors: [{key: user, value: b*, limits: [0/1m]}]
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
	tell(t, d, "X-User: bob => 429")
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
authorize: {descriptors: [[{key: kind, from: header, name: X-Kind}]]}
descriptors:
  - key: kind
    value: custom
    limits: [0/1m]
    response:
      status: 503
      headers: {X-Why: custom, Retry-After: "77", Content-Type: text/html, ratelimit: mine}
      body: <p>later</p>
  - {key: kind, value: plain, limits: [0/1m], response: {body: later}}
  - {key: kind, value: status, limits: [0/1m], response: {status: 420, headers: {X-Why: status}}}
`)
	tell(t, d, `
		X-Kind: custom => 503 [X-Why: custom] [Retry-After: 77] [Content-Type: text/html] [Ratelimit: mine] [RateLimit-Policy: "web/kind=custom";q=0;w=60] <p>later</p>
		X-Kind: plain => 429 [Content-Type: text/plain; charset=utf-8] later
		X-Kind: status => 420 [X-Why: status] [Content-Type: application/problem+json] "status":420
	`)
	if w := ask(d, call{path: Prefix + "web", headers: "X-Kind: plain"}); w.Body.String() != "later" {
		t.Errorf("more than the body of the rule: %s", w.Body)
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
