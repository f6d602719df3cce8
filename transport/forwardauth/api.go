// Package forwardauth is the API for proxies that authorize each request before they pass it on: nginx's auth_request,
// Traefik's ForwardAuth, Caddy's forward_auth and Envoy's ext_authz over HTTP. It serves /v1/authorize/DOMAIN and all paths
// below. docs/use/forward-auth.md is its reference.
//
// It reads the original request, as far as the proxy is trusted, and makes checks of it by the key authorize of the domain's
// rule file. The limiter.Service decides them. A call that cannot be read or decided is rejected: never a 2xx. It starts no
// goroutine.
package forwardauth

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/deadline"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// Prefix begins the paths of the API. The domain follows.
const Prefix = "/v1/authorize/"

// Config configures an API.
type Config struct {
	// Limiter decides checks. Required.
	Limiter limiter.Service
	// Guard authenticates and authorizes proxies. nil admits all.
	Guard *access.Guard
	// Authorize returns the key authorize of a domain in the rules in force, nil if it has none. Required.
	Authorize func(domain string) *rules.Authorize
	// AssumeDeadline is how long proxies wait for an answer; 0 if that is not known. The header of a request may be that of the
	// proxy's client, so it is not asked.
	AssumeDeadline time.Duration
	// Leaving reports whether new calls are rejected, because the node is about to stop. nil means never.
	Leaving func() bool
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Limiter == nil:
		return errors.New("forwardauth: Limiter is required")
	case c.Authorize == nil:
		return errors.New("forwardauth: Authorize is required")
	}
	return nil
}

// API answers proxies. It is safe for concurrent use.
type API struct{ config Config }

// New returns an API.
func New(c Config) (*API, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Leaving == nil {
		c.Leaving = func() bool { return false }
	}
	return &API{config: c}, nil
}

// Before returns a handler that serves the API's paths and gives the rest to next. It stands before an http.ServeMux, not in
// one, which would redirect //login to /login.
func (a *API) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.EscapedPath(), Prefix) {
			next.ServeHTTP(w, r)
			return
		}
		a.ServeHTTP(w, r)
	})
}

// ServeHTTP serves one call, whose path begins with Prefix. Its body is not read.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.config.Leaving() {
		httpanswer.Reject(w, httpanswer.NewProblem(http.StatusServiceUnavailable, "this node is leaving; ask another"))
		return
	}
	domain, path := split(r.URL.EscapedPath())
	pass, rejected := a.config.Guard.Proxied(r, limiter.ForwardAuthAPI)
	if rejected == nil {
		rejected = pass.May(access.Check, domain)
	}
	if rejected != nil {
		reject(w, rejected)
		return
	}
	auth := a.config.Authorize(domain)
	if auth == nil {
		httpanswer.Reject(w, httpanswer.ProblemOf(&limiter.Error{
			Code: limiter.NotFound, Message: "no rule file in force has authorize for this domain; see " + limiter.DocsURL + "use/forward-auth.md",
		}))
		return
	}
	b := limiter.NewBatch()
	defer b.Release()
	b.API, b.Traceparent, b.Account = limiter.ForwardAuthAPI, r.Header.Get(transport.HeaderTraceparent), pass.Account()
	q := asked{rules: auth, call: r, path: path}
	if e := q.fill(b, domain); e != nil {
		httpanswer.Reject(w, httpanswer.ProblemOf(e))
		return
	}
	if len(b.Checks) == 0 {
		w.WriteHeader(http.StatusOK)
		return
	}
	ctx, cancel := deadline.Assume(r.Context(), a.config.AssumeDeadline)
	defer cancel()
	slot, err := a.config.Limiter.Reserve(ctx, b, limiter.ReserveRequest{Units: 1, Slots: true})
	if err != nil && len(b.Results) != len(b.Checks) {
		httpanswer.Reject(w, httpanswer.ProblemOf(err))
		return
	}
	if slot.ID != "" {
		w.Header().Set(slotHeader, slot.ID)
	}
	answer(w, auth, b)
}

// slotHeader of an allowed response has the ID of a slot, which /v1/settle ends before its deadline.
const slotHeader = "Sluice-Slot"

// rejectionHeader tells that the proxy itself was rejected, and not its client limited: a proxy passes a 401 or 403 on. Its
// value is the problem's code.
const rejectionHeader = "Sluice-Rejection"

// challenge is for the proxy. Bearer would challenge its client.
const challenge = access.TokenHeader + ` realm="sluice"`

// reject rejects a proxy.
func reject(w http.ResponseWriter, e *limiter.Error) {
	w.Header().Set(rejectionHeader, e.Code.String())
	if e.Code == limiter.Unauthenticated {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	httpanswer.Reject(w, httpanswer.ProblemOf(e))
}

// split returns the domain in the escaped path of a call, and the rest, which is "" or begins with a slash. A domain that
// cannot be decoded is "", which no file has.
func split(escaped string) (domain, path string) {
	domain = strings.TrimPrefix(escaped, Prefix)
	if i := strings.IndexByte(domain, '/'); i >= 0 {
		domain, path = domain[:i], domain[i:]
	}
	domain, _ = url.PathUnescape(domain) // "" if it fails
	return domain, path
}
