package httpapi

import (
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/test/apitest"
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
	play(t, h,
		ask{"PUT", path, `{"load": 0.5}`, 200, `{"load":0.5,"expires":10}`},
		ask{"PUT", path, `{"load": 0.75, "reporter": "a"}`, 200, `{"load":0.75,"expires":10}`},
		ask{"PUT", path, `{"load": 0, "reporter": "a"}`, 200, `{"load":0.5,"expires":10}`},
		ask{"PUT", path, `{"load": 1.5}`, 400, `"code":"invalid","field":"load"`},
		ask{"PUT", path, `{"load": 1e999}`, 400, `"field":"load"`},
		ask{"PUT", path, `{"load": "1"}`, 400, `"field":"load"`},
		ask{"PUT", path, `{"reporter": "a"}`, 400, `"detail":"load: is missing; want 0 to 1"`},
		ask{"PUT", path, `{"load": 1, "pool": "x"}`, 400, `unknown field`},
		ask{"PUT", path, `{"load": 1} {}`, 400, `more after the end`},
		ask{"PUT", path, ``, 400, `empty body`},
		ask{"PUT", "/v1/pools/shop/none/load", `{"load": 1}`, 404, `"code":"not_found","field":"pool"`},
		ask{"PUT", "/v1/pools/shop/steady/load", `{"load": 1}`, 409, `"code":"rejected","field":"pool"`},
		ask{"POST", path, `{"load": 1}`, 405, `want PUT`},
		ask{"", "/v1/check", user("x", ""), 200, `"verdict":"allowed","limit":1,`},
		ask{"", "/v1/check", user("x", ""), 200, `"verdict":"allowed_elastic","limit":1,"remaining":0,`},
	)
	w, _ := call(t, h, "POST", "/v1/check", user("x", ""))
	if got := w.Header(); !strings.HasPrefix(got.Get("RateLimit"), `"shop/user";r=0;`) || got.Get("Retry-After") != "" {
		t.Errorf("a check that the pool admits: %v", got)
	}
}
