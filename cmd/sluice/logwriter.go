package main

import (
	"io"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// logQueue is the most lines that wait for the reader of the log.
	logQueue = 1024
	// logFlush is how long Close waits for it.
	logFlush = time.Second
)

// logWriter writes the lines of a log in order. No caller waits for the reader of the log: one that
// reads nothing must not stop a node. Lines that cannot be written, or find the queue full, are
// counted.
type logWriter struct {
	lost       atomic.Uint64
	lines      chan []byte
	stop, done chan struct{}
}

// openLogWriter returns a logWriter on w. It must be closed.
func openLogWriter(w io.Writer) *logWriter {
	l := &logWriter{
		lines: make(chan []byte, logQueue), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run(w)
	return l
}

func (l *logWriter) run(w io.Writer) {
	defer close(l.done)
	write := func(line []byte) {
		if _, err := w.Write(line); err != nil {
			l.lost.Add(1)
		}
	}
	for {
		select {
		case line := <-l.lines:
			write(line)
			continue
		default:
		}
		select {
		case line := <-l.lines:
			write(line)
		case <-l.stop:
			return
		}
	}
}

// Write queues one line.
func (l *logWriter) Write(line []byte) (int, error) {
	select {
	case l.lines <- slices.Clone(line):
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

// Close waits until the queued lines are written, but not for a reader that reads nothing. Later
// lines are not written.
func (l *logWriter) Close() {
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(logFlush):
	}
}
