package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// The bodies and headers of one check, word for word, as docs/use/api.md shows them.
func TestOneCheck(t *testing.T) {
	const (
		policy = `"shop/user";q=3;w=60`
		left   = `"count":3,"rule":"shop/user","limit_name":"shop/user","source":"owned","owner":"n1"}`
	)
	node := apitest.NewNode(t)
	h := newAPI(t, newLimiter(t, node))
	for _, c := range []struct {
		name, body string
		status     int
		want       string
		headers    map[string]string
	}{
		{"allowed", user("x", ""), 200,
			`{"allowed":true,"verdict":"allowed","limit":3,"remaining":2,"reset_after":60,"period":60,` + left,
			map[string]string{
				"Content-Type": httpanswer.TypeJSON, "RateLimit-Policy": policy, "RateLimit": `"shop/user";r=2;t=60`,
				"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "60", "Retry-After": "",
			}},
		{"entries in short", `{"domain":"shop","descriptor":["user=a=b"]}`, 200,
			`{"allowed":true,"verdict":"allowed","limit":3,"remaining":2,"reset_after":60,"period":60,` + left, nil},
		{"the same counter", user("a=b", `,"verb":"read"`), 200,
			`{"allowed":true,"verdict":"allowed","limit":3,"remaining":2,"reset_after":60,"period":60,` + left, nil},
		{"the last", user("x", `,"cost":2`), 200,
			`{"allowed":true,"verdict":"allowed","limit":3,"remaining":0,"reset_after":60,"period":60,` + left,
			map[string]string{"RateLimit": `"shop/user";r=0;t=60`, "Retry-After": ""}},
		{"denied", user("x", ""), 429,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
				`"detail":"try again later","violated-policies":["shop/user"],` +
				`"allowed":false,"verdict":"denied","limit":3,"remaining":0,"reset_after":60,"retry_after":60,"denied_for":0.1,"period":60,` + left,
			map[string]string{
				"Content-Type": httpanswer.TypeProblem, "RateLimit-Policy": policy, "RateLimit": `"shop/user";r=0;t=60`,
				"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60",
				"Retry-After": "60", "X-RateLimit-Retry-After": "60",
			}},
		{"never", user("y", `,"cost":4`), 429,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
				`"detail":"the cost is more than the limit can ever admit","violated-policies":["shop/user"],` +
				`"allowed":false,"verdict":"denied_never","limit":3,"remaining":3,"denied_for":0.1,"period":60,` + left,
			map[string]string{"RateLimit": `"shop/user";r=3`, "Retry-After": "", "X-RateLimit-Retry-After": ""}},
		{"read", user("y", `,"verb":"read"`), 200,
			`{"allowed":true,"verdict":"allowed","limit":3,"remaining":3,"period":60,` + left, nil},
		{"charge into debt", user("y", `,"verb":"charge","cost":4`), 200,
			`{"allowed":true,"verdict":"allowed","limit":3,"remaining":0,"reset_after":60,"period":60,` + left, nil},
		{"no rule", strings.Replace(user("x", ""), `"user"`, `"other"`, 1), 200,
			`{"allowed":true,"verdict":"allowed","source":"unmatched"}`,
			map[string]string{"RateLimit-Policy": "", "RateLimit": "", "X-RateLimit-Limit": ""}},
		{"shadow", strings.Replace(user("x", `,"cost":5`), `"user"`, `"watched"`, 1), 200,
			`{"allowed":true,"verdict":"allowed_shadow","limit":1,"remaining":1,"period":60,"count":1,"rule":"shop/watched","limit_name":"shop/watched","source":"owned","owner":"n1"}`,
			map[string]string{"Retry-After": ""}},
		{"on_failure is stated", strings.Replace(user("x", ""), `"user"`, `"shared"`, 1), 200,
			`{"allowed":true,"verdict":"allowed","limit":1,"remaining":0,"reset_after":60,"period":60,"count":1,"rule":"shop/shared","limit_name":"shop/shared","source":"owned","owner":"n1","on_failure":"share"}`, nil},
		{"limits of its own", user("x", `,"limits":[{"count":9,"period":0.5},{"algorithm":"token_bucket","count":1,"period":1.5,"burst":2}]`), 200,
			`{"allowed":true,"verdict":"allowed","limit":2,"remaining":1,"reset_after":1.5,"period":1.5,"count":1,"burst":2,"limit_name":"limit#2","source":"owned","owner":"n1"}`,
			map[string]string{"RateLimit-Policy": `"limit#2";q=2;w=3`, "RateLimit": `"limit#2";r=1;t=2`}},
		{"concurrency of its own", user("x", `,"limits":[{"algorithm":"concurrency","count":9}]`), 200,
			`{"allowed":true,"verdict":"allowed","limit":9,"remaining":9,"count":9,"limit_name":"limit","source":"owned","owner":"n1"}`,
			map[string]string{"RateLimit-Policy": `"limit";q=9`, "RateLimit": `"limit";r=9;t=0`}},
	} {
		w, _ := post(t, h, c.body, c.status)
		if got := strings.TrimSpace(w.Body.String()); c.want != "" && got != c.want {
			t.Errorf("%s: body %s\nwant %s", c.name, got, c.want)
		}
		for k, want := range c.headers {
			if got := w.Header().Get(k); got != want {
				t.Errorf("%s: %s is %q, want %q", c.name, k, got, want)
			}
		}
	}
}

