package rulefiles_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/rulefiles"
)

// TestLinkSwap: the path itself is a link, or one above it is, which is swapped, as git-sync does and as the runtime directories of
// envoyproxy/ratelimit are laid out. Reading at intervals is out of the way.
func TestLinkSwap(t *testing.T) {
	for _, inside := range []string{"", "ratelimit/config", "ratelimit/config/a.yaml"} {
		root := t.TempDir()
		version := func(n int) string { return filepath.Join(root, ".worktrees", fmt.Sprint("v", n)) }
		for n := 1; n <= 3; n++ {
			do(t, os.MkdirAll(filepath.Join(version(n), "ratelimit", "config"), 0o700))
			write(t, filepath.Join(version(n), "ratelimit", "config", "a.yaml"), limit(n))
		}
		link := filepath.Join(root, "current")
		do(t, os.Symlink(version(1), link))
		h := watch(t, filepath.Join(link, inside), quick)
		for n := 2; n <= 3; n++ {
			do(t, os.Symlink(fmt.Sprint(".worktrees/v", n), link+".new"))
			do(t, os.Rename(link+".new", link))
			h.becomes(int64(n))
			do(t, os.RemoveAll(version(n-1)))
		}
		// A directory above that is moved away, and another one in its place.
		current := filepath.Join(version(3), "ratelimit")
		do(t, os.Rename(current, filepath.Join(root, "old")))
		h.says("ERROR", map[bool]string{true: "no rule files", false: "no such file"}[inside == ""])
		do(t, os.MkdirAll(filepath.Join(current, "config"), 0o700))
		write(t, filepath.Join(current, "config", "a.yaml"), limit(4))
		h.becomes(4)
	}
}

// TestSubdirectoriesAreFollowed, also those that come later.
func TestSubdirectoriesAreFollowed(t *testing.T) {
	root := t.TempDir()
	dir, shared := filepath.Join(root, "rules"), filepath.Join(root, "shared.yaml")
	do(t, os.Mkdir(dir, 0o700))
	write(t, shared, strings.Replace(limit(7), "domain: d", "domain: e", 1))
	do(t, os.Symlink("../shared.yaml", filepath.Join(dir, "shared.yaml")))
	h := watch(t, dir, quick)
	do(t, os.MkdirAll(filepath.Join(dir, "team", "a"), 0o700))
	write(t, filepath.Join(dir, "team", "a", "a.yaml"), limit(1))
	h.becomes(1)
	write(t, filepath.Join(dir, "team", "a", "a.yaml"), limit(2))
	h.becomes(2)
	// What a link leads to is followed too.
	write(t, shared, strings.Replace(limit(8), "domain: d", "domain: f", 1))
	for !slices.Contains(h.w.Current().Domains(), "f") {
		h.says("INFO rules are in force")
	}
	do(t, os.RemoveAll(filepath.Join(dir, "team")))
	h.becomes(0)
}

// TestSkippedIsLogged once, and again when it is other files.
func TestSkippedIsLogged(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), limit(1))
	write(t, filepath.Join(dir, "load_test.yaml"), limit(2))
	h := watch(t, dir, rulefiles.Config{Debounce: time.Millisecond, Reread: time.Millisecond})
	h.says("WARN a file beside the rules is not read", "file="+filepath.Join(dir, "load_test.yaml"), "reason=", "rename it")
	if s := h.w.Status(); len(s.Skipped) != 1 || s.Skipped[0].File != filepath.Join(dir, "load_test.yaml") {
		t.Errorf("status %+v", s)
	}
	h.says("INFO rules are in force")
	h.reads(10)
	write(t, filepath.Join(dir, "b.conf"), "")
	if line := <-h.log; !strings.Contains(line, "b.conf") {
		t.Errorf("after many readings the log says %s", line)
	}
}
