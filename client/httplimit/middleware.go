// Package httplimit applies the limits of a limit.Limiter to HTTP servers and clients in Go.
//
// Middleware checks a request before it calls a handler, and NewTransport waits before it sends one. Keys make the
// descriptors: of the client's address, the user, an API key, the route, or anything else, together or separately.
//
// The package decides how a denial looks over HTTP. The Limiter decides the checks, also when no node answers.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicecluster/sluice/client/internal/gate"
	"github.com/sluicecluster/sluice/client/limit"
)

// Config configures Middleware and NewTransport.
type Config struct {
	// Domain holds the rules. Required.
	Domain string
	// Keys make the descriptors of a request, one each. Several are one decision: all are allowed, or nothing is spent.
	// Requests to which none applies are not limited. Required, at least one.
	Keys []Key
	// Amount is how many units a request spends; nil means 1. Requests of amount 0 or less are not limited.
	Amount func(r *http.Request) int64
	// Skip reports whether a request is not limited, for example a health check. nil skips none.
	Skip func(r *http.Request) bool
	// MaxWait is how long a request may wait for the limit, and in a leaky queue. One that would wait longer, or beyond its
	// context's deadline, is denied at once. 0 denies at once whatever would wait; in a Transport it is as long as the context allows.
	MaxWait time.Duration
	// ChargeIf is how many units a request costs by the status of its response. What it has spent before is given back, or more
	// is charged, when the handler has returned: so parallel requests cannot exceed the limit. nil: the status does not matter.
	// The rule needs cache_denials: false, so that units that were given back count at once.
	ChargeIf func(status int) int64
	// InFlight limits how many requests are handled at a time, in Middleware only: each takes a slot of rules with algorithm: concurrency
	// until its handler has returned, and waits for it MaxWait, in order of arrival. Several Keys are one decision after another. The
	// request's context ends when no node has renewed the slot. The Limiter must be a limit.Slots, and ChargeIf nil.
	InFlight bool
	// Failed reports whether a request passes that the Limiter has returned an error for, since the check is invalid, not permitted, or
	// the Limiter is closed. If not, it is denied as by limit.FailClosed, with the error as Decision.Degraded: with 429, which
	// Denied can change to 503 where Degraded is set. nil passes it and logs the error once a minute.
	Failed func(ctx context.Context, err error) bool

	// Denied answers denied requests, like the other fields below only in Middleware; headers about the limit are set. nil answers
	// RPCs of gRPC, gRPC-Web and Connect with the code resource_exhausted, and others with the rule's response, else with 429 and
	// a problem (RFC 9457).
	Denied func(w http.ResponseWriter, r *http.Request, d limit.Decision)
	// Shadowban answers denied requests with 200 and ShadowBody, and does not call the handler. No response has headers
	// about limits then, since a client could tell by their absence.
	Shadowban  bool
	ShadowBody string
	// NoHeaders leaves the headers about limits out; denials keep Retry-After.
	NoHeaders bool
	// MaxBody caps bodies in bytes: a request with a larger Content-Length gets 413, and reading more fails. 0 is no cap.
	MaxBody int64
}

func (c *Config) gate() *gate.Gate[*http.Request, Key] {
	return gate.New("httplimit", c.Domain, c.Keys, c.Amount, c.Skip, c.MaxWait, c.Failed, c.ChargeIf != nil)
}

// Validate returns an error that names the invalid field of c, or nil. Middleware and NewTransport panic with it, as
// http.HandleFunc does: call it first where c comes from a configuration file.
func (c *Config) Validate() error {
	if c.MaxBody < 0 {
		return errors.New("httplimit: MaxBody is negative")
	}
	if c.InFlight && c.ChargeIf != nil {
		return errors.New("httplimit: ChargeIf does not go with InFlight, which charges nothing")
	}
	return c.gate().Validate()
}

// Middleware returns a middleware that checks requests.
func Middleware(l limit.Limiter, c Config) func(http.Handler) http.Handler {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	g := c.gate().Open(l, false)
	if _, ok := l.(limit.Slots); c.InFlight && !ok {
		panic("httplimit: InFlight needs a limit.Slots, as a *sluice.Client is")
	}
	return func(next http.Handler) http.Handler { return &handler{c, g, next} }
}

// handler checks requests and calls next.
type handler struct {
	Config
	gate *gate.Gate[*http.Request, Key]
	next http.Handler
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.MaxBody > 0 {
		if r.ContentLength > h.MaxBody {
			detail := fmt.Sprintf("the body has more than %d bytes", h.MaxBody)
			writeProblem(w, problem{Title: "Content too large", Status: http.StatusRequestEntityTooLarge, Detail: detail})
			return
		}
		if r.Body != nil {
			// In the request itself: net/http deletes the files of uploads there, not in a copy.
			r.Body = http.MaxBytesReader(w, r.Body, h.MaxBody)
		}
	}
	var buf [1]limit.Check // most requests have one
	checks := h.gate.Checks(buf[:0], r)
	if h.InFlight {
		h.hold(w, r, checks)
		return
	}
	d, spent, err := h.gate.Admit(r.Context(), checks)
	switch {
	case err != nil:
		// The client has gone. The handler is not called: closing the connection must not bypass the limit.
		w.WriteHeader(http.StatusServiceUnavailable)
	case !d.Allowed:
		h.deny(w, r, &d)
	case len(spent) == 0:
		h.describe(w.Header(), &d)
		h.next.ServeHTTP(w, r)
	default:
		h.describe(w.Header(), &d)
		o := &outcome{ResponseWriter: w}
		h.next.ServeHTTP(o, r)
		o.begin(http.StatusOK)
		h.gate.Settle(r.Context(), spent, h.ChargeIf(o.status))
	}
}

// hold calls next while a slot is held.
func (h *handler) hold(w http.ResponseWriter, r *http.Request, checks []limit.Check) {
	d, ctx, release, err := h.gate.Hold(r.Context(), checks)
	defer release()
	switch {
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable)
	case !d.Allowed:
		h.deny(w, r, &d)
	default:
		h.describe(w.Header(), &d)
		held := r.WithContext(ctx)
		h.next.ServeHTTP(w, held)
		r.MultipartForm = held.MultipartForm // whose files net/http deletes
	}
}
