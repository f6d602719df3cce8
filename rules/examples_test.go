package rules_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
)

// readExamples returns the example rules and the test cases beside them.
func readExamples(t *testing.T) (files, tests []rules.File) {
	t.Helper()
	paths, err := filepath.Glob("../examples/rules/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := rules.File{Name: filepath.Base(path), Data: data}
		if strings.HasSuffix(path, "_test.yaml") {
			tests = append(tests, f)
		} else {
			files = append(files, f)
		}
	}
	return files, tests
}

// TestExamples holds the example rules to the test cases beside them, and every
// file to having some.
func TestExamples(t *testing.T) {
	files, tests := readExamples(t)
	set, err := rules.Parse(files, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range set.Warnings() {
		t.Error(w)
	}
	results, err := ruletest.Run(set, tests)
	if err != nil {
		t.Fatal(err)
	}
	tested := make(map[string]bool)
	for _, r := range results {
		tested[r.File] = true
		for _, f := range r.Failures {
			t.Errorf("%s: %s", r.Name, f)
		}
	}
	for _, f := range files {
		if name := strings.TrimSuffix(f.Name, ".yaml") + "_test.yaml"; !tested[name] {
			t.Errorf("%s has no test cases in %s", f.Name, name)
		}
	}
}