// TestDeniedWithoutARule: the response says that it is no limit that denies.
func TestDeniedWithoutARule(t *testing.T) {
	self := member.Member{Name: "n1", Boot: "b1", State: member.Serving}
	h := newAPI(t, apitest.NewLimiter(t, apitest.NewNode(t), "unmatched: deny\n"+apitest.Rules, self))
	const problem = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
		`"detail":"no rule matches, and the rules of the domain deny such checks`
	other := strings.Replace(user("x", ""), `"user"`, `"other"`, 1)
	w, _ := post(t, h, other, 429)
	if got, want := strings.TrimSpace(w.Body.String()), problem+`","allowed":false,"verdict":"denied_never","source":"unmatched"}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(w.Header()) != 1 { // Content-Type
		t.Errorf("headers %v", w.Header())
	}
	w, _ = post(t, h, `{"all_or_nothing":true,"checks":[`+user("x", "")+`,`+other+`]}`, 429)
	if got := w.Body.String(); strings.Count(got, `"verdict":"denied_`) != 2 || w.Header().Get("Retry-After") != "" {
		t.Error(got)
	}
}

// on_failure answers without a counter, so nothing is said of one.
func TestOnFailureAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer check.Answer
		status int
		body   string
		retry  string
	}{
		{"open", check.Answer{Source: check.Open, Owner: "n1", Decision: bucket.Decision{Allowed: true}}, 200,
			`{"allowed":true,"verdict":"allowed","rule":"shop/user","source":"open","owner":"n1"}`, ""},
		{"closed", check.Answer{Source: check.Closed, Owner: "n1", Decision: bucket.Decision{RetryAfter: time.Second}}, 429,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
				`"detail":"try again later","allowed":false,"verdict":"denied","retry_after":1,"rule":"shop/user","source":"closed","owner":"n1"}`, "1"},
	} {
		h := newAPI(t, newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) { b.Answers[0] = c.answer })))
		w, _ := post(t, h, user("x", ""), c.status)
		if got := strings.TrimSpace(w.Body.String()); got != c.body {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.body)
		}
		for k, want := range map[string]string{
			"RateLimit-Policy": `"shop/user";q=3;w=60`, "RateLimit": "", "X-RateLimit-Remaining": "", "Retry-After": c.retry,
		} {
			if got := w.Header().Get(k); got != want {
				t.Errorf("%s: %s is %q, want %q", c.name, k, got, want)
			}
		}
	}
}

// TestRuleResponse: the response that a rule has for those whom it denies is for them, not for the program that asks.
func TestRuleResponse(t *testing.T) {
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)))
	for key, want := range map[string]string{
		"custom": `"response":{"status":503,"headers":[{"name":"X-Why","value":"custom"},{"name":"Retry-After","value":"77"},{"name":"Content-Type","value":"text/html"}],"body":"<p>later</p>"}`,
		"plain":  `"response":{"body":"later"}`,
		"status": `"response":{"status":420,"headers":[{"name":"X-Why","value":"status"}]}`,
	} {
		w, _ := post(t, h, strings.Replace(user("x", ""), `"user"`, `"`+key+`"`, 1), 429)
		if got := w.Body.String(); !strings.Contains(got, want) || !strings.Contains(got, `"verdict":"denied_never"`) {
			t.Errorf("%s: body %s, want %s in it", key, got, want)
		}
		if h := w.Header(); h.Get("X-Why") != "" || h.Get("Content-Type") != httpanswer.TypeProblem {
			t.Errorf("%s: headers %v", key, h)
		}
	}
}

