package rulefiles_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/leaktest"
	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/rules"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// limit is a rule file for domain d with a limit of n a day.
func limit(n int) string {
	return fmt.Sprintf("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: %d}\n", n)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// do fails the test if a step of its story cannot be done.
func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// count returns the limit in force, 0 if none.
func count(set *rules.Set) int64 {
	r, _ := set.Match("d", []rules.Entry{{Key: "a", Value: "x"}})
	if r == nil {
		return 0
	}
	return r.Limits.At(0).Count
}

// lines is a log handler whose records can be waited for.
type lines chan string

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	s := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { s += " " + a.String(); return true })
	l <- s
	return nil
}

// watching is a Watcher under way, and what it tells.
type watching struct {
	t       *testing.T
	w       *rulefiles.Watcher
	log     lines
	changes chan int64
}

// quick makes tests soon done. Re-reading is out of the way unless a test is about it.
var quick = rulefiles.Config{Debounce: 5 * time.Millisecond, Reread: time.Hour}

func watch(t *testing.T, path string, c rulefiles.Config) *watching {
	t.Helper()
	h := &watching{t: t, log: make(lines, 1000), changes: make(chan int64, 1000)}
	w, err := rulefiles.Open(path, c, slog.New(h.log))
	if err != nil {
		t.Fatal(err)
	}
	h.w = w
	w.OnChange(func(set *rules.Set) {
		if set != w.Current() {
			t.Error("a set is told that is not in force")
		}
		h.changes <- count(set)
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return h
}

// becomes waits until the limit in force is n. Intermediate states may show: a
// change of several files is not one for the system.
func (h *watching) becomes(n int64) {
	h.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case got := <-h.changes:
			if got == n {
				return
			}
		case <-deadline:
			h.t.Fatalf("the limit is %d, and did not become %d; status %+v", count(h.w.Current()), n, h.w.Status())
		}
	}
}

// reads waits until the files were read n times more.
func (h *watching) reads(n uint64) {
	h.t.Helper()
	h.hasRead(h.w.Status().Readings + n)
}

// hasRead waits until the files were read n times since Open.
func (h *watching) hasRead(n uint64) {
	h.t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for h.w.Status().Readings < n {
		select {
		case <-tick.C:
		case <-deadline:
			h.t.Fatalf("not read %d times; status %+v", n, h.w.Status())
		}
	}
}

// says waits for a line of the log that holds all parts.
func (h *watching) says(parts ...string) string {
	h.t.Helper()
	deadline := time.After(patience)
	var seen []string
next:
	for {
		select {
		case line := <-h.log:
			seen = append(seen, line)
			for _, p := range parts {
				if !strings.Contains(line, p) {
					continue next
				}
			}
			return line
		case <-deadline:
			h.t.Fatalf("the log never said %q, but\n%s", parts, strings.Join(seen, "\n"))
		}
	}
}

func TestFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	write(t, path, limit(1))
	h := watch(t, path, quick)
	if got := count(h.w.Current()); got != 1 {
		t.Fatalf("at first the limit is %d", got)
	}
	before := h.w.Status()
	if before.Generation != 1 || before.LastError != nil || before.LoadedAt.IsZero() {
		t.Errorf("status %+v", before)
	}

	// Written in place.
	write(t, path, limit(2))
	h.becomes(2)
	// Replaced, as editors do.
	write(t, path+".new", limit(3))
	do(t, os.Rename(path+".new", path))
	h.becomes(3)
	// Deleted: the rules stay, and health knows.
	do(t, os.Remove(path))
	h.says("ERROR", "the rules in force stay", "no such file")
	if s := h.w.Status(); count(h.w.Current()) != 3 || !errors.Is(s.LastError, os.ErrNotExist) || s.Failures == 0 {
		t.Errorf("limit %d, status %+v", count(h.w.Current()), s)
	}
	// Back with other rules.
	write(t, path, limit(4))
	h.becomes(4)
	if s := h.w.Status(); s.LastError != nil || s.Generation < 4 || s.LoadedAt.Before(before.LoadedAt) {
		t.Errorf("status %+v", s)
	}
}

