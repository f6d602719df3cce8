package httpapi

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/access"
)

func TestTop(t *testing.T) {
	limiter := apitest.NewLimiter(t, apitest.NewNode(t), apitest.Rules, member.Member{Name: "n1"}, func(c *limiter.Config) {
		c.Cluster.(*apitest.Cluster).Tops = func(context.Context, limiter.TopQuery) ([]limiter.NodeTop, []string) { return nil, []string{"n2"} }
	})
	h := newAPI(t, limiter)
	for i := range 5 {
		post(t, h, user("ann", ""), map[bool]int{true: 200, false: 429}[i < 3])
	}
	for _, c := range []struct {
		operator, query string
		status          int
		want            string
	}{
		{"an operator", "", 200, `"keys":[{"domain":"shop","descriptor":[{"key":"user","value":"ann"}],"rule":"shop/user","count":2,"per_second":`},
		{"an operator", "?by=frequent&n=1&domain=shop", 200, `"count":5,`},
		{"an operator", "?by=limited", 200, `"nodes":["n1"],"missing":["n2"]}`},
		{"an operator", "?domain=other", 200, `"keys":[],`},
		{"an operator", "?by=size", 400, `"field":"by"`},
		{"an operator", "?n=0", 400, `"field":"n"`},
		{"an operator", "?n=many", 400, `"field":"n"`},
		{"an operator", "?n=1&n=2", 400, `n: is there 2 times`},
		{"an operator", "?key=x", 400, `"field":"key"`},
		{"an operator", "?n=%zz", 400, `malformed query`},
		{"", "", 403, `"code":"forbidden"`},
	} {
		r := httptest.NewRequest("GET", "/admin/v1alpha1/top"+c.query, nil)
		if c.operator != "" {
			r = r.WithContext(access.AsOperator(r.Context()))
		}
		w := serve(h, r)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s by %q: %d %s, want %d %s", c.query, c.operator, w.Code, got, c.status, c.want)
		}
	}
}
