package rulefiles

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// notifier is what watches need of an fsnotify.Watcher.
type notifier interface {
	Add(dir string) error
	Remove(dir string) error
	WatchList() []string
}

// watches is the set of directories that a path's changes show in. Directories
// are watched, never files: editors and Kubernetes replace files, and a watch on a file
// follows the one that is gone.
type watches struct {
	notifier notifier
	// names holds, for each watched directory, the names in it that matter;
	// nil means all.
	names map[string][]string
}

// follow watches what path leads to now.
func (w *watches) follow(path string) {
	if w.notifier == nil {
		return
	}
	path = absolute(path)
	// The parent comes first: a link that is swapped before the parent is watched
	// is resolved below as it is then, and one that is swapped later shows.
	// An error means that the parent is gone, or that there are too many watches:
	// files are read at intervals too.
	_ = w.notifier.Add(filepath.Dir(path))
	w.names = whereabouts(path)
	for _, dir := range w.notifier.WatchList() {
		if _, ok := w.names[dir]; !ok {
			// It fails only if the directory went away, and the watch with it.
			_ = w.notifier.Remove(dir)
		}
	}
	for dir := range w.names {
		// It fails if the directory is gone: its parent tells when it is back.
		// Adding again is how a directory that was replaced is followed.
		_ = w.notifier.Add(dir)
	}
}

// concerns reports whether e may change what the path holds.
func (w *watches) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	if _, ok := w.names[e.Name]; ok {
		return true // the directory itself
	}
	names, ok := w.names[filepath.Dir(e.Name)]
	return ok && (names == nil || slices.Contains(names, filepath.Base(e.Name)))
}

// whereabouts returns the directories in which changes of path show, and the names
// in each that matter: where the path's last element stands, which may be
// created, removed or a link that is swapped; and where it leads to. In a mounted
// ConfigMap it is ..data beside the files that is swapped.
func whereabouts(path string) map[string][]string {
	path = absolute(path)
	out := map[string][]string{filepath.Dir(path): {filepath.Base(path), "..data"}}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return out
	}
	if info, err := os.Stat(real); err == nil && info.IsDir() {
		out[real] = nil
		return out
	}
	dir := filepath.Dir(real)
	out[dir] = append(out[dir], filepath.Base(real))
	return out
}

// absolute returns path from the root on, and as it is where the working directory
// is not known.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}