func TestBadFileKeepsTheRules(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), limit(1))
	h := watch(t, dir, quick)

	write(t, filepath.Join(dir, "b.yaml"), "domain: e\ndescriptors:\n  - key: a\n    rate_limit: {unit: eon, requests_per_unit: 1}\n")
	h.says("ERROR", "file="+filepath.Join(dir, "b.yaml"), "line=4", "key=e/a.rate_limit.unit", "reason=must be one of second, minute")
	if s := h.w.Status(); s.LastError == nil || s.Generation != 1 || count(h.w.Current()) != 1 {
		t.Errorf("status %+v", s)
	}
	// While b is bad, a change of a does not come into force by itself.
	write(t, filepath.Join(dir, "a.yaml"), limit(2))
	// Then b is taken away.
	do(t, os.Remove(filepath.Join(dir, "b.yaml")))
	h.becomes(2)
	if s := h.w.Status(); s.LastError != nil || s.Failures == 0 {
		t.Errorf("status %+v", s)
	}
}

// TestFaultIsToldOnce: a fault that stays is not told at each reading.
func TestFaultIsToldOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	write(t, path, limit(1))
	h := watch(t, path, rulefiles.Config{Debounce: time.Millisecond, Reread: time.Millisecond})
	do(t, os.Remove(path))
	h.says("ERROR", "no such file")
	// Many readings later another fault is told, and nothing in between.
	h.reads(10)
	other := path + ".d"
	do(t, os.Mkdir(other, 0o700))
	do(t, os.Rename(other, path))
	line := <-h.log
	if !strings.Contains(line, "no rule files") {
		t.Errorf("between two faults the log says %s", line)
	}
	if s := h.w.Status(); s.Failures != 2 || !errors.Is(s.LastError, rulefiles.ErrNoFiles) {
		t.Errorf("status %+v", s)
	}
	// The first rules again, unchanged: no new generation.
	do(t, os.Remove(path))
	h.says("ERROR", "no such file")
	write(t, path+".new", limit(1))
	do(t, os.Rename(path+".new", path))
	h.says("INFO", "valid again")
	if s := h.w.Status(); s.Generation != 1 || s.LastError != nil {
		t.Errorf("status %+v", s)
	}
}

func TestDirectoryIsFollowed(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "rules")
	do(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "a.yaml"), limit(1))
	h := watch(t, dir, quick)

	// A second file, and a deleted one.
	write(t, filepath.Join(dir, "b.yml"), strings.Replace(limit(7), "domain: d", "domain: e", 1))
	h.says("INFO rules are in force", "files=2")
	do(t, os.Remove(filepath.Join(dir, "b.yml")))
	h.says("INFO rules are in force", "files=1")

	// Files that are none of rules change nothing.
	write(t, filepath.Join(dir, ".hidden.yaml"), "[")
	write(t, filepath.Join(dir, "a_test.yaml"), "[")
	write(t, filepath.Join(dir, "a.yaml~"), "[")
	do(t, os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o700))
	write(t, filepath.Join(dir, "a.yaml"), limit(2))
	h.becomes(2)

	// Emptied, gone, and back: only the last changes the rules.
	do(t, os.Remove(filepath.Join(dir, "a.yaml")))
	h.says("ERROR", "no rule files")
	do(t, os.RemoveAll(dir))
	h.says("ERROR", "no such file")
	if got := count(h.w.Current()); got != 2 {
		t.Errorf("the limit is %d", got)
	}
	do(t, os.Mkdir(filepath.Join(root, "next"), 0o700))
	write(t, filepath.Join(root, "next", "a.yaml"), limit(3))
	do(t, os.Rename(filepath.Join(root, "next"), dir))
	h.becomes(3)
	// What is in the new directory is followed too.
	write(t, filepath.Join(dir, "a.yaml"), limit(4))
	h.becomes(4)
}

