// Package httpapi is the HTTP API: a JSON form of checks with the rate limit
// headers that HTTP clients know, the member list and how one is taken off it, and the
// probes. docs/api.md is its reference.
//
// It decides status codes, headers and bodies, and that an operator's call comes from
// this machine; nothing about checks, which are the limiter.Service's. It starts no
// goroutine; net/http owns those it runs in.
package httpapi

import (
	"bytes"
	"encoding"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// MaxBody is the default cap on a request's body, in bytes.
const MaxBody = 4 << 20

// Config is what the API is made of.
type Config struct {
	// Limiter answers. Required.
	Limiter limiter.Service
	// Guard says who may ask; probes and metrics are for everybody. nil lets everybody in.
	Guard *access.Guard
	// Ready says whether this node is to be given traffic, and if not, why:
	// it has joined, has rules, and is not leaving. It must not depend on other
	// nodes being up. Required.
	Ready func() (ok bool, reasons []string)
	// RulesError returns why the newest rule files are not in force, nil if they
	// are. It is shown in /healthz. nil means that there is nothing to say.
	RulesError func() error
	// RulesSkipped returns the files beside the rules that are not read, each with the reason, also
	// for /healthz. nil means that there are none.
	RulesSkipped func() []string
	// Metrics serves GET /metrics. nil means there is none.
	Metrics http.Handler
	// MaxBody caps a body, in bytes. 0 means the constant MaxBody.
	MaxBody int64
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Limiter == nil:
		return errors.New("httpapi: Limiter is required")
	case c.Ready == nil:
		return errors.New("httpapi: Ready is required")
	case c.MaxBody < 0:
		return errors.New("httpapi: MaxBody is negative")
	}
	return nil
}

// API is the handler of every path.
type api struct{ Config }

// New returns the API.
func New(c Config) (http.Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.MaxBody == 0 {
		c.MaxBody = MaxBody
	}
	d := &api{c}
	mux := http.NewServeMux()
	route(mux, http.MethodPost, "/v1/check", d.check)
	route(mux, http.MethodPost, "/v1/reset", d.reset)
	route(mux, http.MethodGet, "/v1/members", d.members)
	route(mux, http.MethodPost, "/v1/members/forget", d.forget)
	route(mux, http.MethodGet, "/v1/top", d.top)
	route(mux, http.MethodPut, "/v1/pools/{domain}/{pool}/load", d.load)
	route(mux, http.MethodGet, "/healthz", d.healthz)
	route(mux, http.MethodGet, "/readyz", d.readyz)
	if c.Metrics != nil {
		route(mux, http.MethodGet, "/metrics", c.Metrics.ServeHTTP)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpanswer.Reject(w, httpanswer.NewProblem(http.StatusNotFound, "there is nothing at this path; see docs/api.md"))
	})
	return mux, nil
}

// route serves one method of a path and rejects the others in the same form as
// every other error.
func route(mux *http.ServeMux, method, path string, h http.HandlerFunc) {
	allow := method
	if method == http.MethodGet {
		allow += ", " + http.MethodHead // ServeMux serves both
	}
	mux.HandleFunc(method+" "+path, h)
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		httpanswer.Reject(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, "want "+allow))
	})
}

// NewServer returns a server for h with time-outs that slow or silent clients
// cannot outlast. The caller serves and closes it.
func NewServer(h http.Handler) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           Drained(h),
		Protocols:         &p,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      40 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

// bodies are buffers for what clients send.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// keepBody is the largest buffer that is kept for the next body.
const keepBody = 1 << 20

// withBody reads the body and calls f with it; it is gone when f returns.
func (d *api) withBody(w http.ResponseWriter, r *http.Request, f func(body []byte) error) error {
	buf := bodies.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keepBody {
			buf.Reset()
			bodies.Put(buf)
		}
	}()
	if r.ContentLength > d.MaxBody {
		return &http.MaxBytesError{Limit: d.MaxBody}
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, d.MaxBody)); err != nil {
		return err
	}
	return f(buf.Bytes())
}

// readWord reads a value by its name, which is that of rule files. A word that is
// no such name is the fault of c alone, so that the other checks are answered.
// field spells where, seen from the check.
func readWord[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](r *reader, c *limiter.Check, field func() string) (v T, err error) {
	word, err := r.text()
	if err != nil {
		return v, err
	}
	// Clipped, because the error repeats it; no name is as long as that.
	if err := P(&v).UnmarshalText([]byte(clip(word))); err != nil && c.Fault == nil {
		c.Fault = &limiter.Error{Code: limiter.Invalid, Field: field(), Message: err.Error()}
	}
	return v, nil
}

const (
	maxDrained   = 64 << 10
	drainedUntil = time.Second
)

// Drained returns h, but that what h has not read of a body that comes by HTTP/2 is read and dropped before its answer ends, up to
// 64 KiB and for at most a second. The server of net/http does so for HTTP/1. For HTTP/2 it resets the stream, with STREAM_CLOSED where
// more of the body arrives: nginx then drops the answer, and its client does not learn why it was rejected.
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
