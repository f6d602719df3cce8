package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestScenarios: what the commands name exists, and each can be chosen.
func TestScenarios(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range scenarios {
		if seen[s.name] || s.does == "" || len(s.commands) == 0 {
			t.Errorf("%s: listed twice, or says or does nothing", s.name)
		}
		seen[s.name] = true
		for _, c := range s.commands {
			root := filepath.Join("..", "..")
			for i, words := 0, strings.Fields(c); i < len(words); i++ {
				if words[i] == "-C" {
					root = filepath.Join(root, words[i+1])
				}
				if w := words[i]; strings.HasPrefix(w, "./") || strings.HasPrefix(w, "tools/") {
					if _, err := os.Stat(filepath.Join(root, w)); err != nil {
						t.Errorf("%s: %v", s.name, err)
					}
				}
			}
		}
	}
}

func TestWithFlags(t *testing.T) {
	got := withFlags(strings.Fields("go test -run A ./a ./b"), strings.Fields("-run C -count 2 -args -seeds 9"))
	if want := strings.Fields("go test -run A -run C -count 2 ./a ./b -args -seeds 9"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
