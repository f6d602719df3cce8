package node

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestOpenAPIPathsAreServed: a node serves all that docs/openapi.yaml describes on its HTTP port, forward auth included.
func TestOpenAPIPathsAreServed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/openapi.yaml")
	do(t, err)
	var doc struct {
		Paths map[string]map[string]any
	}
	if err := yaml.Unmarshal(text, &doc); err != nil || len(doc.Paths) < 10 {
		t.Fatal(err, len(doc.Paths))
	}
	n := startNode(t, testConfig(t))
	for path, methods := range doc.Paths {
		for method := range methods {
			method, path := strings.ToUpper(method), strings.NewReplacer("{domain}", "auth", "{pool}", "spare").Replace(path)
			res, body := send(t, n.listen.http.Addr(), method, path, "")
			if res.StatusCode == http.StatusMethodNotAllowed || strings.Contains(body, "there is nothing at this path") {
				t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
			}
		}
	}
}
