package grpcapi

import (
	"context"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/access"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// errBusy is limiter.ErrBusy of a call that was shed.
var errBusy = statusOf(limiter.ErrBusy)

// Method says how calls of a method are admitted.
type Method struct {
	// API is the one that rejections are counted for.
	API limiter.API
	// Public methods are for unauthenticated clients too.
	Public bool
	// Shed: calls are rejected while Config.Admit returns false.
	Shed bool
}

// methodOf returns the Method with that full name.
func (s *Server) methodOf(name string) Method {
	switch name {
	case sluicev1.RateLimitService_Check_FullMethodName, sluicev1.RateLimitService_Reserve_FullMethodName,
		sluicev1.RateLimitService_Spend_FullMethodName, sluicev1.RateLimitService_Extend_FullMethodName:
		return Method{API: limiter.GRPCAPI, Shed: true}
	case sluicev1.RateLimitService_CheckStream_FullMethodName:
		return Method{API: limiter.StreamAPI}
	}
	if m, ok := s.config.Methods[name]; ok {
		return m
	}
	if strings.HasPrefix(name, "/"+healthv1.Health_ServiceDesc.ServiceName+"/") {
		return Method{API: limiter.GRPCAPI, Public: true}
	}
	return Method{API: limiter.GRPCAPI}
}

// tap sheds or authenticates a call by its headers, before its message is read and before it has a goroutine. It is
// authorized once the message is read.
func (s *Server) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	m := s.methodOf(call.FullMethodName)
	if m.Shed && !s.config.Admit() {
		return nil, errBusy
	}
	guard, known := s.config.Guard, true
	if m.Public && !guard.Open() {
		id := access.OfContext(ctx)
		known = guard.Knows(&id)
	} else if _, rejected := guard.Call(ctx, m.API); rejected != nil {
		s.inflow.Reject(ctx)
		return nil, statusOf(rejected)
	}
	return s.inflow.Begin(ctx, call.FullMethodName, known)
}

// Bounds of what is held of incomplete messages: see docs/operate/limits.md.
const (
	maxUnread        = 24 << 20  // bytes of one connection
	maxUnreadOfAll   = 128 << 20 // bytes
	maxUnknown       = 4 << 10   // bytes of a call of an unknown client: a health check's
	maxUnknownCalls  = 8         // of one connection
	messageDeadline  = 10 * time.Second
	unknownWatchEnds = 5 * time.Minute
)

// Unread returns what is held of incomplete messages.
func (s *Server) Unread() inflow.Stats { return s.inflow.Stats() }

// TrailerReason is the trailer of Health.Check with the reasons why the node is not serving, one value each.
const TrailerReason = "sluice-reason"

// healthService is the health service, which also reports why the node is not serving, and ends watches of unauthenticated
// clients.
type healthService struct {
	*health.Server
	api *Server
}

// Check implements healthv1.HealthServer.
func (h *healthService) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	resp, err := h.Server.Check(ctx, req)
	if err != nil || h.api.config.Reasons == nil || resp.Status == healthv1.HealthCheckResponse_SERVING {
		return resp, err
	}
	// It fails only outside of a call.
	_ = grpc.SetTrailer(ctx, metadata.MD{TrailerReason: h.api.config.Reasons()})
	return resp, nil
}

// Watch implements healthv1.HealthServer.
func (h *healthService) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	id := access.OfContext(stream.Context())
	if h.api.config.Guard.Knows(&id) {
		return h.Server.Watch(req, stream)
	}
	ctx, cancel := context.WithTimeout(stream.Context(), unknownWatchEnds)
	defer cancel()
	short := &grpc.GenericServerStream[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse]{ServerStream: &endingStream{stream, ctx}}
	err := h.Server.Watch(req, short)
	if ctx.Err() == context.DeadlineExceeded && stream.Context().Err() == nil {
		return status.Errorf(codes.Unavailable, "a watch of an unauthenticated client ends after %v; watch again", unknownWatchEnds)
	}
	return err
}
