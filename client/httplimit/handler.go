// Package httplimit applies the limits of a sluice cluster to HTTP servers and clients in Go.
//
// Handler checks a request before it calls another handler, and Transport waits before it sends one. Keys make the
// descriptors: of the client's address, the user, an API key, the route, or anything else, together or separately.
//
// The package decides how a denial looks over HTTP. Package client decides the checks, also when no node answers.
package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/internal/admit"
	"github.com/sluice-project/sluice/internal/leaf/httpfield"
)

// Checker decides checks; *client.Client is one. With its method Refund, requests that leave a leaky queue give their
// place back.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
	CheckAll(ctx context.Context, checks []client.Check) ([]client.Decision, error)
}

// Config configures Handler.
type Config struct {
	// Domain holds the rules. Required.
	Domain string
	// Keys make the descriptors of a request, one each. Several are an atomic batch. Requests to which none applies pass.
	// Required, at least one.
	Keys []Key
	// Cost is how many units a request spends; nil means 1. Requests of cost 0 or less pass.
	Cost func(r *http.Request) int64
	// Skip lets requests pass without a check, for example health checks. nil skips none.
	Skip func(r *http.Request) bool
	// MaxWait is how long a denied request may wait for the limit, and an admitted one in a leaky queue. A request that
	// would wait longer, or beyond its context's deadline, is denied at once; so 0 denies requests that a queue delays.
	MaxWait time.Duration
	// Shadowban answers denied requests with 200 and ShadowBody, and does not call the handler. No response has headers
	// about limits then, since a client could tell by their absence.
	Shadowban  bool
	ShadowBody string
	// NoHeaders leaves the headers about limits out; denials keep Retry-After.
	NoHeaders bool
	// Denied answers denied requests; headers about the limit are set. nil answers with the rule's response, else with 429
	// and a problem (RFC 9457).
	Denied func(w http.ResponseWriter, r *http.Request, d client.Decision)
	// Failed answers requests when the Checker returned an error and the request has not ended; it may call the handler
	// next. nil calls next: the limit is not worth an outage.
	Failed func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)
	// MaxBody caps bodies in bytes: a request with a larger Content-Length gets 413, and reading more fails. 0 is no cap.
	MaxBody int64
}

func (c *Config) validate() error {
	switch {
	case c.Domain == "":
		return errors.New("httplimit: Domain is required")
	case len(c.Keys) == 0:
		return errors.New("httplimit: Keys is empty; want at least one")
	case c.MaxWait < 0:
		return errors.New("httplimit: MaxWait is negative")
	case c.MaxBody < 0:
		return errors.New("httplimit: MaxBody is negative")
	}
	return nil
}

