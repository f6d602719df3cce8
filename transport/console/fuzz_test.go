package console

import (
	"slices"
	"testing"
)

// FuzzInspect: whatever comes as a body is answered, or rejected as the caller's fault.
func FuzzInspect(f *testing.F) {
	for _, body := range []string{ann, "", "{", `{"domain":1}`, `{"domain":"shop","descriptor":[null]}`, ann + ann, `[]`, "null", `{"domain":"\ud800","descriptor":[{"key":"user"}]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := newTestCluster(t, nil)
		for _, path := range []string{"/console/api/inspect", "/console/api/inspect/reset"} {
			if res := w.ask("POST", path, string(body)); !slices.Contains([]int{200, 400, 404, 413}, res.Code) {
				t.Errorf("%s %q: %d %s", path, body, res.Code, res.Body)
			}
		}
	})
}
