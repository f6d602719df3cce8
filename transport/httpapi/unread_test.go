package httpapi

import (
	"io"
	"net/http/httptest"
	"testing"

	"github.com/sluicecluster/sluice/test/apitest"
)

// untouched is a body that must not be read.
type untouched struct{ t *testing.T }

func (u untouched) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// An unauthenticated client gets its answer before its request is read.
func TestUnauthenticatedBodyIsNotRead(t *testing.T) {
	guard, _ := apitest.Guard(t, "callers: [{name: a, certificates: ['cn:a'], grants: [{domains: ['*'], verbs: [check, reset, charge]}]}]")
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)), func(c *Config) { c.Guard = guard })
	for _, path := range []string{"/v1/check", "/v1/reset", "/admin/v1alpha1/members/forget"} {
		if w := serve(h, httptest.NewRequest("POST", path, untouched{t})); w.Code != 401 {
			t.Errorf("%s: status %d", path, w.Code)
		}
	}
}