// TestResponsesOfMany: among many checks, each that is denied carries its rule's response.
func TestResponsesOfMany(t *testing.T) {
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)))
	of := func(key string) string { return strings.Replace(user("x", ""), `"user"`, `"`+key+`"`, 1) }
	_, m := post(t, h, `{"checks":[`+strings.Join([]string{of("user"), of("custom"), of("plain"), of("status")}, ",")+`]}`, 200)
	var got []string
	for _, d := range m["decisions"].([]any) {
		text, err := json.Marshal(d.(map[string]any)["response"])
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(text))
	}
	for i, want := range []string{`null`, `503`, `{"body":"later"}`, `"name":"X-Why","value":"status"`} {
		if !strings.Contains(got[i], want) {
			t.Errorf("check %d: %s, want %s", i, got[i], want)
		}
	}
}

// TestResponsesAreBounded: long bodies of rules do not make an answer as long as many of them.
func TestResponsesAreBounded(t *testing.T) {
	room := 100
	r := &limiter.Result{Rule: &rules.Rule{Response: &rules.Response{Body: strings.Repeat("b", 40), Headers: []rules.Header{{Name: "N", Value: "v"}}}}}
	for i, want := range []bool{true, true, false} {
		if got := responseOf(r, &room) != nil; got != want {
			t.Errorf("response %d: %v, want %v", i, got, want)
		}
	}
	if room != 100-2*42 {
		t.Errorf("room for %d bytes", room)
	}
}

// verdicts is what each decision of a list says: its verdict, or the code and the field of its error.
func verdicts(m map[string]any) string {
	var list []string
	for _, d := range m["decisions"].([]any) {
		d := d.(map[string]any)
		if e, ok := d["error"].(map[string]any); ok && e["message"] != "" {
			list = append(list, fmt.Sprint(e["code"], " ", e["field"]))
		} else {
			list = append(list, fmt.Sprint(d["verdict"]))
		}
	}
	return strings.Join(list, ", ")
}

func TestManyChecks(t *testing.T) {
	const bad, whole = `{"domain":"shop","descriptor":[{"key":"","value":"x"}]}`, `,"all_or_nothing":true`
	x, y, spent := user("x", ""), user("y", ""), user("spent", "")
	many := func(more string, checks ...string) string {
		return `{"checks":[` + strings.Join(checks, ",") + `]` + more + `}`
	}
	for _, c := range []struct {
		body       string
		status     int
		want       string
		retryAfter string
	}{
		{many("", x, y), 200, "allowed, allowed", ""},
		{many("", x, spent), 429, "allowed, denied", "60"},
		{many("", x, bad, y), 200, "allowed, invalid checks[1].descriptor[0].key, allowed", ""},
		{many("", x, user("y", `,"verb":"take"`)), 200, "allowed, invalid checks[1].verb", ""},
		{many(whole, x, y), 200, "allowed, allowed", ""},
		{many(whole, x, spent), 429, "denied_by_others, denied", "60"},
		{many(whole, spent, spent), 429, "denied, denied", "60"},
		{many(whole, x, user("y", `,"cost":9`)), 429, "denied_by_others, denied_never", ""},
		{many(whole, x, bad), 429, "denied_by_others, invalid checks[1].descriptor[0].key", ""},
		{many(whole, user("x", `,"cost":0`), user("spent", `,"verb":"read"`)), 429, "allowed, denied", "60"},
		{many(whole, strings.Replace(x, "user", "other", 1), spent), 429, "denied_by_others, denied", "60"},
		{many("", x), 200, "allowed", ""},
		{`{"all_or_nothing":true,"checks":[` + x + `,` + spent + `]}`, 429, "denied_by_others, denied", "60"}, // options first
	} {
		h := newAPI(t, newLimiter(t, apitest.NewNode(t)))
		post(t, h, user("spent", `,"cost":3`), 200)
		w, m := post(t, h, c.body, c.status)
		if got := verdicts(m); got != c.want || m["allowed"] != !strings.ContainsAny(strings.ReplaceAll(c.want, "allowed", ""), "di") {
			t.Errorf("%s: %s, allowed %v, want %s", c.body, got, m["allowed"], c.want)
		}
		kind := map[int]string{200: httpanswer.TypeJSON, 429: httpanswer.TypeProblem}[c.status]
		if h := w.Header(); h.Get("Retry-After") != c.retryAfter || h.Get("Content-Type") != kind || h.Get("RateLimit") != "" {
			t.Errorf("%s: %v", c.body, h)
		}
	}
}

