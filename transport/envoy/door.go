package envoy

import (
	"context"
	"errors"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
)

// Config is what a Door is made of.
type Config struct {
	// Limiter answers. Required.
	Limiter transport.Limiter
	// Guard says who may ask. nil lets everybody in.
	Guard *access.Guard
	// Leaving says whether new calls are to be refused, because the node is about to
	// stop. nil means never.
	Leaving func() bool
	// Tracing: callers' traceparent is read.
	Tracing bool
	// AllOrNothing charges all descriptors of a request or none. Otherwise each is charged
	// for itself, and one that is denied uses up what is left, as in envoyproxy/ratelimit.
	AllOrNothing bool
	// ResponseHeaders adds RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to
	// what Envoy sends to its client.
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

// Door answers Envoy. It is safe for concurrent use.
type Door struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	config Config
}

// New returns a Door.
func New(c Config) (*Door, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Leaving == nil {
		c.Leaving = func() bool { return false }
	}
	return &Door{config: c}, nil
}

// Register adds envoy.service.ratelimit.v3.RateLimitService to g, which must not serve yet.
func (d *Door) Register(g grpc.ServiceRegistrar) { ratelimitv3.RegisterRateLimitServiceServer(g, d) }

var errLeaving = status.Error(codes.Unavailable, "this node is leaving; ask another")

// ShouldRateLimit implements ratelimitv3.RateLimitServiceServer. An error is a gRPC status:
// InvalidArgument names the field at fault and nothing was charged; Unavailable and
// ResourceExhausted mean that nobody could decide.
func (d *Door) ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	if d.config.Leaving() {
		return nil, errLeaving
	}
	pass, refused := d.config.Guard.Call(ctx, transport.EnvoyDoor)
	if refused == nil {
		refused = may(&pass, req)
	}
	if refused != nil {
		return nil, status.Error(codeOf(refused.Code), refused.Message)
	}
	if f := fault(req); f != nil {
		return nil, errorOf(f, f.Field)
	}
	b := transport.NewBatch()
	defer b.Release()
	b.Door = transport.EnvoyDoor
	if d.config.Tracing {
		b.Traceparent = transport.Traceparent(ctx)
	}
	d.ask(b, req)
	// What the error says of the whole call stands in each result too.
	if err := d.config.Limiter.Check(ctx, b); err != nil && len(b.Results) != len(b.Checks) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	var refunds []int
	if d.config.AllOrNothing {
		refunds = readRefunds(b, req)
	}
	denied := exceeded(b)
	// One descriptor that is over settles it, whatever became of the others. But among all or
	// nothing, those are denied for the sake of the one that failed.
	if err := failure(b); err != nil && (!denied || d.config.AllOrNothing) {
		return nil, err
	}
	if len(refunds) > 0 && !denied {
		if err := d.refund(ctx, b, req, refunds); err != nil {
			return nil, err
		}
	}
	return d.answer(b, req, denied), nil
}

// may says why the caller may not ask req, or nil. One descriptor that it may not refuses the whole, before anything
// is charged.
func may(pass *access.Pass, req *ratelimitv3.RateLimitRequest) *transport.Error {
	if pass.Open() {
		return nil
	}
	for i := range req.GetDescriptors() {
		verb, _ := spends(req, i)
		if refused := pass.May(access.VerbOf(verb), req.GetDomain()); refused != nil {
			return refused
		}
	}
	return nil
}

// readRefunds returns the places of the descriptors that are to get something back. An
// all-or-nothing batch, b, has only read them, and whatever it read, they are not over.
func readRefunds(b *transport.Batch, req *ratelimitv3.RateLimitRequest) (places []int) {
	for i := range b.Results {
		r := &b.Results[i]
		if verb, _ := spends(req, i); verb == bucket.Refund && limited(r) {
			r.Allowed, r.RetryAfter = true, 0
			places = append(places, i)
		}
	}
	return places
}

// refund gives back to the descriptors at places, once the rest of req has been admitted. What
// became of it takes the places of what was read of them.
func (d *Door) refund(ctx context.Context, b *transport.Batch, req *ratelimitv3.RateLimitRequest, places []int) error {
	back := transport.NewBatch()
	defer back.Release()
	back.Door, back.Traceparent = transport.EnvoyDoor, b.Traceparent
	for _, i := range places {
		add(back, req, i)
	}
	if err := d.config.Limiter.Check(ctx, back); err != nil && len(back.Results) != len(back.Checks) {
		return status.Error(codes.Internal, err.Error())
	}
	for j, i := range places {
		b.Results[i] = back.Results[j]
	}
	return failure(b)
}
