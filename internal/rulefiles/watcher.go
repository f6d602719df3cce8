// Package rulefiles reads rule files for package rules from a file or a directory, watches them, and keeps the newest valid
// set. Load and Open start no goroutine; a Watcher works on the goroutine that calls Run, and fsnotify's end with it.
package rulefiles

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sluicecluster/sluice/rules"
)

// Config of a Watcher. The zero value is the default.
type Config struct {
	Rules rules.Options
	// Debounce is the time from the first notification to reading, so that a change of several files is read once. 0 means 100 ms.
	Debounce time.Duration
	// Reread is the time between readings without notification, which network file systems may not send. 0 means 30 s.
	Reread time.Duration
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Debounce < 0:
		return fmt.Errorf("Debounce: must not be negative: %s", c.Debounce)
	case c.Reread < 0:
		return fmt.Errorf("Reread: must not be negative: %s", c.Reread)
	}
	return nil
}

// Status is the outcome of reading, for health and metrics.
type Status struct {
	// Generation counts the sets that came into force, 1 for the first.
	Generation uint64
	// LoadedAt is when the set in force was read.
	LoadedAt time.Time
	// LastError is the error of the files as they are now, nil if they are in force.
	LastError error
	// Failures counts the different errors since Open, Readings how often the files were read since.
	Failures, Readings uint64
	// Skipped are the files of the directory that are not read.
	Skipped []Skipped
}

// Watcher keeps the rules at a path current. Invalid or missing files leave the rules in force as they are.
type Watcher struct {
	path    string
	config  Config
	log     *slog.Logger
	asked   chan chan<- struct{} // from Reload to Run
	current atomic.Pointer[rules.Set]
	// sum is of the files in force. Run's goroutine only.
	sum [sha256.Size]byte

	mu struct {
		sync.Mutex
		status   Status
		onChange []func(*rules.Set)
	}
}

// Open reads the rules at path, a file or a directory, and fails if they are invalid. The Watcher needs no closing; Run keeps
// it current.
func Open(path string, c Config, log *slog.Logger) (*Watcher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Debounce = cmp.Or(c.Debounce, 100*time.Millisecond)
	c.Reread = cmp.Or(c.Reread, 30*time.Second)
	w := &Watcher{path: path, config: c, log: log, asked: make(chan chan<- struct{})}
	if err := w.load(visitNone); err != nil {
		return nil, err
	}
	return w, nil
}

// Current returns the rules in force, never nil.
func (w *Watcher) Current() *rules.Set { return w.current.Load() }

// Status returns the outcome of reading so far.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.status
}

// OnChange has Run's goroutine call f with every set that comes into force from now on. Current returns the set already.
func (w *Watcher) OnChange(f func(*rules.Set)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.onChange = append(w.mu.onChange, f)
}

// Run follows changes until ctx ends, and returns nil then. It must be called once at most. Without notifications from the
// system, whose number is limited, it still reads at intervals.
func (w *Watcher) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	var lost chan error
	var watched watches
	if n, err := fsnotify.NewWatcher(); err != nil {
		w.log.Warn("rule files cannot be watched, they are read at intervals instead", "path", w.path, "every", w.config.Reread, "error", err)
	} else {
		defer n.Close()
		events, lost, watched.notifier = n.Events, n.Errors, n
	}
	reread := time.NewTicker(w.config.Reread)
	defer reread.Stop()
	// The first reading finds what changed since Open.
	due := time.NewTimer(0)
	defer due.Stop()
	pending := true
	look := func() {
		watched.begin()
		w.reload(watched.see)
		watched.end()
	}
	for {
		wait := w.config.Debounce
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if !watched.concerns(e) {
				continue
			}
		case err := <-lost:
			w.log.Warn("notifications about rule files were lost, they are read again", "path", w.path, "error", err)
		case <-reread.C:
			wait = 0
		case <-due.C:
			pending = false
			look()
			continue
		case done := <-w.asked:
			look()
			close(done)
			continue
		}
		if !pending {
			due.Reset(wait)
			pending = true
		}
	}
}

// Reload has Run read the files now, and waits for it. It reports whether other rules came into force, and the error of the files
// if they are invalid.
func (w *Watcher) Reload(ctx context.Context) (changed bool, err error) {
	before, done := w.Status().Generation, make(chan struct{})
	select {
	case w.asked <- done:
		<-done
	case <-ctx.Done():
		return false, ctx.Err()
	}
	s := w.Status()
	return s.Generation != before, s.LastError
}

