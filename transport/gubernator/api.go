// Package gubernator is the API for clients of gubernator v1: its service
// pb.gubernator.V1 on a *grpc.Server that the caller makes and serves, and the same three
// calls as JSON over HTTP.
//
// It translates requests and responses; the limiter.Service decides checks. docs/use/gubernator.md is its reference and lists
// the differences. It starts no goroutine.
package gubernator

import (
	"context"
	"errors"
	"time"

	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxRequests is the most requests of one GetRateLimits: gubernator's own bound.
const maxRequests = 1000

// Config configures an API.
type Config struct {
	// Limiter decides checks. Required.
	Limiter limiter.Service
	// Guard authenticates and authorizes callers. nil admits all.
	Guard *access.Guard
	// Leaving reports whether new calls are rejected, because the node is about to stop. nil means never.
	Leaving func() bool
	// Tracing: callers' traceparent is read.
	Tracing bool
	// Memory bounds the memory of bodies of HTTP requests, with that of other APIs. nil bounds
	// nothing.
	Memory *inflow.Memory
	// Now is the clock of reset times. nil means time.Now.
	Now func() time.Time
}

// Validate says which field is wrong.
func (c *Config) Validate() error {
	if c.Limiter == nil {
		return errors.New("gubernator: Limiter is required")
	}
	return nil
}

// API answers clients of gubernator. It is safe for concurrent use.
type API struct {
	gubernatorv1.UnimplementedV1Server
	config Config
}

// New returns an API.
func New(c Config) (*API, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Leaving == nil {
		c.Leaving = func() bool { return false }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &API{config: c}, nil
}

// Register adds pb.gubernator.V1 to g, which must have a wire.Codec and not serve yet.
func (a *API) Register(g grpc.ServiceRegistrar) { g.RegisterService(serviceDesc(), a) }

var errLeaving = status.Error(codes.Unavailable, "this node is leaving; ask another")

// getRateLimits serves the caller of pass, or returns why it was rejected.
func (a *API) getRateLimits(
	ctx context.Context, pass *access.Pass, rejected *limiter.Error, req *gubernatorv1.GetRateLimitsReq,
) (*gubernatorv1.GetRateLimitsResp, error) {
	c := question{count: len(req.GetRequests())}
	for _, q := range req.GetRequests() {
		c.requests = append(c.requests, fromProto(q))
	}
	if err := a.decide(ctx, pass, rejected, &c); err != nil {
		return nil, err
	}
	defer c.batch.Release()
	res := &gubernatorv1.GetRateLimitsResp{Responses: make([]*gubernatorv1.RateLimitResp, len(c.requests))}
	for i := range c.requests {
		r := c.requests[i].response(c.batch, c.now)
		res.Responses[i] = &gubernatorv1.RateLimitResp{
			Status: r.status, Limit: r.limit, Remaining: r.remaining, ResetTime: r.resetTime, Error: r.err,
		}
		if r.owner != "" {
			res.Responses[i].Metadata = map[string]string{ownerKey: r.owner}
		}
	}
	return res, nil
}

// decide decides the requests of c for the caller of pass, or returns why it was rejected.
func (a *API) decide(ctx context.Context, pass *access.Pass, rejected *limiter.Error, c *question) error {
	if a.config.Leaving() {
		return errLeaving
	}
	if rejected != nil {
		return rejection(rejected)
	}
	if c.count > maxRequests {
		return status.Errorf(codes.OutOfRange, "requests: there are %d; want at most %d, split the call", c.count, maxRequests)
	}
	b := limiter.NewBatch()
	c.batch, c.now = b, a.config.Now()
	b.API = limiter.GubernatorAPI
	if a.config.Tracing {
		b.Traceparent = transport.Traceparent(ctx)
	}
	add(b, c.requests, c.now)
	if rejected := pass.Restrict(b); rejected != nil {
		b.Release()
		return rejection(rejected)
	}
	if len(b.Checks) > 0 {
		// An error of the call is in each result too.
		if err := a.config.Limiter.Check(ctx, b); err != nil && len(b.Results) != len(b.Checks) {
			b.Release()
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

// rejection is the status of a call that its caller may not make.
func rejection(e *limiter.Error) error {
	if e.Code == limiter.Unauthenticated {
		return status.Error(codes.Unauthenticated, e.Message)
	}
	return status.Error(codes.PermissionDenied, e.Message)
}

// The statuses of HealthCheck.
const healthy, unhealthy = "healthy", "unhealthy"

// HealthCheck implements gubernatorv1.V1Server.
func (a *API) HealthCheck(ctx context.Context, _ *gubernatorv1.HealthCheckReq) (*gubernatorv1.HealthCheckResp, error) {
	id := access.OfContext(ctx)
	return a.healthCheck(ctx, a.config.Guard.Knows(&id))
}

// healthCheck reports the node's status to all, for load balancers, and its peers to known callers.
func (a *API) healthCheck(ctx context.Context, known bool) (*gubernatorv1.HealthCheckResp, error) {
	if a.config.Leaving() {
		return nil, errLeaving
	}
	m := a.config.Limiter.Members(ctx)
	res := &gubernatorv1.HealthCheckResp{Status: healthy}
	if !m.MayDecide {
		res.Status, res.Message = unhealthy, "this node has no quorum: "+m.Reason
	}
	if !known {
		return res, nil
	}
	for i := range m.Members {
		one := &m.Members[i]
		if one.Missing {
			continue
		}
		if one.Name == m.Self {
			res.AdvertiseAddress = one.GRPC
		}
		res.LocalPeers = append(res.LocalPeers, &gubernatorv1.PeerHealthResp{GrpcAddress: one.GRPC})
	}
	res.PeerCount = int32(len(res.LocalPeers))
	return res, nil
}

// LiveCheck implements gubernatorv1.V1Server.
func (a *API) LiveCheck(context.Context, *gubernatorv1.LiveCheckReq) (*gubernatorv1.LiveCheckResp, error) {
	if a.config.Leaving() {
		return nil, errLeaving
	}
	return &gubernatorv1.LiveCheckResp{}, nil
}
