package httpapi

import (
	"io"
	"net/http"
	"time"
)

const (
	maxDrained   = 64 << 10
	drainedUntil = time.Second
)

// Drained returns h, but that what h has not read of a body that comes by HTTP/2 is read and dropped before its answer ends, up to
// 64 KiB and for at most a second. The server of net/http does so for HTTP/1. For HTTP/2 it resets the stream, with STREAM_CLOSED where
// more of the body arrives: nginx then drops the answer, and its client does not learn why it was refused.
func Drained(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		b := &body{ReadCloser: r.Body}
		r.Body = b
		h.ServeHTTP(w, r)
		if !b.ended && http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainedUntil)) == nil {
			_, _ = io.CopyN(io.Discard, b, maxDrained)
		}
	})
}

// body is a request's body that knows when it has ended, or failed.
type body struct {
	io.ReadCloser
	ended bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	return n, err
}
