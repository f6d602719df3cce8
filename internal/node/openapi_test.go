package node

import (
	"io"
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
	if err != nil {
		t.Fatal(err)
	}
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
			r, err := http.NewRequest(method, "http://"+n.listen.http.Addr().String()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusMethodNotAllowed || strings.Contains(string(body), "there is nothing at this path") {
				t.Errorf("%s %s: %d %s", method, path, res.StatusCode, body)
			}
		}
	}
}
