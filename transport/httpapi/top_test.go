package httpapi

import (
	"cmp"
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/internal/doortest"
)

func TestTop(t *testing.T) {
	limiter := doortest.NewLimiter(t, doortest.NewNode(t), doortest.Rules, member.Member{Name: "n1"}, func(c *transport.Config) {
		c.AskTop = func(context.Context, transport.TopQuery) ([]transport.NodeTop, []string) { return nil, []string{"n2"} }
	})
	h := newDoor(t, limiter)
	for i := range 5 {
		post(t, h, user("ann", ""), map[bool]int{true: 200, false: 429}[i < 3])
	}
	for _, c := range []struct {
		from, query string
		status      int
		want        string
		host        string // which was called, if not localhost
	}{
		{"127.0.0.1:9", "", 200, `"keys":[{"domain":"shop","descriptor":[{"key":"user","value":"ann"}],"rule":"shop/user","count":2,"per_second":`, ""},
		{"127.0.0.1:9", "?by=frequent&n=1&domain=shop", 200, `"count":5,`, ""},
		{"127.0.0.1:9", "?by=limited", 200, `"nodes":["n1"],"missing":["n2"]}`, ""},
		{"127.0.0.1:9", "?domain=other", 200, `"keys":[],`, ""},
		{"127.0.0.1:9", "?by=size", 400, `"field":"by"`, ""},
		{"127.0.0.1:9", "?n=0", 400, `"field":"n"`, ""},
		{"127.0.0.1:9", "?n=many", 400, `"field":"n"`, ""},
		{"127.0.0.1:9", "?n=1&n=2", 400, `n: is there 2 times`, ""},
		{"127.0.0.1:9", "?key=x", 400, `"field":"key"`, ""},
		{"127.0.0.1:9", "?n=%zz", 400, `malformed query`, ""},
		{"192.0.2.7:9", "", 403, `"code":"forbidden"`, ""},
		{"127.0.0.1:9", "", 200, `"keys":[{`, "[::1]:7461"},
		{"127.0.0.1:9", "", 403, `by a loopback address or localhost`, "rebound.example:7461"},
	} {
		r := httptest.NewRequest("GET", "/v1/top"+c.query, nil)
		r.RemoteAddr, r.Host = c.from, cmp.Or(c.host, "localhost")
		w := serve(h, r)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s from %s: %d %s, want %d %s", c.query, c.from, w.Code, got, c.status, c.want)
		}
	}
}
