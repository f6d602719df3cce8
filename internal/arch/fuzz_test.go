package arch

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/limits.md lists what reads bytes of others and the target that fuzzes it, and nothing else.
func TestParsersAreFuzzed(t *testing.T) {
	doc, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`\\./([a-z/0-9]+) (Fuzz[A-Za-z0-9]+)`").FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]+" "+m[2]] = true
	}
	if len(listed) < 20 {
		t.Fatalf("docs/limits.md lists %d targets: is the table there?", len(listed))
	}
	files, err := exec.Command("git", "-C", "../..", "ls-files", "*_test.go").Output()
	if err != nil {
		t.Skipf("needs a checkout: %v", err)
	}
	found := map[string]bool{}
	target := regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9]+)\(`)
	for file := range strings.FieldsSeq(string(files)) {
		if strings.HasPrefix(file, "bench/") {
			continue
		}
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			continue // deleted, and not committed yet
		}
		for _, m := range target.FindAllSubmatch(text, -1) {
			found[file[:strings.LastIndex(file, "/")]+" "+string(m[1])] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !listed[name] {
			t.Errorf("`./%s` is not in the table of docs/limits.md#parsers", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if !found[name] {
			t.Errorf("docs/limits.md lists `./%s`, which is not there", name)
		}
	}
}