// configMap writes files as the kubelet does: a directory for each version, a link ..data to it that is swapped, and links through
// ..data, of the first elements of paths. The version before is removed, sooner or later.
func configMap(t *testing.T, dir, version string, soon bool, files map[string]string) {
	t.Helper()
	for name, text := range files {
		do(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, version, name)), 0o700))
		write(t, filepath.Join(dir, version, name), text)
		first, _, _ := strings.Cut(name, "/")
		if err := os.Symlink(filepath.Join("..data", first), filepath.Join(dir, first)); !errors.Is(err, os.ErrExist) {
			do(t, err)
		}
	}
	old, _ := os.Readlink(filepath.Join(dir, "..data"))
	do(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	do(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if old != "" && soon {
		do(t, os.RemoveAll(filepath.Join(dir, old)))
	}
}

func TestConfigMapSwap(t *testing.T) {
	for _, c := range []struct{ name, file, path string }{
		{"directory", "a.yaml", ""}, {"one file of it", "a.yaml", "a.yaml"}, {"items with paths", "team/a.yaml", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			// The link to the second file dangles once the next version is there:
			// the kubelet takes it away later.
			configMap(t, dir, "..2024_01", false, map[string]string{c.file: limit(1), "b.yaml": "domain: e\n"})
			h := watch(t, filepath.Join(dir, c.path), quick)
			for n := 2; n < 6; n++ {
				configMap(t, dir, fmt.Sprintf("..2024_%02d", n), n%2 == 0, map[string]string{c.file: limit(n)})
				h.becomes(int64(n))
			}
			if s := h.w.Status(); s.LastError != nil || s.Skipped != nil {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestReread: changes are found without any sign too. A file that is written by its name in another directory
// gives none.
func TestReread(t *testing.T) {
	root := t.TempDir()
	dir, other := filepath.Join(root, "rules"), filepath.Join(root, "other")
	do(t, os.Mkdir(dir, 0o700))
	do(t, os.Mkdir(other, 0o700))
	write(t, filepath.Join(dir, "a.yaml"), limit(1))
	do(t, os.Link(filepath.Join(dir, "a.yaml"), filepath.Join(other, "b.yaml")))
	h := watch(t, dir, rulefiles.Config{Reread: 20 * time.Millisecond})
	h.reads(2) // the first one finds what changed since Open
	write(t, filepath.Join(other, "b.yaml"), limit(2))
	h.becomes(2)
}

// TestChangeBeforeRun: what changes between Open and Run is not missed.
func TestChangeBeforeRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	write(t, path, limit(1))
	w, err := rulefiles.Open(path, quick, slog.New(make(lines, 100)))
	do(t, err)
	write(t, path, limit(2))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.OnChange(func(*rules.Set) { cancel() })
	stop := time.AfterFunc(patience, cancel)
	defer stop.Stop()
	do(t, w.Run(ctx))
	if got := count(w.Current()); got != 2 {
		t.Errorf("the limit is %d", got)
	}
}

// TestReload reads at once: notifications and intervals are out of the way.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	write(t, path, limit(1))
	h := watch(t, path, rulefiles.Config{Debounce: time.Hour, Reread: time.Hour})
	h.hasRead(1) // at the start; Run has the debounce ahead of it
	reloads := func(changed, valid bool, want int64) {
		t.Helper()
		is, err := h.w.Reload(t.Context())
		if got := count(h.w.Current()); is != changed || err == nil != valid || got != want {
			t.Errorf("%v, %v, limit %d; want %v, valid %v, %d", is, err, got, changed, valid, want)
		}
	}
	write(t, path, limit(2))
	reloads(true, true, 2)
	reloads(false, true, 2)
	write(t, path, "domain: [")
	reloads(false, false, 2)
	write(t, path, limit(3))
	reloads(true, true, 3)
}

func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	write(t, bad, "domain: [\n")
	for _, c := range []struct {
		path   string
		config rulefiles.Config
		want   string
	}{
		{filepath.Join(dir, "none"), quick, "no such file"},
		{bad, quick, bad + ":1: not YAML"},
		{bad, rulefiles.Config{Debounce: -1}, "Debounce: must not be negative"},
		{bad, rulefiles.Config{Reread: -1}, "Reread: must not be negative"},
	} {
		w, err := rulefiles.Open(c.path, c.config, slog.New(make(lines, 100)))
		if w != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, %v; want %s", w, err, c.want)
		}
	}
}

// TestWarningsAreLogged with their place.
func TestWarningsAreLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	write(t, path, strings.Replace(limit(1), "key: a", "key: a*\n    value: 10.0.0.0/9", 1))
	h := watch(t, path, quick)
	h.says("WARN rule file: * is a wildcard in value only", "file="+path, "line=3", "key=d/a*=10.0.0.0/9.key")
	h.says("WARN rule file: a network is compared as text and matches no address", "file="+path, "line=4", "key=d/a*=10.0.0.0/9.value")
}
