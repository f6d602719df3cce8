// Package reload follows files that are replaced while a program runs: certificates,
// keys, keyrings. It reads them at intervals rather than waiting for notifications, which
// get lost on network file systems and where a link far up the path is swapped, as
// Kubernetes does with mounted secrets.
//
// What the files mean it leaves to its caller, who judges new contents and puts them into
// force; contents that do not pass leave what is in force as it is. Open starts no goroutine;
// Files works on the goroutine that calls Run.
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
	// MaxBytes is the largest file that is taken.
	MaxBytes = 1 << 20
)

// Config of Files.
type Config struct {
	// What is what the files are in log lines, for example "gossip keyring". Required.
	What string
	// Paths are the files, at least one. They are one thing: all of them are read, and
	// judged together.
	Paths []string
	// Names are what the paths are called in errors, for example --tls-cert. Nil for nothing.
	Names []string
	// Every is the time between two readings. 0 means DefaultEvery.
	Every time.Duration
	// Take judges the files' contents, in the order of Paths, and puts them into force, or
	// returns why not and changes nothing. Open calls it, then Run does, one call at a
	// time. Required.
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

// Status tells how reading goes.
type Status struct {
	// Generation counts the contents that came into force, 1 for those of Open.
	Generation uint64
	// LastError is why the files as they are now are not in force, nil if they are.
	LastError error
	// Failures counts the different faults since Open.
	Failures uint64
}

// Files are followed from Open on. They need no closing.
type Files struct {
	config Config
	// Run's goroutine only: the contents in force, the faulty ones seen last, and how often
	// these were seen in a row.
	inForce, faulty [sha256.Size]byte
	sightings       int

	mu struct {
		sync.Mutex
		status Status
	}
}

// Open reads the files once and puts them into force. It fails if they cannot be read or do
// not pass: a program does not start with anything but what it was given.
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
	f := &Files{config: c}
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
			f.look()
		}
	}
}

// Status returns how reading goes.
func (f *Files) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.status
}

// look reads the files and puts them into force if they differ from what is. Files are
// replaced one after the other, so a fault counts when a second look finds the same.
func (f *Files) look() {
	contents, err := f.config.read()
	sum := digest(contents)
	if err == nil && sum == f.inForce {
		f.settled("")
		return
	}
	if err != nil {
		sum = sha256.Sum256([]byte(err.Error()))
	}
	if f.sightings > 1 && sum == f.faulty {
		return // known, and said
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
	if sum != f.faulty {
		f.faulty, f.sightings = sum, 0
	}
	if f.sightings++; f.sightings > 1 {
		f.mu.Lock()
		f.mu.status.LastError = err
		f.mu.status.Failures++
		f.mu.Unlock()
		f.config.Log.Error(f.config.What+": the files have a fault; what was in force stays", "files", f.config.Paths, "error", err)
	}
}

// settled notes that the files are in force. It logs news, or that a fault is gone.
func (f *Files) settled(news string) {
	f.faulty, f.sightings = [sha256.Size]byte{}, 0
	f.mu.Lock()
	if f.mu.status.LastError != nil && news == "" {
		news = "the files are again what is in force"
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
		if contents[i], err = readFile(path); err != nil && c.Names != nil {
			return nil, fmt.Errorf("%s: %w", c.Names[i], err)
		} else if err != nil {
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
	defer func() { _ = file.Close() }() // it was only read
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

// digest tells contents from others.
func digest(contents [][]byte) [sha256.Size]byte {
	var all []byte
	for _, c := range contents {
		one := sha256.Sum256(c)
		all = append(all, one[:]...)
	}
	return sha256.Sum256(all)
}
