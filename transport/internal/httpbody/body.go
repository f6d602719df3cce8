// Package httpbody reads bodies of HTTP requests within the memory that the node has for them. What
// a body means is for the APIs to decide.
package httpbody

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/sluicecluster/sluice/internal/inflow"
)

// Most is the most bytes of a body.
const Most = 4 << 20

// keep is the largest buffer that is kept for the next body.
const keep = 1 << 20

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Read reads the body of r, of at most most bytes, and calls f with it, which is gone when f
// returns. What f makes of it takes what s says until the request ends. The error is of type
// *http.MaxBytesError or *inflow.TooLarge, or inflow.ErrNoMemory, or another of reading, or that of
// f.
func Read(w http.ResponseWriter, r *http.Request, most int64, m *inflow.Memory, s Shape, f func(body []byte) error) error {
	if r.ContentLength > most {
		return &http.MaxBytesError{Limit: most}
	}
	size := r.ContentLength
	if size < 0 {
		size = most
	}
	raw, err := m.Body(r.Context(), size)
	if err != nil {
		return err
	}
	defer raw.Release()
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keep {
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, most)); err != nil {
		return err
	}
	body := buf.Bytes()
	if len(body) > inflow.SmallMessage {
		held, err := m.Take(r.Context(), s.cost(body), "")
		if err != nil {
			return err
		}
		context.AfterFunc(r.Context(), held.Release)
	}
	return f(body)
}

// Status is the status of an error of Read: 413, or 503 if the request may be sent again. ok is
// false for other errors.
func Status(err error) (status int, text string, ok bool) {
	_, large := errors.AsType[*inflow.TooLarge](err)
	switch {
	case large:
		return http.StatusRequestEntityTooLarge, err.Error(), true
	case errors.Is(err, inflow.ErrNoMemory):
		return http.StatusServiceUnavailable, err.Error(), true
	}
	return 0, "", false
}

// Shape says what a JSON text takes when it is decoded.
type Shape struct {
	// Objects are those within 1, 2, … objects. Deeper ones are part of those.
	Objects []Object
	// Text is what each text takes besides its bytes.
	Text int64
}

// Object is what objects at one depth take: Bytes each, of which those beyond the first Most in the
// object around them are skipped. Most 0 means that none is.
type Object struct {
	Bytes int64
	Most  int
}

// cost returns what body takes, without its own bytes.
func (s Shape) cost(body []byte) (cost int64) {
	var counts [8]int // of objects at each depth since the last one around them
	depth := 0        // of objects
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			begin := i
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
			cost += s.Text + int64(i-begin)
		case '{':
			if depth > 0 && depth <= len(s.Objects) {
				o := s.Objects[depth-1]
				if counts[depth-1]++; o.Most == 0 || counts[depth-1] <= o.Most {
					cost += o.Bytes
				}
				clear(counts[depth:])
			}
			depth++
		case '}':
			depth = max(0, depth-1)
		}
	}
	return cost
}
