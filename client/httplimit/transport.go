package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sluice-project/sluice/client"
)

// Waiter waits until a check is admitted; *client.Client is one.
type Waiter interface {
	Wait(ctx context.Context, c client.Check) (client.Decision, error)
}

// Transport is an http.RoundTripper that lets a request out once its limits admit it: to stay within what
// an API of somebody else allows, across all processes that use it. How long it waits is for the
// request's context to say. A request that is not admitted fails with the Waiter's error.
type Transport struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Waiter, Domain and Key are required. Requests to which Key does not apply go out at once.
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
