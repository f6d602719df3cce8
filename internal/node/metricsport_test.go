package node

import (
	"io"
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
	url := "http://" + n.Addrs().Metrics.String()
	ask := func(method, path string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
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
	if _, err := http.Get(url + "/healthz"); err == nil {
		t.Error("the port outlives the node")
	}
}
