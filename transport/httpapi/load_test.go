package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/transport/internal/apitest"
)

const poolRules = `
domain: shop
pools:
  spare: {limit: {unit: minute, count: 10}, load: {shrink_to: 0%}}
  steady: {limit: {unit: minute, count: 10}}
descriptors:
  - key: user
    rate_limit: {unit: minute, count: 1}
    elastic: {pool: spare}
  - key: team
    rate_limit: {unit: minute, count: 1}
    elastic: {pool: steady}
`

func TestLoad(t *testing.T) {
	h := newAPI(t, apitest.NewLimiter(t, apitest.NewNode(t), poolRules, member.Member{Name: "n1"}))
	const path = "/v1/pools/shop/spare/load"
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{http.MethodPut, path, `{"load": 0.5}`, 200, `{"load":0.5,"expires":10}`},
		{http.MethodPut, path, `{"load": 0.75, "reporter": "a"}`, 200, `{"load":0.75,"expires":10}`},
		{http.MethodPut, path, `{"load": 0, "reporter": "a"}`, 200, `{"load":0.5,"expires":10}`},
		{http.MethodPut, path, `{"load": 1.5}`, 400, `"code":"invalid","field":"load"`},
		{http.MethodPut, path, `{"load": 1e999}`, 400, `"field":"load"`},
		{http.MethodPut, path, `{"load": "1"}`, 400, `"field":"load"`},
		{http.MethodPut, path, `{"reporter": "a"}`, 400, `"detail":"load: is missing; want 0 to 1"`},
		{http.MethodPut, path, `{"load": 1, "pool": "x"}`, 400, `unknown field`},
		{http.MethodPut, path, `{"load": 1} {}`, 400, `more after the end`},
		{http.MethodPut, path, ``, 400, `empty body`},
		{http.MethodPut, "/v1/pools/shop/none/load", `{"load": 1}`, 404, `"code":"not_found","field":"pool"`},
		{http.MethodPut, "/v1/pools/shop/steady/load", `{"load": 1}`, 409, `"code":"rejected","field":"pool"`},
		{http.MethodPost, path, `{"load": 1}`, 405, `want PUT`},
	} {
		w, _ := call(t, h, c.method, c.path, c.body)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, w.Code, got, c.status, c.want)
		}
	}
}

func TestElastic(t *testing.T) {
	h := newAPI(t, apitest.NewLimiter(t, apitest.NewNode(t), poolRules, member.Member{Name: "n1"}))
	post(t, h, user("x", ""), 200)
	w, m := post(t, h, user("x", ""), 200)
	if m["verdict"] != "allowed_elastic" || m["limit"] != 1.0 || m["remaining"] != nil && m["remaining"] != 0.0 || w.Header().Get("Retry-After") != "" {
		t.Errorf("%s %v", w.Body, w.Header())
	}
	if got := w.Header().Get("RateLimit"); !strings.HasPrefix(got, `"shop/user";r=0;`) {
		t.Errorf("RateLimit: %s", got)
	}
}
