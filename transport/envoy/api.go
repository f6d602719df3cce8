// Package envoy is the API for Envoy: its rate limit service
// envoy.service.ratelimit.v3.RateLimitService on a *grpc.Server that the caller makes and
// serves, in Envoy's own published types.
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
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
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
	pass, rejected := a.config.Guard.Call(ctx, limiter.EnvoyAPI)
	if rejected == nil {
		rejected = may(&pass, req)
	}
	if rejected != nil {
		return nil, errorOf(rejected, "")
	}
	if f := fault(req); f != nil {
		return nil, errorOf(f, f.Field)
	}
	b := limiter.NewBatch()
	defer b.Release()
	b.API, b.Busy, b.Account = limiter.EnvoyAPI, !a.config.Admit(), pass.Account()
	if a.config.Tracing {
		b.Traceparent = transport.Traceparent(ctx)
	}
	a.ask(b, req)
	// An error of the call is in each result too.
	if err := a.config.Limiter.Check(ctx, b); err != nil && len(b.Results) != len(b.Checks) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	var refunds []int
	if a.config.AllOrNothing {
		refunds = readRefunds(b, req)
	}
	if err := failure(b); err != nil {
		return nil, err
	}
	settleUndecided(b, req)
	denied := exceeded(b)
	if len(refunds) > 0 && !denied {
		a.refund(ctx, b, req, refunds)
	}
	return a.answer(b, req, denied), nil
}

// may returns why the caller may not make req, or nil. One descriptor that is not granted rejects the request, before
// anything is charged.
func may(pass *access.Pass, req *ratelimitv3.RateLimitRequest) *limiter.Error {
	if pass.Open() {
		return nil
	}
	for i := range req.GetDescriptors() {
		verb, _ := spends(req, i)
		if rejected := pass.May(access.VerbOf(verb), req.GetDomain()); rejected != nil {
			return rejected
		}
	}
	return nil
}

// readRefunds returns the places of the refunds in b, an all-or-nothing batch, which has only read them: they are never over.
func readRefunds(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) (places []int) {
	for i := range b.Results {
		r := &b.Results[i]
		if verb, _ := spends(req, i); verb == bucket.Refund && limited(r) {
			r.Allowed, r.RetryAfter = true, 0
			places = append(places, i)
		}
	}
	return places
}

// refund refunds the descriptors at places, once the rest of req has been admitted, and replaces their results.
func (a *API) refund(ctx context.Context, b *limiter.Batch, req *ratelimitv3.RateLimitRequest, places []int) {
	back := limiter.NewBatch()
	defer back.Release()
	back.API, back.Traceparent = limiter.EnvoyAPI, b.Traceparent
	for _, i := range places {
		add(back, req, i)
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
func settleUndecided(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) {
	for i := range b.Results {
		r := &b.Results[i]
		if verb, _ := spends(req, i); r.Err == nil || verb == bucket.Refund && r.Err.Code != limiter.Invalid {
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
// before undecided ones.
func failure(b *limiter.Batch) error {
	var first *limiter.Error
	at := 0
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err == nil || r.Limits != nil {
			return nil
		}
		if first == nil || r.Err.Code < first.Code {
			first, at = r.Err, i
		}
	}
	path := first.Field
	if path != "domain" { // which is the request's
		path = strings.TrimSuffix(fmt.Sprintf("descriptors[%d].%s", at, path), ".")
	}
	return errorOf(first, path)
}
