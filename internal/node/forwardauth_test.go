package node

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestForwardAuthAPI: a user's counter is one, whichever node a proxy asks about it and whichever way; a
// change of what is checked comes into force; and a node that drains takes no more.
func TestForwardAuthAPI(t *testing.T) {
	t.Parallel()
	const tree = "descriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n"
	nodes := together(t, 2)
	dir := nodes[0].config.Rules
	set := func(authorize string) {
		t.Helper()
		writeRule(t, dir, "domain: auth\n"+authorize+tree)
		for _, n := range nodes {
			await(t, "set to check "+authorize, func() bool { return (n.authorize("auth") != nil) == (authorize != "") })
		}
	}
	ask := func(node int, path, user string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequest("PUT", "http://"+nodes[node].listen.http.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-User", user)
		req.Header.Set("X-Forwarded-Method", "PUT")
		res, err := http.DefaultTransport.RoundTrip(req) // follows no redirects
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	if res, body := ask(0, "/v1/authorize/auth//x", "ann"); res.StatusCode != 404 || !strings.Contains(body, "no rule file in force has authorize") {
		t.Errorf("without authorize: %s %s", res.Status, body)
	}
	set("authorize: {denied_status: 403, descriptors: [[{key: user, from: header, name: X-User}]]}\n")
	for i := range 10 {
		user := fmt.Sprint("u", i)
		for check := range 3 {
			res, body := ask((i+check)%2, "/v1/authorize/auth//x/../"+user, user)
			want := 200
			if check == 2 {
				want = 403
			}
			if res.StatusCode != want || res.Header.Get("X-RateLimit-Remaining") != fmt.Sprint(max(0, 1-check)) {
				t.Errorf("user %s, check %d: %s %s %v", user, check, res.Status, body, res.Header)
			}
		}
		if got := nodes[i%2].left(t, user); got != 0 {
			t.Errorf("user %s, asked otherwise: %d are left", user, got)
		}
	}
	set("")
	if res, _ := ask(1, "/v1/authorize/auth", "ann"); res.StatusCode != 404 {
		t.Errorf("without authorize again: %s", res.Status)
	}
	set("authorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\n")
	nodes[0].leaving.Store(true) // its counters are being handed over
	if res, body := ask(0, "/v1/authorize/auth", "late"); res.StatusCode != 200 {
		t.Errorf("while leaving: %s %s", res.Status, body)
	}
	nodes[0].draining.Store(true)
	if res, _ := ask(0, "/v1/authorize/auth", "late"); res.StatusCode != 503 {
		t.Errorf("while draining: %s, want 503", res.Status)
	}
}
