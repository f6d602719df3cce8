package rules_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
)

// ruleFile completes an excerpt of a rule file; it is empty if text is none.
func ruleFile(text string) string {
	text = strings.TrimPrefix(text, "# yaml-language-server: $schema=https://raw.githubusercontent.com/sluicecluster/sluice/main/rules/schema.json\n")
	key, _, _ := strings.Cut(text, ":")
	indented := strings.ReplaceAll("\n"+strings.TrimSpace(text), "\n", "\n    ") + "\n"
	switch key {
	case "version", "domain":
		return text
	case "pools":
		return "domain: d\n" + text + "descriptors: [{key: a, limits: [1/1s], elastic: {pool: spare, priority: low}}]\n"
	case "- key":
		if strings.Contains(text, "elastic:") {
			return "domain: d\npools: {spare: {limit: {count: 1, period: 1s}, reserves: {normal: 0}}}\ndescriptors:" + indented
		}
		return "domain: d\ndescriptors:" + indented
	case "limits":
		return "domain: d\ndescriptors:\n  - key: a" + indented
	case "response":
		return "domain: d\ndescriptors:\n  - key: a\n    limits: [1/1s]" + indented
	}
	return ""
}

// TestDocs: all YAML in the pages that is a rule file, or an excerpt of one, loads without a warning and fits the schema, and
// the test cases in the reference hold of the rules that it begins with.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	regions := func(name string) bool { return slices.Contains([]string{"eu", "us", "ap"}, name) } // those of the pages
	loaded := 0
	for _, page := range append(pages, "../README.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var first *rules.Set
		for _, block := range strings.Split(string(data), "```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			if strings.Contains(block, "\ntests:") {
				results, err := ruletest.Run(first, []rules.File{{Name: page, Data: []byte(block)}})
				if err != nil || len(results) == 0 {
					t.Errorf("%s: %d test cases, %v", page, len(results), err)
				}
				for _, r := range results {
					for _, f := range r.Failures {
						t.Errorf("%s: %s", r.Name, f)
					}
				}
				continue
			}
			text := ruleFile(block)
			if text == "" {
				if strings.HasSuffix(page, "/rules.md") {
					t.Errorf("%s: what is this an excerpt of?\n%s", page, block)
				}
				continue
			}
			set, err := rules.Parse([]rules.File{{Name: page, Data: []byte(text)}}, rules.Options{Regions: regions})
			if err != nil || len(set.Warnings()) > 0 {
				t.Errorf("%s: %v %v\n%s", page, err, set.Warnings(), text)
				continue
			}
			if err := validate(t, text); err != nil {
				t.Errorf("%s: %v\n%s", page, err, text)
			}
			if first == nil {
				first = set
			}
			loaded++
		}
	}
	if loaded < 15 {
		t.Errorf("only %d blocks are rules", loaded)
	}
}
