// Package reload follows files that may be replaced while a program runs: certificates, keys, keyrings. It reads them at
// intervals: notifications are lost on network file systems, and where a link far up the path is swapped, as Kubernetes
// does with mounted secrets.
//
// The caller validates new contents and puts them into force; invalid contents change nothing. Open starts no goroutine; Files
// works on the goroutine that calls Run.
package reload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultEvery is how often files are read where Config does not say.
	DefaultEvery = 2 * time.Second
	// MaxBytes is the size of the largest file.
	MaxBytes = 1 << 20
)

// Config of Files.
type Config struct {
	// What names the files in log lines, for example "gossip keyring". Required.
	What string
	// Paths are the files, at least one. They are validated together.
	Paths []string
	// Names name the paths in errors, for example --tls-cert. Nil for paths alone.
	Names []string
	// Every is the time between two readings. 0 means DefaultEvery.
	Every time.Duration
	// Take validates the files' contents, in the order of Paths, and puts them into force, or returns an error and changes
	// nothing. Open calls it, then Run does, one call at a time. Required.
	Take func(contents [][]byte) error
	// Log gets a line when contents change. Nil logs nothing.
	Log *slog.Logger
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.What == "":
		return errors.New("reload: What: is empty")
	case len(c.Paths) == 0 || slices.Contains(c.Paths, ""):
		return errors.New("reload: Paths: want the path of at least one file")
	case c.Names != nil && len(c.Names) != len(c.Paths):
		return fmt.Errorf("reload: Names: %d for %d paths", len(c.Names), len(c.Paths))
	case c.Every < 0:
		return fmt.Errorf("reload: Every: %v is below 0", c.Every)
	case c.Take == nil:
		return errors.New("reload: Take: is nil")
	}
	return nil
}

// Status is the outcome of reading.
type Status struct {
	// Generation counts the contents that came into force, 1 for those of Open.
	Generation uint64
	// LastError is the error of the files as they are now, nil if they are in force.
	LastError error
	// Failures counts the different errors since Open.
	Failures uint64
}

// Files are followed from Open on. They need no closing.
type Files struct {
	config Config
	asked  chan chan<- struct{} // from Reload to Run
	// Run's goroutine only: the contents in force, the invalid ones seen last, and how often these were seen in a row.
	inForce, invalid [sha256.Size]byte
	sightings        int
	later            bool // the last error was ErrLater

	mu struct {
		sync.Mutex
		status Status
	}
}

// ErrLater is wrapped by an error of Take that may be gone later: Take is then called again although the contents are the same.
var ErrLater = errors.New("not in force until then")

// Open reads the files once and puts them into force. It fails if they cannot be read or are invalid.
func Open(c Config) (*Files, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Every == 0 {
		c.Every = DefaultEvery
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	f := &Files{config: c, asked: make(chan chan<- struct{})}
	contents, err := c.read()
	if err == nil {
		err = c.Take(contents)
	}
	if err != nil {
		return nil, err
	}
	f.inForce = digest(contents)
	f.mu.status.Generation = 1
	return f, nil
}

// Run reads the files at intervals until ctx ends, and then returns nil.
func (f *Files) Run(ctx context.Context) error {
	tick := time.NewTicker(f.config.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.look(1)
		case done := <-f.asked:
			f.look(loggedAt)
			close(done)
		}
	}
}

// Reload has Run read the files now, and waits for it. It reports whether other contents came into force, and the error of the
// files if they are invalid.
func (f *Files) Reload(ctx context.Context) (changed bool, err error) {
	before, done := f.Status().Generation, make(chan struct{})
	select {
	case f.asked <- done:
		<-done
	case <-ctx.Done():
		return false, ctx.Err()
	}
	s := f.Status()
	return s.Generation != before, s.LastError
}

// Status returns the outcome of reading so far.
func (f *Files) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.status
}

// loggedAt is how often the same error is seen before it counts: files are replaced one after the other.
const loggedAt = 2

// look reads the files and puts them into force if they have changed. An error that it finds has been seen weight times more.
func (f *Files) look(weight int) {
	contents, err := f.config.read()
	sum := digest(contents)
	if err == nil && sum == f.inForce {
		f.settled("")
		return
	}
	if err != nil {
		sum = sha256.Sum256([]byte(err.Error()))
	}
	if f.sightings >= loggedAt && sum == f.invalid && !f.later {
		return // logged before
	}
	if err == nil {
		err = f.config.Take(contents)
	}
	if err == nil {
		f.inForce = sum
		f.mu.Lock()
		f.mu.status.Generation++
		f.mu.Unlock()
		f.settled("new contents are in force")
		return
	}
	if sum != f.invalid {
		f.invalid, f.sightings = sum, 0
	}
	f.later = errors.Is(err, ErrLater)
	before := f.sightings
	if f.sightings += weight; before < loggedAt && f.sightings >= loggedAt {
		f.mu.Lock()
		f.mu.status.LastError = err
		f.mu.status.Failures++
		f.mu.Unlock()
		f.config.Log.Error(f.config.What+": the files are invalid; the contents in force stay", "files", f.config.Paths, "error", err)
	}
}

// settled notes that the files are in force. It logs news, or that an error is gone.
func (f *Files) settled(news string) {
	f.invalid, f.sightings = [sha256.Size]byte{}, 0
	f.mu.Lock()
	if f.mu.status.LastError != nil && news == "" {
		news = "the files are as they are in force again"
	}
	f.mu.status.LastError = nil
	f.mu.Unlock()
	if news != "" {
		f.config.Log.Info(f.config.What+": "+news, "files", f.config.Paths)
	}
}

// read returns the contents of the files.
func (c Config) read() ([][]byte, error) {
	contents := make([][]byte, len(c.Paths))
	for i, path := range c.Paths {
		var err error
		if contents[i], err = readFile(path); err != nil {
			if c.Names != nil {
				err = fmt.Errorf("%s: %w", c.Names[i], err)
			}
			return nil, err
		}
	}
	return contents, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	switch {
	case err != nil:
		return nil, err // names the path
	case len(text) > MaxBytes:
		return nil, fmt.Errorf("%s: is larger than %d bytes", path, MaxBytes)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%s: is empty", path)
	}
	return text, nil
}

// digest returns a hash of the files' hashes.
func digest(contents [][]byte) [sha256.Size]byte {
	var all []byte
	for _, c := range contents {
		one := sha256.Sum256(c)
		all = append(all, one[:]...)
	}
	return sha256.Sum256(all)
}
