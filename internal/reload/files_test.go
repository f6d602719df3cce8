package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// logBook keeps what is logged, for the goroutine that reads it.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// followed are two files and what came into force of them.
type followed struct {
	*testing.T
	*Files
	a, b    string
	inForce atomic.Value // string
	early   atomic.Bool  // matching contents are not accepted yet
	log     logBook
}

var errBad = errors.New("they do not match")

// inBubble tells a story of the files a and b, which match when their contents are equal.
func inBubble(t *testing.T, story func(f *followed)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{T: t, a: filepath.Join(dir, "a"), b: filepath.Join(dir, "b")}
		f.write(f.a, "1")
		f.write(f.b, "1")
		var err error
		f.Files, err = Open(Config{
			What: "pair", Paths: []string{f.a, f.b}, Log: slog.New(slog.NewTextHandler(&f.log, nil)),
			Take: func(c [][]byte) error {
				if !bytes.Equal(c[0], c[1]) {
					return errBad
				}
				if f.early.Load() {
					return fmt.Errorf("too early: %w", ErrLater)
				}
				f.inForce.Store(string(c[0]))
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Files.Run(ctx) }()
		story(f)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (f *followed) write(path, text string) {
	f.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// pass lets so many readings happen, and checks what is in force after them.
func (f *followed) pass(readings int, want string, failures uint64) {
	f.Helper()
	time.Sleep(time.Duration(readings)*DefaultEvery + time.Millisecond)
	synctest.Wait()
	if s := f.Status(); f.inForce.Load() != want || s.Failures != failures {
		f.Errorf("%q is in force after %d failures, want %q after %d (%+v)\n%s", f.inForce.Load(), s.Failures, want, failures, s, f.log.String())
	}
}

func TestFollow(t *testing.T) {
	inBubble(t, func(f *followed) {
		f.pass(3, "1", 0)
		f.write(f.a, "2")
		f.write(f.b, "2")
		f.pass(1, "2", 0)
		if s := f.Status(); s.Generation != 2 || s.LastError != nil {
			t.Errorf("%+v", s)
		}
	})
}

// A reading between the replacing of the one and of the other is no fault.
func TestHalfReplaced(t *testing.T) {
	inBubble(t, func(f *followed) {
		f.write(f.a, "2")
		f.pass(1, "1", 0)
		f.write(f.b, "2")
		f.pass(1, "2", 0)
		if strings.Contains(f.log.String(), "ERROR") {
			t.Errorf("an error is logged:\n%s", f.log.String())
		}
	})
}

// TestLater: contents that are rejected for now are in force later, and are logged once.
func TestLater(t *testing.T) {
	inBubble(t, func(f *followed) {
		f.early.Store(true)
		f.write(f.a, "2")
		f.write(f.b, "2")
		f.pass(9, "1", 1)
		f.early.Store(false)
		f.pass(1, "2", 1)
		if n := strings.Count(f.log.String(), "too early"); n != 1 || f.Status().LastError != nil {
			t.Errorf("logged %d times, then %v", n, f.Status().LastError)
		}
	})
}

// A fault is said once, however long it lasts, and what was in force stays.
func TestFault(t *testing.T) {
	inBubble(t, func(f *followed) {
		f.write(f.a, "2")
		f.pass(20, "1", 1)
		if s := f.Status(); !errors.Is(s.LastError, errBad) {
			t.Errorf("LastError is %v", s.LastError)
		}
		if n := strings.Count(f.log.String(), "they do not match"); n != 1 {
			t.Errorf("the fault is logged %d times:\n%s", n, f.log.String())
		}
		f.write(f.a, "3")
		f.pass(3, "1", 2)
		f.write(f.a, "1")
		f.pass(1, "1", 2)
		if s := f.Status(); s.LastError != nil || !strings.Contains(f.log.String(), "as they are in force again") {
			t.Errorf("%+v\n%s", s, f.log.String())
		}
		// The first fault again is news again.
		f.write(f.a, "2")
		f.pass(3, "1", 3)
	})
}

// TestReload: no time passes, and an error counts at once and is logged once.
func TestReload(t *testing.T) {
	inBubble(t, func(f *followed) {
		reloads := func(changed bool, want error) {
			f.Helper()
			if is, err := f.Reload(f.Context()); is != changed || !errors.Is(err, want) {
				f.Errorf("Reload: %v, %v; want %v, %v", is, err, changed, want)
			}
		}
		reloads(false, nil)
		f.write(f.a, "2")
		reloads(false, errBad)
		reloads(false, errBad)
		f.pass(3, "1", 1)
		f.write(f.b, "2")
		reloads(true, nil)
		if got, n := f.inForce.Load(), strings.Count(f.log.String(), "they do not match"); got != "2" || n != 1 {
			t.Errorf("%q is in force, and the error is logged %d times", got, n)
		}
		// A first sighting at an interval, and then a reload: the error is logged too.
		f.write(f.a, "3")
		f.pass(1, "2", 1)
		reloads(false, errBad)
		f.pass(0, "2", 2)
	})
}

func TestFileGoneEmptyLarge(t *testing.T) {
	inBubble(t, func(f *followed) {
		if err := os.Remove(f.b); err != nil {
			t.Fatal(err)
		}
		f.pass(3, "1", 1)
		f.write(f.b, " \n")
		f.pass(3, "1", 2)
		if err := f.Status().LastError; err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("LastError is %v", err)
		}
		f.write(f.b, strings.Repeat("x", MaxBytes+1))
		f.pass(3, "1", 3)
		if err := f.Status().LastError; err == nil || !strings.Contains(err.Error(), "larger than") {
			t.Errorf("LastError is %v", err)
		}
		f.write(f.a, "4")
		f.write(f.b, "4")
		f.pass(1, "4", 3)
	})
}

func TestOpenRejects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	take := func([][]byte) error { return nil }
	for want, c := range map[string]Config{
		"What":           {Paths: []string{path}, Take: take},
		"Paths":          {What: "x", Take: take},
		"Names":          {What: "x", Paths: []string{path}, Names: []string{"a", "b"}, Take: take},
		"--flag: open":   {What: "x", Paths: []string{path + "2"}, Names: []string{"--flag"}, Take: take},
		"Every":          {What: "x", Paths: []string{path}, Take: take, Every: -1},
		"Take":           {What: "x", Paths: []string{path}},
		"no such file":   {What: "x", Paths: []string{path + "2"}, Take: take},
		"is a directory": {What: "x", Paths: []string{filepath.Dir(path)}, Take: take},
		"do not match":   {What: "x", Paths: []string{path}, Take: func([][]byte) error { return errBad }},
	} {
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
