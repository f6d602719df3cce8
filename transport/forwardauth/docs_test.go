package forwardauth

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
)

// TestDocs: docs/use/forward-auth.md shows rules that load without a warning, a call, and what is answered to
// it; and every source of a value and every code of a rejection stands there.
func TestDocs(t *testing.T) {
	data, err := os.ReadFile("../../docs/use/forward-auth.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	blocks := strings.Split(doc, "```")
	file := strings.TrimPrefix(blocks[1], "yaml\n")
	set, err := rules.Parse([]rules.File{{Name: "forward-auth.md", Data: []byte(file)}}, rules.Options{})
	if err != nil || len(set.Warnings()) > 0 {
		t.Fatal(err, set.Warnings())
	}
	path := regexp.MustCompile(`7461(/\S+)`).FindStringSubmatch(blocks[3])[1]
	var headers []string
	for _, m := range regexp.MustCompile(`-H '([^']+)'`).FindAllStringSubmatch(blocks[3], -1) {
		headers = append(headers, m[1])
	}
	shown := strings.Split(strings.TrimSpace(blocks[5]), "\n")
	w := ask(open(t, apitest.NewNode(t), file), call{path: path, peer: "127.0.0.1:80", headers: strings.Join(headers, "\n")})
	if shown[0] != "HTTP/1.1 200 OK" || w.Code != 200 || len(shown)-1 != len(w.Header()) {
		t.Errorf("docs/use/forward-auth.md shows\n%s\nit is %d %v", blocks[5], w.Code, w.Header())
	}
	for _, line := range shown[1:] {
		if name, value, _ := strings.Cut(line, ": "); w.Header().Get(name) != value {
			t.Errorf("docs/use/forward-auth.md shows %s\nit is %s", line, w.Header().Get(name))
		}
	}
	words := []string{"X-Forwarded-For", "invalid", "not_found", "unavailable", "overloaded"}
	for s := rules.FromClientAddress; s <= rules.FromPath; s++ {
		words = append(words, s.String())
	}
	for _, word := range words {
		if !strings.Contains(doc, "`"+word+"`") {
			t.Errorf("docs/use/forward-auth.md does not mention %s", word)
		}
	}
}
