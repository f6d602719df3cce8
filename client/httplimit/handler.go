package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sluice-project/sluice/client"
)

// Checker decides; *client.Client is one.
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
	// queue; what would take longer is denied at once. 0 never waits, and an admitted request that is to wait
	// is told so by Retry-After.
	MaxWait time.Duration
	// Shadowban answers denied requests with 200 and ShadowBody, as if all were well, and does not call
	// the handler.
	Shadowban  bool
	ShadowBody string
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
	return func(next http.Handler) http.Handler { return &gate{Config: c, checker: checker, next: next} }, nil
}

// gate is a handler with limits before it.
type gate struct {
	Config
	checker Checker
	next    http.Handler
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.MaxBody > 0 {
		if r.ContentLength > g.MaxBody {
			tooLarge(w, g.MaxBody)
			return
		}
		if r.Body != nil {
			r.Body = http.MaxBytesReader(w, r.Body, g.MaxBody)
		}
	}
	checks := g.checks(r)
	if len(checks) == 0 {
		g.next.ServeHTTP(w, r)
		return
	}
	d, err := g.decide(r.Context(), checks)
	switch {
	case err != nil && r.Context().Err() != nil:
		// Nobody reads the answer.
		w.WriteHeader(http.StatusServiceUnavailable)
	case err != nil && g.Failed != nil:
		g.Failed(w, r, g.next, err)
	case err != nil:
		g.next.ServeHTTP(w, r)
	case d.Allowed:
		setHeaders(w.Header(), &d)
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
	var checks []client.Check
	for _, k := range g.Keys {
		if entries, ok := k(r); ok && len(entries) > 0 {
			checks = append(checks, client.Check{Domain: g.Domain, Descriptor: entries, Cost: cost})
		}
	}
	return checks
}

// decide asks until the checks are admitted, or would not be within MaxWait. An admitted request has waited
// for its queue.
func (g *gate) decide(ctx context.Context, checks []client.Check) (client.Decision, error) {
	left := g.MaxWait
	for {
		d, err := g.once(ctx, checks)
		if err != nil || g.MaxWait == 0 {
			return d, err
		}
		wait := d.Delay
		if !d.Allowed {
			wait = max(d.RetryAfter, time.Millisecond)
		}
		switch {
		case wait == 0:
			return d, nil
		case wait > left && !d.Allowed:
			return d, nil
		case wait > left: // charged, but it would come too late
			d.Allowed, d.RetryAfter = false, wait
			return d, nil
		}
		left -= wait
		if err := sleep(ctx, wait); err != nil {
			return d, err
		}
		if d.Allowed {
			return d, nil
		}
	}
}

// once asks once, and returns the decision that says most: the first that is denied, else the one with the least left.
func (g *gate) once(ctx context.Context, checks []client.Check) (client.Decision, error) {
	if len(checks) == 1 {
		return g.checker.Check(ctx, checks[0])
	}
	all, err := g.checker.CheckAll(ctx, checks)
	if err != nil {
		return client.Decision{}, err
	}
	return foremost(all), nil
}

// foremost returns the decision that takes longest to be admitted; when all are, the one with the least
// remaining, but with the longest delay.
func foremost(all []client.Decision) client.Decision {
	best := all[0]
	delay := best.Delay
	for _, d := range all[1:] {
		delay = max(delay, d.Delay)
		if d.Allowed != best.Allowed {
			if !d.Allowed {
				best = d
			}
			continue
		}
		if !d.Allowed && d.RetryAfter > best.RetryAfter || d.Allowed && d.Remaining < best.Remaining {
			best = d
		}
	}
	if best.Allowed {
		best.Delay = delay
	}
	return best
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
