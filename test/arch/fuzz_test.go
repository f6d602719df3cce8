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

// docs/internals/hardening.md lists what reads bytes of others and the target that fuzzes it, and nothing else.
func TestParsersAreFuzzed(t *testing.T) {
	doc, err := os.ReadFile("../../docs/internals/hardening.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`\\./([a-z/0-9]+) (Fuzz[A-Za-z0-9]+)`").FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]+" "+m[2]] = true
	}
	if len(listed) < 20 {
		t.Fatalf("docs/internals/hardening.md lists %d targets: is the table there?", len(listed))
	}
	found := functions(t, "Fuzz")
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !listed[name] {
			t.Errorf("`./%s` is not in the table of docs/internals/hardening.md#parsers", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if !found[name] {
			t.Errorf("docs/internals/hardening.md lists `./%s`, which is not there", name)
		}
	}
}

// Each row of docs/internals/hardening.md about what a port can cost names a test that is there.
func TestCostsAreHeld(t *testing.T) {
	doc, err := os.ReadFile("../../docs/internals/hardening.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "\n| Port |")
	if !ok {
		t.Fatal("docs/internals/hardening.md has no table of ports")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[2:] // behind its head
	if len(rows) < 10 {
		t.Fatalf("%d rows", len(rows))
	}
	found, name := functions(t, "Test"), regexp.MustCompile("`\\./([a-z0-9/]+) (Test[A-Za-z0-9]+)`")
	for _, row := range rows {
		names := name.FindAllStringSubmatch(row, -1)
		if len(names) == 0 {
			t.Errorf("no test holds %s", row)
		}
		for _, m := range names {
			if !found[m[1]+" "+m[2]] {
				t.Errorf("docs/internals/hardening.md names `./%s %s`, which is not there", m[1], m[2])
			}
		}
	}
}

// functions are those of tests whose names begin so, each with its folder before it.
func functions(t *testing.T, prefix string) map[string]bool {
	t.Helper()
	files, err := exec.Command("git", "-C", "../..", "ls-files", "*_test.go").Output()
	if err != nil {
		t.Skipf("needs a checkout: %v", err)
	}
	found := map[string]bool{}
	target := regexp.MustCompile(`(?m)^func (` + prefix + `[A-Za-z0-9]+)\(`)
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
	return found
}
