package handoff

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestTransitionsInDocs: docs/internals/design.md draws all transitions, and no others.
func TestTransitionsInDocs(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "```mermaid\nstateDiagram-v2\n")
	for p := range phase(phases) {
		fmt.Fprintf(&b, "  state \"%v\" as p%d\n", p, p)
	}
	for _, x := range transitions {
		fmt.Fprintf(&b, "  p%d --> p%d: %s\n", x.from, x.to, strings.ReplaceAll(x.cause, ", ", ",<br>"))
	}
	b.WriteString("```\n")
	doc, err := os.ReadFile("../../docs/internals/design.md")
	must(t, err)
	if !strings.Contains(string(doc), b.String()) {
		t.Errorf("docs/internals/design.md lacks the drawing of the transitions:\n%s", b.String())
	}
}

// TestEnterRejectsOthers: a change of phase that is not in the table panics.
func TestEnterRejectsOthers(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a replica is handed off, though this process does not own it")
		}
	}()
	p := partition{phase: replica}
	p.enter(inHandoff)
}
