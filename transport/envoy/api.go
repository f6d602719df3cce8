// Package envoy is the API for Envoy: its rate limit service
// envoy.service.ratelimit.v3.RateLimitService on a *grpc.Server that the caller makes and
// serves, in Envoy's own published types, and beside it that of Kuadrant, kuadrant.service.ratelimit.v1.RateLimitService.
//
// It translates requests and responses and decides the overall code; the limiter.Service matches rules and decides checks.
// docs/use/envoy.md is its reference and lists the differences from envoyproxy/ratelimit. It starts no goroutine.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Config configures an API.
type Config struct {
	// Limiter decides checks. Required.
	Limiter limiter.Service
	// Guard authenticates and authorizes callers. nil admits all.
	Guard *access.Guard
	// Admit reports whether the node has time for a call. Other calls get the fallback of their rules. nil admits all.
	Admit func() bool
	// Tracing: callers' traceparent is read.
	Tracing bool
	// AllOrNothing charges all descriptors of a request or none. Otherwise each is charged by itself, and a denied one uses
	// up what remains, as in envoyproxy/ratelimit.
	AllOrNothing bool
	// ResponseHeaders adds RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to Envoy's response to its client.
	ResponseHeaders bool
	// DynamicMetadata hands the request and the rules' metadata to Envoy's next filters.
	DynamicMetadata bool
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	if c.Limiter == nil {
		return errors.New("envoy: Limiter is required")
	}
	return nil
}

// Method is the full name of what Envoy calls.
const Method = ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName

// API answers Envoy. It is safe for concurrent use.
type API struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	config Config
}

// New returns an API.
func New(c Config) (*API, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Admit == nil {
		c.Admit = func() bool { return true }
	}
	return &API{config: c}, nil
}

// ShouldRateLimit implements ratelimitv3.RateLimitServiceServer. An error is a gRPC status, and no limit applies to any
// descriptor then; InvalidArgument names the field. A leaving node still responds: gRPC's GOAWAY sends Envoy to another, and
// an error might let the request pass.
func (a *API) ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return a.decide(ctx, req, spends)
}

// decide decides req, and charges its hits.
func (a *API) decide(ctx context.Context, req *ratelimitv3.RateLimitRequest, hits hitsOf) (*ratelimitv3.RateLimitResponse, error) {
	b, err := a.enter(ctx, req, hits)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	a.ask(b, req, hits)
	err = a.config.Limiter.Check(ctx, b)
	var refunds []int
	if a.config.AllOrNothing {
		refunds = readRefunds(b, req, hits)
	}
	if err := failure(b, err); err != nil {
		return nil, err
	}
	settleUndecided(b, req, hits)
	denied := exceeded(b)
	if len(refunds) > 0 && !denied {
		a.refund(ctx, b, req, hits, refunds)
	}
	return a.answer(b, req, denied), nil
}

// enter admits a call of req, and returns its empty batch, which must be released.
func (a *API) enter(ctx context.Context, req *ratelimitv3.RateLimitRequest, hits hitsOf) (*limiter.Batch, error) {
	pass, rejected := a.config.Guard.Call(ctx, limiter.EnvoyAPI)
	if rejected == nil {
		rejected = may(&pass, req, hits)
	}
	if rejected != nil {
		return nil, errorOf(rejected, "")
	}
	if f := fault(req); f != nil {
		return nil, errorOf(f, f.Field)
	}
	b := limiter.NewBatch()
	b.API, b.Busy, b.Account, b.OneRequest = limiter.EnvoyAPI, !a.config.Admit(), pass.Account(), true
	b.Traceparent = a.traceparent(ctx)
	return b, nil
}

// traceparent is the caller's, if it is read.
func (a *API) traceparent(ctx context.Context) string {
	if !a.config.Tracing {
		return ""
	}
	return transport.Traceparent(ctx)
}

// may returns why the caller may not make req, or nil. One descriptor that is not granted rejects the request, before
// anything is charged.
func may(pass *access.Pass, req *ratelimitv3.RateLimitRequest, hits hitsOf) *limiter.Error {
	if pass.Open() {
		return nil
	}
	for i := range req.GetDescriptors() {
		verb, _ := hits(req, i)
		if rejected := pass.May(access.VerbOf(verb), req.GetDomain()); rejected != nil {
			return rejected
		}
	}
	return nil
}

// readRefunds returns the places of the refunds in b, an all-or-nothing batch, which has only read them: they are never over.
func readRefunds(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, hits hitsOf) (places []int) {
	for i := range b.Results {
		r := &b.Results[i]
		if verb, _ := hits(req, i); verb == bucket.Refund && limited(r) {
			r.Allowed, r.RetryAfter = true, 0
			places = append(places, i)
		}
	}
	return places
}

// refund refunds the descriptors at places, once the rest of req has been admitted, and replaces their results.
func (a *API) refund(ctx context.Context, b *limiter.Batch, req *ratelimitv3.RateLimitRequest, hits hitsOf, places []int) {
	back := limiter.NewBatch()
	defer back.Release()
	back.API, back.Traceparent = limiter.EnvoyAPI, b.Traceparent
	for _, i := range places {
		add(back, req, i, hits)
	}
	// An error of the call is in each result too.
	_ = a.config.Limiter.Check(ctx, back)
	for j, i := range places {
		b.Results[i] = back.Results[j]
	}
}

// undecidedRetry is the retry time of a descriptor without a decision.
const undecidedRetry = time.Second

// settleUndecided decides descriptors with an error, each by itself: an error of the call makes Envoy pass the request under
// failure_mode_deny: false, so one bad descriptor must not cause one. Rules with on_failure: open or in shadow mode admit.
// Other rules deny, and so do limits of descriptors and invalid descriptors. Refunds that failed stay undecided.
func settleUndecided(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, hits hitsOf) {
	for i := range b.Results {
		r := &b.Results[i]
		if verb, _ := hits(req, i); r.Err == nil || verb == bucket.Refund && r.Err.Code != limiter.Invalid {
			continue
		}
		r.Err = nil
		if r.Rule != nil && (r.Rule.Shadow || r.Rule.OnFailure == rules.FailOpen) {
			r.Allowed, r.Source = true, check.Open
			continue
		}
		r.Allowed, r.Source, r.RetryAfter = false, check.Closed, undecidedRetry
	}
}

// failure returns the error of the call where no descriptor has a decision, and no limit applies to any: invalid ones go
// before undecided ones. An err of the limiter is in each result too, unless there are none.
func failure(b *limiter.Batch, err error) error {
	if err != nil && len(b.Results) != len(b.Checks) {
		return status.Error(codes.Internal, err.Error())
	}
	at := 0
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err == nil || r.Limits != nil {
			return nil
		}
		if r.Err.Code < b.Results[at].Err.Code {
			at = i
		}
	}
	return errorAt(b.Results[at].Err, at)
}

// errorAt returns e, about descriptor i, as a gRPC status.
func errorAt(e *limiter.Error, i int) error {
	path := e.Field
	if path != "domain" { // which is the request's
		path = strings.TrimSuffix(fmt.Sprintf("descriptors[%d].%s", i, path), ".")
	}
	return errorOf(e, path)
}