func TestFailures(t *testing.T) {
	two := `{"checks":[` + user("x", "") + `,` + user("y", "") + `]%s}`
	for _, c := range []struct {
		name   string
		errs   []error
		body   string
		status int
		code   string
	}{
		{"overloaded", []error{check.ErrOverloaded}, user("x", ""), 503, "overloaded"},
		{"no owner", []error{check.ErrNoOwner}, user("x", ""), 503, "unavailable"},
		{"all overloaded", []error{check.ErrOverloaded, check.ErrOverloaded}, strings.Replace(two, "%s", "", 1), 503, "overloaded"},
		{"one overloaded", []error{nil, check.ErrOverloaded}, strings.Replace(two, "%s", "", 1), 200, ""},
		{"one overloaded, together", []error{nil, check.ErrOverloaded}, strings.Replace(two, "%s", `,"all_or_nothing":true`, 1), 200, ""},
	} {
		h := newAPI(t, newLimiter(t, decideFunc(func(_ context.Context, b *check.Batch) {
			for i := range b.Answers {
				b.Answers[i].Err = c.errs[i]
			}
		})))
		w, m := post(t, h, c.body, c.status)
		if code, _ := m["code"].(string); code != c.code {
			t.Errorf("%s: %s", c.name, w.Body)
		}
		wantRetry := ""
		if c.status == 503 {
			wantRetry = "1"
		}
		if got := w.Header().Get("Retry-After"); got != wantRetry {
			t.Errorf("%s: Retry-After %q", c.name, got)
		}
	}
	rejecting := newAPI(t, newLimiter(t, apitest.NewNode(t), func(c *limiter.Config) { c.RejectUnknownDomains = true }))
	_, m := post(t, rejecting, strings.Replace(user("x", ""), "shop", "nowhere", 1), http.StatusBadRequest)
	if m["code"] != "unknown_domain" || m["field"] != "domain" {
		t.Errorf("unknown domain: %v", m)
	}
}

// TestDeny: deny=429 changes the status of what is not allowed and the fields of a problem, and nothing else.
func TestDeny(t *testing.T) {
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)))
	post(t, h, user("spent", `,"cost":3`), 200)
	for body, denied := range map[string]bool{
		user("spent", ""):                                                       true,
		user("x", `,"cost":4`):                                                  true,
		user("spent", `,"verb":"read"`):                                         true,
		user("x", `,"verb":"read"`):                                             false,
		user("spent", `,"verb":"refund","cost":0`):                              false,
		`{"checks":[` + user("spent", "") + `,{}]}`:                             true,
		`{"checks":[` + user("x", "") + `,{}],"all_or_nothing":true}`:           true,
		`{"checks":[` + user("spent", "") + `,` + user("x", `,"cost":0`) + `]}`: true,
	} {
		plain, want := call(t, h, "POST", "/v1/check", body)
		w, got := call(t, h, "POST", "/v1/check?deny=429", body)
		if w.Code == http.StatusTooManyRequests != denied || plain.Code != http.StatusOK || want["allowed"] == denied {
			t.Errorf("%s: %d and %d %s", body, plain.Code, w.Code, w.Body)
		}
		if denied && got["status"] != 429.0 || denied == (w.Header().Get("Content-Type") == httpanswer.TypeJSON) {
			t.Errorf("%s: %v %s", body, w.Header(), w.Body)
		}
		for _, name := range []string{"type", "title", "status", "detail", "violated-policies"} {
			delete(got, name)
		}
		w.Header().Set("Content-Type", httpanswer.TypeJSON)
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(w.Header(), plain.Header()) {
			t.Errorf("%s: %v %s\nwith deny=429 %v %s", body, plain.Header(), plain.Body, w.Header(), w.Body)
		}
	}
}

