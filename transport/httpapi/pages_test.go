package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestOwnPages: what browsers say of the pages that call, by header "Name: value", several with newlines between.
func TestOwnPages(t *testing.T) {
	h := OwnPages([]string{"Limits.example"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, c := range []struct {
		method, host, headers string
		want                  string // in the problem, empty if the request is let through
	}{
		{"POST", "sluice:7461", "User-Agent: curl", ""},
		{"GET", "sluice.default.svc:7461", "", ""},
		{"POST", "localhost:7461", "Sec-Fetch-Site: same-origin\nOrigin: http://localhost:7461", ""},
		{"POST", "LOCALHOST", "Origin: http://LOCALHOST", ""},
		{"POST", "[::1]:7461", "Origin: http://[::1]:7461", ""},
		{"POST", "192.0.2.7", "Origin: https://192.0.2.7", ""},
		{"POST", "limits.example:7461", "Sec-Fetch-Site: same-origin\nOrigin: https://limits.example:7461", ""},
		{"POST", "localhost:7461", "Sec-Fetch-Site: none", ""},
		{"GET", "localhost:7461", "Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate", ""}, // a link
		{"HEAD", "localhost:7461", "Sec-Fetch-Site: same-origin", ""},

		{"POST", "localhost:7461", "Sec-Fetch-Site: cross-site", "another site"},
		{"POST", "localhost:7461", "Sec-Fetch-Site: same-site", "another site"},
		{"POST", "localhost:7461", "Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate", "another site"}, // a form
		{"GET", "localhost:7461", "Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors", "another site"},
		{"GET", "localhost:7461", "Sec-Fetch-Site: same-site", "another site"},
		{"GET", "localhost:7461", "Origin: http://localhost:9999", "another origin"},
		{"POST", "localhost:7461", "Origin: http://elsewhere.example", "another origin"},
		{"POST", "localhost:7461", "Origin: null", "another origin"},
		{"POST", "rebound.example:7461", "Sec-Fetch-Site: same-origin\nOrigin: http://rebound.example:7461", "--allowed-hosts=rebound.example"},
		{"GET", "rebound.example", "Sec-Fetch-Site: same-origin", "--allowed-hosts"},
		{"POST", "localhost.rebound.example:7461", "Origin: http://localhost.rebound.example:7461", "--allowed-hosts"},
		{"POST", "rebound.example", "Origin: http://rebound.example", "--allowed-hosts"},
	} {
		r := httptest.NewRequest(c.method, "/v1/any", nil)
		r.Host = c.host
		for line := range strings.Lines(c.headers) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			r.Header.Set(name, value)
		}
		w := serve(h, r)
		switch {
		case c.want == "" && w.Code != http.StatusNoContent:
			t.Errorf("%s to %s with %q: %d %s", c.method, c.host, c.headers, w.Code, w.Body)
		case c.want != "" && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), c.want)):
			t.Errorf("%s to %s with %q: %d %s, want %q", c.method, c.host, c.headers, w.Code, w.Body, c.want)
		}
	}
}
