// Package httpapi is the HTTP API: checks as JSON with the rate limit headers that HTTP clients know, the member list, and
// the probes. docs/use/api.md is its reference.
//
// It decides status codes, headers and bodies, and that an operator's call comes from this machine; checks are the
// limiter.Service's. It starts no goroutine.
package httpapi

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
)

// Config configures the API.
type Config struct {
	// Limiter decides checks. Required.
	Limiter limiter.Service
	// Guard authenticates and authorizes callers, except those of probes and metrics. nil admits all.
	Guard *access.Guard
	// Ready reports whether this node may get traffic, and if not, why: it has joined, has rules, and is not leaving. It
	// must not depend on other nodes. Required.
	Ready func() (ok bool, reasons []string)
	// RulesError returns why the newest rule files are not in force, for /healthz. nil means no error.
	RulesError func() error
	// RulesSkipped returns the files beside the rules that are not read, each with the reason, for /healthz. May be nil.
	RulesSkipped func() []string
	// Regions returns what is wrong with other regions, a line each, for /healthz. May be nil.
	Regions func() []string
	// Metrics serves GET /metrics. May be nil.
	Metrics http.Handler
	// CheckTimeout is how long the Limiter looks for the owner of a key; clients learn it.
	CheckTimeout time.Duration
	// Memory bounds the memory of bodies, with that of other APIs. nil bounds nothing.
	Memory *inflow.Memory
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Limiter == nil:
		return errors.New("httpapi: Limiter is required")
	case c.Ready == nil:
		return errors.New("httpapi: Ready is required")
	}
	return nil
}

// api has the handlers of all paths.
type api struct{ Config }

// New returns the API.
func New(c Config) (http.Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for _, e := range (&api{c}).endpoints() {
		e.mount(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpanswer.Reject(w, httpanswer.NewProblem(http.StatusNotFound, "there is nothing at this path; the API is described at "+limiter.DocsURL+"use/api.md"))
	})
	return mux, nil
}

// Only is api, the handler of New, at those paths alone.
func Only(api http.Handler, paths ...string) http.Handler {
	mux := http.NewServeMux()
	for _, path := range paths {
		mux.Handle(path, api)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpanswer.Reject(w, httpanswer.NewProblem(http.StatusNotFound, "this port has only "+strings.Join(paths, ", ")))
	})
	return mux
}

// endpoint is one method of a path.
type endpoint struct {
	method, path string
	handle       handler
	// example is a body, of the calls of clients that have one.
	example string
}

// handler serves requests. Its errors are for problemOf.
type handler func(http.ResponseWriter, *http.Request) error

// oneCheck is the example of a check.
const oneCheck = `{"domain":"auth","descriptor":["user=ann"]}`

// endpoints returns all of the API. docs/openapi.yaml describes those that are not for operators.
func (d *api) endpoints() []endpoint {
	list := []endpoint{
		{http.MethodGet, "/v1/nodes", d.nodes, ""},
		{http.MethodPut, "/v1/pools/{domain}/{pool}/load", d.load, ""},
		{http.MethodPost, "/v1/reserve", d.reserve, `{"domain":"auth","descriptor":["user=ann"],"units":5}`},
		{http.MethodPost, "/v1/spend", d.spend(), `{"reservation":"ID","units":1}`},
		{http.MethodPost, "/v1/extend", d.extend(), `{"reservation":"ID","ttl":30}`},
		{http.MethodPost, "/v1/settle", d.settle(), `{"reservation":"ID","actual":3}`},
		{http.MethodPost, "/v1/held", d.held, oneCheck},
		{http.MethodGet, "/admin/v1alpha1/members", d.members, ""},
		{http.MethodPost, "/admin/v1alpha1/members/forget", d.forget, ""},
		{http.MethodGet, "/admin/v1alpha1/top", d.top, ""},
		{http.MethodGet, "/healthz", d.healthz, ""},
		{http.MethodGet, "/readyz", d.readyz, ""},
	}
	for verb := bucket.Check; verb <= bucket.Reset; verb++ {
		list = append(list, endpoint{http.MethodPost, "/v1/" + verb.String(), d.decide(verb), oneCheck})
	}
	if d.Metrics != nil {
		list = append(list, endpoint{http.MethodGet, "/metrics", func(w http.ResponseWriter, r *http.Request) error {
			d.Metrics.ServeHTTP(w, r)
			return nil
		}, ""})
	}
	return list
}

// mount serves e, and rejects other methods of its path, and calls that its handler returns an error of.
func (e endpoint) mount(mux *http.ServeMux) {
	allow := e.method
	if e.method == http.MethodGet {
		allow += ", " + http.MethodHead // ServeMux serves both
	}
	mux.HandleFunc(e.method+" "+e.path, func(w http.ResponseWriter, r *http.Request) {
		if err := e.handle(w, r); err != nil {
			httpanswer.Reject(w, problemOf(err))
		}
	})
	mux.HandleFunc(e.path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allow)
		want := "want " + allow
		if e.example != "" {
			want += " with JSON, for example: curl -d '" + e.example + "' http://127.0.0.1:7461" + e.path
		}
		httpanswer.Reject(w, httpanswer.NewProblem(http.StatusMethodNotAllowed, want))
	})
}

// NewServer returns a server for h with time-outs against slow and silent clients. The caller serves and closes it.
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

// checks are what the parts of a body with checks take.
var checks = httpbody.Shape{Objects: []httpbody.Object{
	{Bytes: limiter.CheckBytes, Most: limiter.MaxChecks},
	{Bytes: max(limiter.LimitBytes, limiter.EntryBytes), Most: limiter.MaxEntries + bucket.MaxLimits + 2},
}, Text: 16}

// withBody reads the body and calls f with it; it is gone when f returns.
func (d *api) withBody(w http.ResponseWriter, r *http.Request, f func(body []byte) error) error {
	return httpbody.Read(w, r, httpbody.Most, d.Memory, checks, f)
}

const (
	maxDrained   = 64 << 10
	drainedUntil = time.Second
)

// Drained wraps h to read and drop the rest of an HTTP/2 body before the response ends, up to 64 KiB and for at most a
// second. net/http does so for HTTP/1 only; for HTTP/2 it resets the stream, and nginx then drops the response with the
// reason of a rejection.
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
