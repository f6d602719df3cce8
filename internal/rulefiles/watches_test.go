package rulefiles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"

	"github.com/sluicecluster/sluice/rules"
)

// TestWatchesDoNotPileUp: a link that is swapped many times leaves no watch on
// versions that it led to, though they are still there.
func TestWatchesDoNotPileUp(t *testing.T) {
	n, err := fsnotify.NewWatcher()
	do(t, err)
	defer n.Close()
	root, err := filepath.EvalSymlinks(t.TempDir())
	do(t, err)
	link := filepath.Join(root, "current")
	w := watches{notifier: n}
	for _, version := range []string{"v1", "v2", "v3"} {
		dir := filepath.Join(root, version)
		do(t, os.Mkdir(dir, 0o700))
		do(t, os.WriteFile(filepath.Join(dir, "a.yaml"), nil, 0o600))
		do(t, os.Symlink(version, link+".new"))
		do(t, os.Rename(link+".new", link))
		w.begin()
		_, _, err := read(link, w.see)
		do(t, err)
		w.end()
		got := slices.DeleteFunc(n.WatchList(), func(d string) bool { return !strings.HasPrefix(d, root) })
		slices.Sort(got)
		if want := []string{root, dir}; !slices.Equal(got, want) {
			t.Errorf("watched are %v, want %v", got, want)
		}
	}
}

// swapper swaps a link in the moment in which its directory begins to be watched,
// as late as can be without a notification.
type swapper struct {
	*fsnotify.Watcher
	dir  string
	swap func()
}

func (s swapper) Add(dir string) error {
	if dir == s.dir {
		s.swap()
	}
	return s.Watcher.Add(dir)
}

// TestSwapBeforeTheWatch: what the link leads to is watched, though nothing told
// that it was swapped.
func TestSwapBeforeTheWatch(t *testing.T) {
	n, err := fsnotify.NewWatcher()
	do(t, err)
	defer n.Close()
	root, err := filepath.EvalSymlinks(t.TempDir())
	do(t, err)
	link := filepath.Join(root, "current")
	for _, version := range []string{"v1", "v2"} {
		do(t, os.Mkdir(filepath.Join(root, version), 0o700))
	}
	do(t, os.Symlink("v1", link))
	swapped := false
	w := watches{notifier: swapper{Watcher: n, dir: root, swap: func() {
		if swapped {
			return
		}
		swapped = true
		if err := os.Remove(link); err != nil {
			t.Error(err)
		}
		if err := os.Symlink("v2", link); err != nil {
			t.Error(err)
		}
	}}}
	w.begin()
	_, err = find(link, w.see)
	do(t, err)
	w.end()
	if v2 := filepath.Join(root, "v2"); !slices.Contains(n.WatchList(), v2) {
		t.Errorf("watched are %v, not %s, to which the link leads", n.WatchList(), v2)
	}
}

// TestConcerns: a busy directory around the rules does not have them read.
func TestConcerns(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	do(t, err)
	file, link, dir := filepath.Join(root, "r.yaml"), filepath.Join(root, "up", "rules", "deep", "r.yaml"), filepath.Join(root, "rules")
	for _, d := range []string{filepath.Join(root, "rules", "deep"), filepath.Join(root, "up")} {
		do(t, os.MkdirAll(d, 0o700))
	}
	do(t, os.Symlink("../rules", filepath.Join(root, "up", "rules")))
	for _, f := range []string{file, filepath.Join(dir, "deep", "r.yaml")} {
		do(t, os.WriteFile(f, nil, 0o600))
	}
	for _, c := range []struct {
		path, event string
		op          fsnotify.Op
		want        bool
	}{
		{file, file, fsnotify.Write, true},
		{file, file, fsnotify.Chmod, false},
		{file, file, fsnotify.Chmod | fsnotify.Write, true},
		{file, file + "~", fsnotify.Create, false},
		{file, root, fsnotify.Remove, true},
		{link, filepath.Join(root, "up", "rules"), fsnotify.Create, true},
		{link, filepath.Join(root, "up", "other"), fsnotify.Create, false},
		{link, filepath.Join(dir, "deep"), fsnotify.Rename, true},
		{link, filepath.Join(dir, "deep", "r.yaml"), fsnotify.Write, true},
		{link, filepath.Join(dir, "r.yaml"), fsnotify.Write, false},
		{dir, filepath.Join(dir, "new.yaml"), fsnotify.Create, true},
		{dir, filepath.Join(dir, "deep", "new.yaml"), fsnotify.Create, true},
		{dir, dir, fsnotify.Create, true},
		{dir, file, fsnotify.Write, false},
	} {
		w := watches{notifier: nowhere{}}
		w.begin()
		_, err := find(c.path, w.see)
		do(t, err)
		if got := w.concerns(fsnotify.Event{Name: c.event, Op: c.op}); got != c.want {
			t.Errorf("%s and %s of %s: %v, want %v", c.path, c.op, c.event, got, c.want)
		}
	}
}

// nowhere is a notifier that watches nothing.
type nowhere struct{}

func (nowhere) Add(string) error    { return nil }
func (nowhere) Remove(string) error { return nil }
func (nowhere) WatchList() []string { return nil }

// Read is read for the tests of the package from outside.
func Read(path string) ([]rules.File, []Skipped, error) { return read(path, visitNone) }

// do fails the test if a step of it cannot be done.
func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
