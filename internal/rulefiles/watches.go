package rulefiles

import (
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

// watches is the set of directories that changes of the rules show in. Directories
// are watched, never files: editors and Kubernetes replace files, and a watch on a file
// follows the one that is gone.
type watches struct {
	notifier notifier // nil without notifications
	// names holds, for each watched directory, the names in it that matter;
	// nil means all.
	names map[string][]string
}

// begin starts anew: until end, see is called with each place that matters.
func (w *watches) begin() { w.names = make(map[string][]string) }

// see watches a name in dir, or with the name "" all names. It must be called before the place is looked at: a change
// before that is seen there, and one after it is notified.
func (w *watches) see(dir, name string) {
	if w.notifier == nil {
		return
	}
	names, seen := w.names[dir]
	if !seen {
		// It fails if the directory is gone, which its parent tells, or if there are too many watches: the
		// files are read at intervals too. Adding again is how a directory that was replaced is followed.
		_ = w.notifier.Add(dir)
	}
	switch {
	case name == "":
		w.names[dir] = nil
	case !seen || names != nil && !slices.Contains(names, name):
		w.names[dir] = append(names, name)
	}
}

// end ends the watches of directories that were not seen since begin.
func (w *watches) end() {
	if w.notifier == nil {
		return
	}
	for _, dir := range w.notifier.WatchList() {
		if _, ok := w.names[dir]; !ok {
			// It fails only if the directory went away, and the watch with it.
			_ = w.notifier.Remove(dir)
		}
	}
}

// concerns reports whether e may change what is read.
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
