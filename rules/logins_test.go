package rules_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// TestAdvice: the rules of logins in examples, manifests and pages, and all that say on_failure: closed, follow the advice of
// docs/use/consistency.md: with on_failure alone, a minority would still admit its share.
func TestAdvice(t *testing.T) {
	texts := map[string][]string{} // by file
	for _, root := range []string{"../examples", "../deploy", "../docs", "../README.md"} {
		if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.Contains(path, "/adr/") || strings.Contains(path, "/internals/") {
				return err
			}
			data, err := os.ReadFile(path)
			switch ext := filepath.Ext(path); {
			case ext == ".md":
				for _, block := range strings.Split(string(data), "```yaml\n")[1:] {
					block, _, _ = strings.Cut(block, "```")
					texts[path] = append(texts[path], ruleFile(block))
				}
			case ext == ".yaml" && !strings.HasSuffix(path, "_test.yaml") && strings.Contains(string(data), "\ndomain: "):
				texts[path] = []string{string(data)}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	logins := 0
	for path, list := range texts {
		for _, text := range list {
			set, err := rules.Parse([]rules.File{{Name: path, Data: []byte(text)}}, rules.Options{})
			if err != nil {
				continue // no rule file, or TestDocs fails
			}
			for _, r := range set.Rules() {
				login := strings.Contains(r.Path+r.Name, "login")
				if login {
					logins++
				}
				closed := r.OnFailure == rules.FailClosed
				if (login || closed) && !(closed && r.OnPartition == rules.FailClosed && r.Replication == rules.ReplicateSync) {
					t.Errorf("%s: rule %s %s lacks some of replication: sync, on_partition: closed, on_failure: closed", path, r.Path, r.Name)
				}
			}
		}
	}
	if logins < 10 {
		t.Errorf("only %d rules of logins", logins)
	}
}

// TestReadmeRule: the rule in the README is the one that answers the commands below it.
func TestReadmeRule(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	files, _ := readExamples(t)
	var found [2]*rules.Rule
	for i, files := range [][]rules.File{{{Name: "README.md", Data: []byte(text)}}, files} {
		set, err := rules.Parse(files, rules.Options{})
		if err != nil {
			t.Fatal(err)
		}
		found[i], _ = set.Match("auth", []rules.Entry{{Key: "auth_type", Value: "login"}, {Key: "user", Value: "me"}})
	}
	a, b := found[0], found[1]
	if a.Name != b.Name || a.Limits.Len() != b.Limits.Len() || a.Limits.At(0) != b.Limits.At(0) || a.OnFailure != b.OnFailure || a.OnPartition != b.OnPartition || a.Replication != b.Replication {
		t.Errorf("README.md has %+v, examples/rules/auth.yaml %+v", a, b)
	}
}
