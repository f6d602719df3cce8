package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	reference = regexp.MustCompile(`(?:href|src)="([^"]+)"`)
	idents    = regexp.MustCompile(`id="([^"]+)"`)
)

// TestSite: every relative address of every page leads to a file and an anchor of the site, and the search knows all pages.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := build("../..", out); err != nil {
		t.Fatal(err)
	}
	anchors, bodies := map[string]map[string]bool{}, map[string]string{}
	err := filepath.WalkDir(out, func(name string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".html" {
			return err
		}
		data, err := os.ReadFile(name)
		bodies[name], anchors[name] = string(data), map[string]bool{"": true}
		for _, m := range idents.FindAllStringSubmatch(string(data), -1) {
			anchors[name][m[1]] = true
		}
		return err
	})
	if err != nil || len(bodies) < 60 {
		t.Fatalf("%d pages, %v", len(bodies), err)
	}
	index, err := os.ReadFile(filepath.Join(out, "search.js"))
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range bodies {
		page, _ := filepath.Rel(out, name)
		if !strings.Contains(string(index), `"u":"`+page+`"`) {
			t.Errorf("the search does not know %s", page)
		}
		for _, m := range reference.FindAllStringSubmatch(body, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(target); err != nil || anchors[target] != nil && !anchors[target][anchor] {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			}
		}
	}
}