// TestVerbs: each verb has its path, where the body names none, and one way of answering.
func TestVerbs(t *testing.T) {
	const left = `"limit":3,"remaining":`
	play(t, newAPI(t, newLimiter(t, apitest.NewNode(t))),
		ask{"", "/v1/charge", user("x", `,"cost":4`), 200, `{"allowed":true,"verdict":"allowed",` + left + `0,`},
		ask{"", "/v1/read", user("x", ""), 200, `{"allowed":false,"verdict":"denied",` + left + `0,`},
		ask{"", "/v1/read?deny=429", user("x", ""), 429, `"allowed":false,"verdict":"denied",` + left + `0,`},
		ask{"", "/v1/refund", user("x", `,"cost":2`), 200, `{"allowed":true,"verdict":"allowed",` + left + `1,`},
		ask{"", "/v1/refund", user("x", `,"verb":"charge"`), 400, `unknown field`},
		ask{"", "/v1/check", user("x", ""), 200, `"remaining":0,`},
		ask{"", "/v1/reset?deny=429", user("x", ""), 200, `{"allowed":true,"verdict":"allowed",` + left + `3,"period":60,`},
		ask{"", "/v1/read", `{"checks":[` + user("x", "") + `,` + user("y", `,"cost":4`) + `]}`, 200, `{"allowed":false,"decisions":[{"allowed":true,`},
		ask{"", "/v1/charge", `{"checks":[` + user("x", "") + `],"all_or_nothing":true}`, 400, `unknown field`},
		ask{"", "/v1/reset", `{"checks":[` + user("x", "") + `,{}]}`, 200, `{"allowed":false,"decisions":[{"allowed":true,`},
		ask{"", "/v1/reset", `{}`, 400, `"field":"domain"`},
		ask{"", "/v1/reset", `{"checks":[]}`, 400, `"field":"checks"`},
		ask{"", "/v1/reset", user("x", `,"cost":1`), 400, `unknown field`},
		ask{"", "/v1/reset", ``, 400, `empty body`},
	)
}

// TestIdempotencyKey: a charge or a refund is made once with a key, alone or in a list, and a key that does not fit is rejected.
func TestIdempotencyKey(t *testing.T) {
	const key, field = " Idempotency-Key: ", `"field":"Idempotency-Key"`
	x := user("x", "")
	list := `{"checks":[` + x + `,` + x + `]}`
	play(t, newAPI(t, newLimiter(t, apitest.NewNode(t))),
		ask{"", "/v1/charge" + key + "k", x, 200, `"remaining":2`},
		ask{"", "/v1/charge" + key + "k", x, 200, `"remaining":2`},
		ask{"", "/v1/charge" + key + "k2", x, 200, `"remaining":1`},
		ask{"", "/v1/refund" + key + "k", x, 200, `"remaining":2`},
		ask{"", "/v1/refund" + key + "k", x, 200, `"remaining":2`},
		ask{"", "/v1/charge" + key + "list", list, 200, `"remaining":0`},
		ask{"", "/v1/refund" + key + "list", list, 200, `"remaining":2`},
		ask{"", "/v1/refund" + key + "list", list, 200, `"remaining":2`},
		ask{"", "/v1/charge", x, 200, `"remaining":1`},
		ask{"", "/v1/charge" + key, x, 400, field},
		ask{"", "/v1/charge" + key + "a" + key + "a", x, 400, field},
		ask{"", "/v1/charge" + key + strings.Repeat("k", 129), x, 400, `128 bytes`},
		ask{"", "/v1/check" + key + "k", user("x", `,"verb":"charge"`), 400, `"detail":"Idempotency-Key: is for /v1/charge`},
		ask{"", "/v1/read" + key + "k", x, 400, field},
		ask{"", "/v1/reset" + key + "k", x, 400, field},
		ask{"", "/v1/read", x, 200, `"remaining":1`},
	)
}

// TestHeaderSpelling: headers go out as the docs spell them.
func TestHeaderSpelling(t *testing.T) {
	server := httptest.NewServer(newAPI(t, newLimiter(t, apitest.NewNode(t))))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := user("a", "")
	fmt.Fprintf(conn, "POST /v1/check HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(answer), "\r\n\r\n")
	for _, name := range []string{"RateLimit: ", "RateLimit-Policy: ", "X-RateLimit-Limit: ", "X-RateLimit-Remaining: ", "X-RateLimit-Reset: "} {
		if !strings.Contains(head, "\n"+name) {
			t.Errorf("no %q in\n%s", name, head)
		}
	}
	if n := strings.Count(strings.ToLower(head), "\nratelimit: "); n != 1 {
		t.Errorf("%d headers called RateLimit", n)
	}
}