// load reads the files and puts them in force if they are valid and new.
func (w *Watcher) load(visit visitor) error {
	files, skipped, err := read(w.path, visit)
	if err != nil {
		return err
	}
	w.skip(skipped)
	sum := sumOf(files)
	if w.current.Load() != nil && sum == w.sum {
		return nil
	}
	set, err := rules.Parse(files, w.config.Rules)
	if err != nil {
		return err
	}
	w.sum = sum
	w.current.Store(set)
	w.mu.Lock()
	w.mu.status.Generation++
	w.mu.status.LoadedAt = time.Now()
	w.mu.Unlock()
	w.log.Info("rules are in force", "path", w.path, "files", len(files), "domains", len(set.Domains()), "rules", len(set.Rules()))
	for _, warning := range set.Warnings() {
		w.log.Warn("rule file: "+warning.Text, "file", warning.File, "line", warning.Line, "key", warning.Path)
	}
	return nil
}

// reload is load for files that may have changed. It reports the outcome.
func (w *Watcher) reload(visit visitor) {
	before := w.Status()
	err := w.load(visit)

	w.mu.Lock()
	w.mu.status.LastError = err
	w.mu.status.Readings++
	again := err != nil && before.LastError != nil && err.Error() == before.LastError.Error()
	if err != nil && !again {
		w.mu.status.Failures++
	}
	changed := w.mu.status.Generation != before.Generation
	listeners := w.mu.onChange
	w.mu.Unlock()

	switch {
	case again:
	case err != nil:
		w.logErrors(err)
	case changed:
		for _, f := range listeners {
			f(w.Current())
		}
	case before.LastError != nil:
		w.log.Info("rule files are valid again and as they are in force", "path", w.path)
	}
}

// skip notes the files that are not read, and logs them if they have changed.
func (w *Watcher) skip(files []Skipped) {
	w.mu.Lock()
	same := slices.Equal(files, w.mu.status.Skipped)
	w.mu.status.Skipped = files
	w.mu.Unlock()
	if same {
		return
	}
	const most = 10
	for _, f := range files[:min(most, len(files))] {
		w.log.Warn("a file beside the rules is not read", "file", f.File, "reason", f.Reason)
	}
	if more := len(files) - most; more > 0 {
		w.log.Warn("more files beside the rules are not read; `sluice rules check` lists them", "path", w.path, "files", more)
	}
}

// logErrors logs the first errors with their lines.
func (w *Watcher) logErrors(err error) {
	const kept = "rule files are invalid, the rules in force stay"
	list := rules.Errors(err)
	if len(list) == 0 {
		w.log.Error(kept, "path", w.path, "error", err)
	}
	const most = 10
	for _, e := range list[:min(most, len(list))] {
		w.log.Error(kept, "file", e.File, "line", e.Line, "key", e.Path, "reason", e.Reason)
	}
	if more := len(list) - most; more > 0 {
		w.log.Error(kept, "path", w.path, "more_errors", more)
	}
}

// sumOf returns a hash of the files' names and contents.
func sumOf(files []rules.File) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, f := range files {
		h.Write(binary.AppendUvarint(nil, uint64(len(f.Name))))
		h.Write([]byte(f.Name))
		h.Write(binary.AppendUvarint(nil, uint64(len(f.Data))))
		h.Write(f.Data)
	}
	h.Sum(sum[:0])
	return sum
}

// notifier is an fsnotify.Watcher.
type notifier interface {
	Add(dir string) error
	Remove(dir string) error
	WatchList() []string
}

// watches is the set of directories where changes of the rules show. Files are never watched: editors and Kubernetes replace
// them, and a watch would follow the old file.
type watches struct {
	notifier notifier // nil without notifications
	// names has the names that matter in each watched directory; nil means all.
	names map[string][]string
}

// begin starts anew: until end, see is called with each place that matters.
func (w *watches) begin() { w.names = make(map[string][]string) }

// see watches a name in dir, or with the name "" all names. It must be called before a look at the place, which then finds
// earlier changes; later ones are notified.
func (w *watches) see(dir, name string) {
	if w.notifier == nil {
		return
	}
	names, seen := w.names[dir]
	if !seen {
		// It fails if the directory is gone, which its parent reports, or if there are too many watches: the files are read at
		// intervals too. Adding it again follows a directory that was replaced.
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
