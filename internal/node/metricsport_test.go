package node

import (
	"net/http"
	"strings"
	"testing"
)

// TestMetricsPort: beside TLS, certificates of clients and callers, the port has what probes and Prometheus ask for, and no more.
func TestMetricsPort(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	newPapers(t).withAPITLS(t, &s, "require")
	_, digest := testToken(t, 1)
	s.Callers = writeFile(t, "callers:\n  - name: shop\n    tokens: ["+digest+"]\n    grants: [{domains: ['*'], verbs: [check]}]\n")
	s.MetricsAddr = "127.0.0.1:0"
	n := startNode(t, s)
	ask := func(method, path string, header ...string) (int, string) {
		resp, text := send(t, n.Addrs().Metrics, method, path, "", header...)
		return resp.StatusCode, text
	}
	for path, want := range map[string]string{
		"/healthz": `"status"`, "/readyz": `"ready":true`, "/metrics": `sluice_connections{port="metrics"} 1`,
	} {
		if code, body := ask(http.MethodGet, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d %.300s; want %s", path, code, body, want)
		}
		if code, _ := ask(http.MethodPost, path); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, code)
		}
		if code, _ := ask(http.MethodGet, path, "Origin", "http://page.example"); code != http.StatusForbidden {
			t.Errorf("GET %s by a page of another origin: %d", path, code)
		}
	}
	for _, path := range []string{"/", "/v1/check", "/v1/nodes", "/v1/GetRateLimits", "/admin/v1alpha1/members", "/console", "/debug/pprof/", "/loglevel", "/metrics/", "/auth"} {
		if code, body := ask(http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("GET %s: %d %.300s", path, code, body)
		}
	}
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + n.Addrs().Metrics.String() + "/healthz"); err == nil {
		t.Error("the port outlives the node")
	}
}
