package httpapi

import (
	"bytes"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// MaxBody is the default cap on a request's body, in bytes.
const MaxBody = 4 << 20

// Config is what the door is made of.
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

// door is the handler of every path.
type door struct{ Config }

// New returns the door.
func New(c Config) (http.Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.MaxBody == 0 {
		c.MaxBody = MaxBody
	}
	d := &door{c}
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
		httpanswer.Refuse(w, httpanswer.NewProblem(http.StatusNotFound, "there is nothing at this path; see docs/api.md"))
	})
	return mux, nil
}

// route serves one method of a path and refuses the others in the same form as
// every other error.
func route(mux *http.ServeMux, method, path string, h http.HandlerFunc) {
	allow := method
	if method == http.MethodGet {
		allow += ", " + http.MethodHead // ServeMux serves both
	}
	mux.HandleFunc(method+" "+path, h)
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		httpanswer.Refuse(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, "want "+allow))
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
func (d *door) withBody(w http.ResponseWriter, r *http.Request, f func(body []byte) error) error {
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