// Handler returns a middleware that checks limits. The error names the invalid field of c.
func Handler(checker Checker, c Config) (func(http.Handler) http.Handler, error) {
	if checker == nil {
		return nil, errors.New("httplimit: the Checker is nil")
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	limiter := admit.New(checker, c.MaxWait)
	return func(next http.Handler) http.Handler { return &gate{Config: c, limiter: limiter, next: next} }, nil
}

// gate checks limits and calls next.
type gate struct {
	Config
	limiter *admit.Gate
	next    http.Handler
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.MaxBody > 0 {
		if r.ContentLength > g.MaxBody {
			write(w, problem{
				Title: "Content too large", Status: http.StatusRequestEntityTooLarge,
				Detail: fmt.Sprintf("the body has more than %d bytes", g.MaxBody),
			})
			return
		}
		if r.Body != nil {
			// In the request itself: net/http deletes the files of uploads there, not in a copy.
			r.Body = http.MaxBytesReader(w, r.Body, g.MaxBody)
		}
	}
	checks := g.checks(r)
	if len(checks) == 0 {
		g.next.ServeHTTP(w, r)
		return
	}
	d, err := g.limiter.Check(r.Context(), checks...)
	switch {
	case err != nil && r.Context().Err() != nil:
		// The client has gone. The handler is not called: closing the connection must not bypass the limit.
		w.WriteHeader(http.StatusServiceUnavailable)
	case err != nil && g.Failed != nil:
		g.Failed(w, r, g.next, err)
	case err != nil:
		g.next.ServeHTTP(w, r)
	case d.Allowed:
		g.describe(w.Header(), &d)
		g.next.ServeHTTP(w, r)
	default:
		g.deny(w, r, &d)
	}
}

// checks returns the checks of r.
func (g *gate) checks(r *http.Request) []client.Check {
	if g.Skip != nil && g.Skip(r) {
		return nil
	}
	cost := int64(1)
	if g.Cost != nil {
		if cost = g.Cost(r); cost <= 0 {
			return nil
		}
	}
	checks := make([]client.Check, 0, len(g.Keys))
	for _, k := range g.Keys {
		if entries, ok := k(r); ok && len(entries) > 0 {
			checks = append(checks, client.Check{Domain: g.Domain, Descriptor: entries, Cost: cost})
		}
	}
	return checks
}

// quotaExceeded is the problem type of draft-ietf-httpapi-ratelimit-headers-11.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// problem is the body of a denial (RFC 9457).
type problem struct {
	Type     string   `json:"type,omitempty"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// deny answers a denied request.
func (g *gate) deny(w http.ResponseWriter, r *http.Request, d *client.Decision) {
	if g.Shadowban {
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(g.ShadowBody)) // an error means that the client has gone
		return
	}
	g.describe(w.Header(), d)
	if g.Denied != nil {
		g.Denied(w, r, *d)
		return
	}
	status := http.StatusTooManyRequests
	if d.Response != nil {
		if d.Response.Status != 0 {
			status = d.Response.Status
		}
		for _, h := range d.Response.Header {
			httpfield.Set(w.Header(), h.Name, h.Value)
		}
		if d.Response.Body != "" {
			if w.Header().Get("Content-Type") == "" {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(d.Response.Body))
			return
		}
	}
	p := problem{Type: quotaExceeded, Title: "Quota exceeded", Status: status, Detail: "try again later"}
	if d.RetryAfter == client.Never {
		p.Detail = "the cost is more than the limit can ever admit"
	}
	if d.Rule != "" {
		p.Violated = []string{string(appendName(nil, d))}
	}
	write(w, p)
}

func write(w http.ResponseWriter, p problem) {
	body, _ := json.Marshal(p) // of strings and numbers, so there is no error
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// Waiter waits until a check is admitted; *client.Client is one.
type Waiter interface {
	Wait(ctx context.Context, c client.Check) (client.Decision, error)
}

// Transport is an http.RoundTripper that sends a request once its limits admit it: to keep the limits of an external API,
// across all processes that use it. The request's context bounds the wait. A request that is not admitted fails with the
// Waiter's error.
type Transport struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Waiter, Domain and Key are required. Requests to which Key does not apply are sent at once.
	Waiter Waiter
	Domain string
	Key    Key
	// Cost is how many units a request spends; nil means 1.
	Cost func(r *http.Request) int64
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.wait(r); err != nil {
		if r.Body != nil {
			r.Body.Close() // as RoundTrip must, also when it fails
		}
		return nil, err
	}
	if t.Base == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	return t.Base.RoundTrip(r)
}

func (t *Transport) wait(r *http.Request) error {
	if t.Waiter == nil || t.Domain == "" || t.Key == nil {
		return errors.New("httplimit: a Transport needs Waiter, Domain and Key")
	}
	entries, ok := t.Key(r)
	if !ok || len(entries) == 0 {
		return nil
	}
	check := client.Check{Domain: t.Domain, Descriptor: entries}
	if t.Cost != nil {
		if check.Cost = t.Cost(r); check.Cost <= 0 {
			return nil
		}
	}
	if _, err := t.Waiter.Wait(r.Context(), check); err != nil {
		return fmt.Errorf("httplimit: %s %s: %w", r.Method, r.URL.Redacted(), err)
	}
	return nil
}
