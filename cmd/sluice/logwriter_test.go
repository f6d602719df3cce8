package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// stuckWriter keeps lines, and does not return before open is closed.
type stuckWriter struct {
	open chan struct{}
	strings.Builder
}

func (w *stuckWriter) Write(line []byte) (int, error) {
	<-w.open
	return w.Builder.Write(line)
}

// TestLogWriterDoesNotWait: a reader of the log that reads nothing stops no caller, and keeps no
// node from its end. What is queued comes in order when it reads again.
func TestLogWriterDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, stuck := range []bool{true, false} {
			w := &stuckWriter{open: make(chan struct{})}
			l := openLogWriter(w)
			var want strings.Builder
			line := []byte("first\n")
			for n := range 2000 {
				_, _ = l.Write(line)
				if n <= logQueue {
					want.Write(line)
				}
				synctest.Wait()
				line = fmt.Appendf(line[:0], "line %d\n", n)
			}
			if got := l.lost.Load(); got != 2000-1-logQueue {
				t.Errorf("%d lines were lost, want %d", got, 2000-1-logQueue)
			}
			if stuck {
				l.Close()
				close(w.open)
			} else {
				close(w.open)
				l.Close()
			}
			<-l.done
			if w.String() != want.String() {
				t.Errorf("stuck %v: other lines were written: %d bytes, want %d", stuck, w.Len(), want.Len())
			}
		}
	})
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestLogWriterCountsErrors: a line that cannot be written is lost.
func TestLogWriterCountsErrors(t *testing.T) {
	l := openLogWriter(failingWriter{})
	for range 3 {
		_, _ = l.Write([]byte("line\n"))
	}
	l.Close()
	if got := l.lost.Load(); got != 3 {
		t.Errorf("%d lines were lost, want 3", got)
	}
}
