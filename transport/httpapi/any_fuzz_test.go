package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/test/apitest"
)

// Every request to any path is answered, without a panic, and an error has a status that says whose fault it is.
func FuzzAnyRequest(f *testing.F) {
	h := newAPI(f, newLimiter(f, apitest.NewNode(f)))
	for _, seed := range []struct{ method, target, body string }{
		{"POST", "/v1/check", `{"domain":"shop","descriptor":[{"key":"user","value":"x"}]}`},
		{"POST", "/v1/reset", `{"domain":"shop","descriptor":[{"key":"user","value":"x"}]}`},
		{"GET", "/admin/v1alpha1/members", ""},
		{"POST", "/admin/v1alpha1/members/forget", `{"name":"n2"}`},
		{"GET", "/admin/v1alpha1/top?by=frequent&domain=shop&n=5", ""},
		{"PUT", "/v1/pools/shop/spare/load", `{"load":0.5,"reporter":"a"}`},
		{"GET", "/healthz?%zz", ""},
		{"DELETE", "//../v1/check", ""},
	} {
		f.Add(seed.method, seed.target, seed.body)
	}
	f.Fuzz(func(t *testing.T, method, target, body string) {
		if _, err := url.ParseRequestURI(target); err != nil || !strings.HasPrefix(target, "/") {
			return // the server rejects it before any handler
		}
		r, err := http.NewRequest(method, target, strings.NewReader(body))
		if err != nil {
			return
		}
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError || w.Code < 200 || w.Code > 599 {
			t.Errorf("%s %q %q: %d %s", method, target, body, w.Code, w.Body)
		}
	})
}
