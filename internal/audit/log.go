package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Check is one check of a run, a line of its log. Times are Unix ns; their differences
// are those of a clock that never steps.
type Check struct {
	// Key is the value of the key's descriptor, Spec the place of its spec.
	Key  string `json:"key"`
	Spec int    `json:"spec"`
	// First is when it was sent first, Sent when the attempt was that Answered ended.
	First    int64 `json:"first_ns"`
	Sent     int64 `json:"sent_ns"`
	Answered int64 `json:"answered_ns"`
	// Node is the address that was asked last.
	Node string `json:"node"`
	// Decision is allowed, denied or error.
	Decision string `json:"decision"`
	// Source and Holder are the answer's, for example "forwarded" and "n2".
	Source string `json:"source,omitempty"`
	Holder string `json:"holder,omitempty"`
	// Ambiguous attempts may have been charged without an answer.
	Ambiguous int `json:"ambiguous,omitempty"`
	// Attempts are all calls that were made for it.
	Attempts int `json:"attempts"`
	// Error is that of the last failed attempt.
	Error string `json:"error,omitempty"`
}

// ReadLog calls f for each check of a log, in the order in which they were answered or nearly so.
func ReadLog(r io.Reader, f func(Check) error) error {
	dec := json.NewDecoder(bufio.NewReader(r))
	for line := 1; ; line++ {
		var c Check
		switch err := dec.Decode(&c); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("log: line %d: %w", line, err)
		}
		if err := f(c); err != nil {
			return err
		}
	}
}

// logWriter writes the log of all callers. Nil writes nothing.
type logWriter struct {
	mu struct {
		sync.Mutex
		out *bufio.Writer
		err error
	}
}

func newLogWriter(w io.Writer) *logWriter {
	if w == nil {
		return nil
	}
	l := &logWriter{}
	l.mu.out = bufio.NewWriterSize(w, 1<<16)
	return l
}

func (l *logWriter) write(c *Check) {
	line, err := json.Marshal(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.mu.err == nil {
		_, err = l.mu.out.Write(append(line, '\n'))
	}
	if l.mu.err == nil {
		l.mu.err = err
	}
}

// close flushes, and returns the first error that there was.
func (l *logWriter) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.mu.err, l.mu.out.Flush()); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}
