package access

import (
	"os"
	"strings"
	"testing"
)

// TestDocs holds docs/operate/security.md against the code: its example is sound, and its tables have all verbs and reasons.
func TestDocs(t *testing.T) {
	data, err := os.ReadFile("../../docs/operate/security.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	_, example, ok := strings.Cut(text, "```yaml\ncallers:")
	if !ok {
		t.Fatal("there is no example of a callers file")
	}
	example, _, _ = strings.Cut("callers:"+example, "```")
	p, err := Parse("docs/operate/security.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if p.Callers() != 3 || !p.anonymous.May(Check, "public") {
		t.Errorf("the example has %d callers", p.Callers())
	}
	for v := range verbCount {
		if !strings.Contains(text, "\n| `"+v.String()+"` | ") {
			t.Errorf("no row for the verb %s", v)
		}
	}
	for _, name := range reasonNames {
		if !strings.Contains(text, "\n| `"+name+"` | ") {
			t.Errorf("no row for the reason %s", name)
		}
	}
}
