package rulefiles

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fsnotify/fsnotify"
)

// TestWatchesDoNotPileUp: a link that is swapped many times leaves no watch on
// versions that it led to, though they are still there.
func TestWatchesDoNotPileUp(t *testing.T) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(root, "current")
	w := watches{notifier: n}
	for _, version := range []string{"v1", "v2", "v3"} {
		dir := filepath.Join(root, version)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(version, link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
		w.follow(link)
		got := n.WatchList()
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
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(root, "current")
	for _, version := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(root, version), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("v1", link); err != nil {
		t.Fatal(err)
	}
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
	w.follow(link)
	if v2 := filepath.Join(root, "v2"); !slices.Contains(n.WatchList(), v2) {
		t.Errorf("watched are %v, not %s, to which the link leads", n.WatchList(), v2)
	}
}

// TestConcerns: a busy directory around the rules does not have them read.
func TestConcerns(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, dir := filepath.Join(root, "r.yaml"), filepath.Join(root, "rules")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
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
		{file, filepath.Join(root, "..data"), fsnotify.Create, true},
		{file, root, fsnotify.Remove, true},
		{dir, filepath.Join(dir, "new.yaml"), fsnotify.Create, true},
		{dir, dir, fsnotify.Create, true},
		{dir, file, fsnotify.Write, false},
	} {
		w := watches{names: whereabouts(c.path)}
		if got := w.concerns(fsnotify.Event{Name: c.event, Op: c.op}); got != c.want {
			t.Errorf("%s and %s of %s: %v, want %v", c.path, c.op, c.event, got, c.want)
		}
	}
}
