package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxUserWords bounds the documentation of users: README, start, use and operate, without generated references.
const maxUserWords = 32_000

// TestLimitations: the page of limitations names what users of other rate limiters look for and do not find.
func TestLimitations(t *testing.T) {
	page, err := os.ReadFile("../../docs/start/limitations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, lacking := range []string{
		"no version, image, package or Go module", "client libraries | Go only", "xDS", "statsd", "`detailed_metric`", "`value_to_metric`",
		"Unix socket",
	} {
		if !strings.Contains(string(page), lacking) {
			t.Errorf("docs/start/limitations.md does not name %q: take it out here if sluice has it now", lacking)
		}
	}
}

// TestPageFacts: what pages say of other projects and of the image is what the repository has.
func TestPageFacts(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	gubernator := regexp.MustCompile(`gubernator-io/gubernator/v2 (v\S+)`).FindStringSubmatch(read("bench/peers/go.mod"))[1]
	wants := map[string]string{
		"docs/start/comparison.md":     "gubernator " + gubernator,
		"docs/internals/benchmarks.md": "gubernator is " + gubernator,
	}
	if strings.Contains(read("Dockerfile"), "/etc/ssl/certs/ca-certificates.crt") {
		wants["docs/operate/observability.md"] = "the image has the public CAs"
	}
	for page, want := range wants {
		if !strings.Contains(read(page), want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
	for _, client := range []string{"Envoy Gateway", "Kuadrant"} { // they do not read rule files
		if strings.Contains(read("README.md"), client) {
			t.Errorf("README.md names %s: only what has been run with sluice", client)
		}
	}
}

// TestUserWords: documentation that grows is read less. What only developers need belongs in docs/internals. -v lists the pages.
func TestUserWords(t *testing.T) {
	pages := []string{"../../README.md"}
	for _, group := range []string{"start", "use", "operate"} {
		found, err := filepath.Glob("../../docs/" + group + "/*.md")
		if err != nil || len(found) == 0 {
			t.Fatalf("docs/%s: %d pages, %v", group, len(found), err)
		}
		pages = append(pages, found...)
	}
	generated := []string{"configuration.md", "commands.md", "metrics.md"}
	word, total := regexp.MustCompile(`[\pL\pN]`), 0
	for _, page := range pages {
		if slices.Contains(generated, filepath.Base(page)) {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for field := range strings.FieldsSeq(string(text)) {
			if word.MatchString(field) {
				n++
			}
		}
		t.Logf("%6d  %s", n, strings.TrimPrefix(page, "../../"))
		total += n
	}
	t.Logf("%6d  in all, at most %d", total, maxUserWords)
	if total > maxUserWords {
		t.Errorf("%d words for users, want at most %d: cut, or move what is internal to docs/internals", total, maxUserWords)
	}
}
