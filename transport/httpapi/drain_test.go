package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// deadlines is a ResponseWriter that has the deadlines of an HTTP/2 stream.
type deadlines struct {
	*httptest.ResponseRecorder
	read time.Duration // until the deadline when it was set
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = time.Until(at)
	return nil
}

// TestDrained: what a handler leaves of a short body is read, with a deadline. TestOperatorsThroughProxies of cmd/sluice has nginx in between.
func TestDrained(t *testing.T) {
	for name, c := range map[string]struct {
		protocol, size, handler int // handler is how much the handler reads
		left                    int
		timed                   bool
	}{
		"short":              {2, 1000, 10, 0, true},
		"read by handler":    {2, 1000, 1001, 0, false},
		"long":               {2, maxDrained + 1000, 0, 1000, true},
		"HTTP/1 has its own": {1, 1000, 0, 1000, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			content := strings.NewReader(strings.Repeat("x", c.size))
			r.ProtoMajor, r.ContentLength, r.Body = c.protocol, -1, io.NopCloser(content)
			w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			Drained(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, int64(c.handler))
				w.WriteHeader(http.StatusUnauthorized)
			})).ServeHTTP(w, r)
			if content.Len() != c.left || w.Code != http.StatusUnauthorized {
				t.Errorf("%d bytes are left, want %d; status %d", content.Len(), c.left, w.Code)
			}
			if (w.read > 0) != c.timed || w.read > time.Second {
				t.Errorf("a deadline in %v", w.read)
			}
		})
	}
}
