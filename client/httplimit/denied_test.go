package httplimit

import (
	"net/http/httptest"
	"testing"
)

// TestRPC: a denied RPC gets the error of its protocol; module test/integration/connect has clients of each.
func TestRPC(t *testing.T) {
	const failure = `{"code":"resource_exhausted","message":"the rate limit is exceeded"}`
	for _, c := range []struct {
		method, url, kind, version string
		status                     int
		kindOut, body, grpc        string
	}{
		{"POST", "/", "application/grpc+proto", "", 200, "application/grpc+proto", "", "8"},
		{"POST", "/", "application/grpc-web-text", "", 200, "application/grpc-web-text", "", "8"},
		{"POST", "/", "application/connect+json", "1", 200, "application/connect+json", "\x02\x00\x00\x00\x4e" + `{"error":` + failure + `}`, ""},
		{"POST", "/", "application/proto", "1", 429, "application/json", failure, ""},
		{"POST", "/", "application/json", "1", 429, "application/json", failure, ""},
		{"GET", "/?connect=v1&message=", "", "", 429, "application/json", failure, ""},
		{"POST", "/?connect=v1", "application/json", "", 429, "application/problem+json", "", ""},
	} {
		r := httptest.NewRequest(c.method, c.url, nil)
		r.Header.Set("Content-Type", c.kind)
		if c.version != "" {
			r.Header.Set("Connect-Protocol-Version", c.version)
		}
		w, _ := serve(t, always(denied), Config{Keys: []Key{IP()}}, r)
		h := w.Header()
		if w.Code != c.status || h.Get("Content-Type") != c.kindOut || h.Get("Grpc-Status") != c.grpc || h.Get("Retry-After") != "6" {
			t.Errorf("%s %s: status %d, %v", c.method, c.kind, w.Code, h)
		}
		if c.body != "" && w.Body.String() != c.body || c.grpc != "" && w.Body.Len() > 0 {
			t.Errorf("%s %s: %q", c.method, c.kind, w.Body)
		}
	}
}
