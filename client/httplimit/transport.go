package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicecluster/sluice/client/internal/gate"
	"github.com/sluicecluster/sluice/client/limit"
)

// NewTransport returns an http.RoundTripper that sends a request by base once its limits admit it: to keep the limits of an
// external API, across all processes that use it. nil is http.DefaultTransport. A request that is not admitted fails with
// limit.ErrDenied, or one of its kinds.
func NewTransport(l limit.Limiter, base http.RoundTripper, c Config) http.RoundTripper {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	if c.Denied != nil || c.Shadowban || c.NoHeaders || c.MaxBody != 0 {
		panic(errors.New("httplimit: Denied, Shadowban, NoHeaders and MaxBody are not for NewTransport"))
	}
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{c, c.gate().Open(l, true), base}
}

type transport struct {
	Config
	gate *gate.Gate[*http.Request, Key]
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	d, spent, err := t.gate.Admit(r.Context(), t.gate.Checks(nil, r))
	if err == nil && !d.Allowed {
		err = cause(&d, t.MaxWait)
	}
	if err != nil {
		if r.Body != nil {
			r.Body.Close() // as RoundTrip must, also when it fails
		}
		return nil, fmt.Errorf("httplimit: %s %s: %w", r.Method, r.URL.Redacted(), err)
	}
	res, err := t.base.RoundTrip(r)
	if err == nil && len(spent) > 0 {
		t.gate.Settle(r.Context(), spent, t.ChargeIf(res.StatusCode))
	}
	return res, err
}

// cause returns why a request was denied that might wait for the time most.
func cause(d *limit.Decision, most time.Duration) error {
	switch {
	case d.Degraded != nil:
		return fmt.Errorf("%w: %w", limit.ErrDenied, d.Degraded)
	case d.Verdict == limit.VerdictNever:
		return limit.ErrNever
	case most > 0:
		return limit.ErrDenied
	}
	return limit.ErrWouldExceedDeadline
}
