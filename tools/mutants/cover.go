package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// blocks are the parts of files, by their base names, that the tests run.
type blocks map[string][]block

type block struct{ from, to position }

type position struct{ line, column int }

func (p position) before(q position) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// coverage runs the tests without a mutant: they must pass.
func coverage(o *options, dir string) (blocks, time.Duration, error) {
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(tmp)
	profile := filepath.Join(tmp, "cover")
	began := time.Now()
	if output, err := goTest(context.Background(), o, dir, "-coverprofile", profile); err != nil {
		return nil, 0, fmt.Errorf("the tests fail without a mutant: %w\n%s", err, output)
	}
	took := time.Since(began)
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, 0, err
	}
	b := make(blocks)
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		name, rest, _ := strings.Cut(line, ":")
		var k block
		var statements, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &k.from.line, &k.from.column, &k.to.line, &k.to.column, &statements, &count); err != nil {
			return nil, 0, fmt.Errorf("%q: %w", line, err)
		}
		if count > 0 {
			name = filepath.Base(name)
			b[name] = append(b[name], k)
		}
	}
	return b, took, nil
}

// has reports whether the tests run the place of m.
func (b blocks) has(m mutant) bool {
	at := position{m.line, m.column}
	for _, k := range b[filepath.Base(m.file)] {
		if !at.before(k.from) && at.before(k.to) {
			return true
		}
	}
	return false
}
