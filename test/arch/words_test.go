package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// word is one that must not be written: where it matches, instead of it.
type word struct {
	match   *regexp.Regexp
	instead string
}

// wordList reads the list that the check of texts uses too, see tools/words.
func wordList(t *testing.T) []word {
	t.Helper()
	list, err := os.ReadFile("../../tools/words/styles/Words/List.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, swaps, found := strings.Cut(string(list), "\nswap:\n")
	if !found {
		t.Fatal("List.yml has no swap")
	}
	var words []word
	for line := range strings.Lines(swaps) {
		pattern, instead, found := strings.Cut(strings.TrimSpace(line), ": ")
		if !found {
			t.Fatalf("List.yml: %q is not a pattern and a term", line)
		}
		words = append(words, word{match: regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`), instead: instead})
	}
	return words
}

// split separates the words of an identifier: hasQuorum2 is "has Quorum 2".
func split(identifier string) string {
	var b strings.Builder
	before := ' '
	r := []rune(identifier)
	for i, c := range r {
		next := ' '
		if i+1 < len(r) {
			next = r[i+1]
		}
		switch {
		case c == '_':
			c = ' '
		case unicode.IsUpper(c) && (unicode.IsLower(before) || unicode.IsLower(next)), unicode.IsDigit(c) != unicode.IsDigit(before):
			b.WriteByte(' ')
		}
		b.WriteRune(c)
		before = c
	}
	return b.String()
}

// badWords calls found for each word of the list in an identifier or a string literal of a file.
func badWords(fset *token.FileSet, file *ast.File, words []word, found func(at token.Position, text string, w word)) {
	ast.Inspect(file, func(n ast.Node) bool {
		text := ""
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Ident:
			text = split(n.Name)
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				text = strings.ReplaceAll(n.Value, "_", " ")
			}
		}
		for _, w := range words {
			if m := w.match.FindString(text); m != "" {
				found(fset.Position(n.Pos()), m, w)
			}
		}
		return true
	})
}

// TestWords: no identifier and no string literal has a word that stood for things of this project only.
func TestWords(t *testing.T) {
	words := wordList(t)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "peers" || strings.HasPrefix(d.Name(), ".") && path != "../..") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		badWords(fset, file, words, func(at token.Position, text string, w word) {
			t.Errorf("%s: %q: write %s", at, text, w.instead)
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWordsAreFound: each word of the fixture is found as part of an identifier and of a string.
func TestWordsAreFound(t *testing.T) {
	words := wordList(t)
	fixture, err := os.ReadFile("../../tools/words/fixture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, bad, _ := strings.Cut(string(fixture), "\n\n")
	for b := range strings.Lines(bad) {
		b = strings.ReplaceAll(strings.TrimSpace(b), " ", "_")
		title := strings.ToUpper(b[:1]) + b[1:]
		for _, src := range []string{"package p; var n" + title + "Of int", "package p; var " + b + "1 int", "package p; const a = `the " + b + " is`", "package p; const a = \"x_" + b + "\""} {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			badWords(fset, file, words, func(token.Position, string, word) { n++ })
			if n == 0 {
				t.Errorf("nothing found in %s", src)
			}
		}
	}
}
