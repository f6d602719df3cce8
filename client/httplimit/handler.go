package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/internal/admit"
)

// Checker decides; *client.Client is one. If it has the method Refund of that too, requests that leave a leaky
// queue give their place back.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
	CheckAll(ctx context.Context, checks []client.Check) ([]client.Decision, error)
}

// Config says what Handler asks and how it answers.
type Config struct {
	// Domain holds the rules. Required.
	Domain string
	// Keys make the descriptors of a request, one each. Several are decided together, all or nothing. Requests to
	// which none applies pass. Required, at least one.
	Keys []Key
	// Cost is how many units a request spends; nil means 1. Requests of cost 0 or less pass.
	Cost func(r *http.Request) int64
	// Skip lets requests pass unasked, for example health checks. nil skips none.
	Skip func(r *http.Request) bool
	// MaxWait is how long a denied request may wait for the limit, and an admitted one in a leaky
	// queue. What would take longer, by the limit or by the deadline of the request's context, is denied at once; so
	// 0, which never waits, denies what a queue would have wait.
	MaxWait time.Duration
	// Shadowban answers denied requests with 200 and ShadowBody, as if all were well, and does not call
	// the handler. No answer has headers about limits then, since their end would give it away.
	Shadowban  bool
	ShadowBody string
	// NoHeaders leaves the headers about limits out of all answers; Retry-After stays where a request was denied.
	NoHeaders bool
	// Denied answers denied requests instead of this package; headers about the limit are set. nil answers with
	// the rule's own response, else 429 and a problem (RFC 9457).
	Denied func(w http.ResponseWriter, r *http.Request, d client.Decision)
	// Failed answers requests about which the Checker returned an error other than that the request has
	// ended; it is called with the handler, and may call it. nil calls it: the limit is not worth an outage.
	Failed func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)
	// MaxBody caps bodies in bytes: a request that announces more gets 413, and reading more fails. 0 is no cap.
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

// Handler returns what puts limits before a handler. The error says which field of c is wrong.
func Handler(checker Checker, c Config) (func(http.Handler) http.Handler, error) {
	if checker == nil {
		return nil, errors.New("httplimit: the Checker is nil")
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	asking := admit.New(checker, c.MaxWait)
	return func(next http.Handler) http.Handler { return &gate{Config: c, asking: asking, next: next} }, nil
}

// gate is a handler with limits before it.
type gate struct {
	Config
	asking *admit.Gate
	next   http.Handler
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.MaxBody > 0 {
		if r.ContentLength > g.MaxBody {
			tooLarge(w, g.MaxBody)
			return
		}
		if r.Body != nil {
			// In the request itself: net/http deletes the files of uploads that it finds there, not in a copy.
			r.Body = http.MaxBytesReader(w, r.Body, g.MaxBody)
		}
	}
	checks := g.checks(r)
	if len(checks) == 0 {
		g.next.ServeHTTP(w, r)
		return
	}
	d, err := g.asking.Ask(r.Context(), checks...)
	switch {
	case err != nil && r.Context().Err() != nil:
		// Nobody reads the answer. The handler is not called even so: to hang up would be a way around the limit.
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

// checks returns what is asked about r.
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
