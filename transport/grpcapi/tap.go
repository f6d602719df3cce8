package grpcapi

import (
	"context"
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/inflow"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport/access"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/durationpb"
)

// busyRetry is when a caller that was turned away may come back.
const busyRetry = time.Second

// errBusy turns a call away, as limiter.ErrBusy and with the time to wait.
var errBusy = func() error {
	st := status.New(codes.ResourceExhausted, limiter.ErrBusy.Message)
	with, err := st.WithDetails(callError(limiter.ErrBusy), &errdetails.RetryInfo{RetryDelay: durationpb.New(busyRetry)})
	if err != nil {
		return st.Err()
	}
	return with.Err()
}()

// Method says how calls of a method are let in.
type Method struct {
	// API is what rejections are counted by.
	API limiter.API
	// Public methods are for unauthenticated clients too.
	Public bool
	// Shed: calls are turned away while Config.Admit says so.
	Shed bool
}

// public is how health probes are let in.
var public = Method{API: limiter.GRPCAPI, Public: true}

// methodOf returns how calls of the method with that full name are let in.
func (s *Server) methodOf(name string) Method {
	switch name {
	case sluicev1.SluiceService_Check_FullMethodName:
		return Method{API: limiter.GRPCAPI, Shed: true}
	case sluicev1.SluiceService_CheckStream_FullMethodName:
		return Method{API: limiter.StreamAPI}
	}
	if m, ok := s.methods[name]; ok {
		return m
	}
	if strings.HasPrefix(name, "/"+healthv1.Health_ServiceDesc.ServiceName+"/") {
		return public
	}
	return Method{API: limiter.GRPCAPI}
}

// tap decides on a call by its headers, before its message is read and before it has a goroutine: whether the node has time for it, and
// whether its client is known. What the client may do is asked when the message says what that is.
func (s *Server) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	m := s.methodOf(call.FullMethodName)
	if m.Shed && !s.admit() {
		return nil, errBusy
	}
	known := s.guard.Open()
	switch {
	case known:
	case m.Public:
		id := access.OfContext(ctx)
		known = s.guard.Knows(&id)
	default:
		if _, rejected := s.guard.Call(ctx, m.API); rejected != nil {
			s.inflow.Reject(ctx)
			return nil, statusOf(rejected)
		}
		known = true
	}
	return s.inflow.Begin(ctx, call.FullMethodName, known)
}

// Bounds of what is held of messages that are not complete; docs/limits.md tells clients of them.
const (
	maxUnread        = 24 << 20  // bytes of one connection
	maxUnreadOfAll   = 128 << 20 // bytes
	maxUnknown       = 4 << 10   // bytes of a call of an unknown client: a health check's
	maxUnknownCalls  = 8         // of one connection
	messageDeadline  = 10 * time.Second
	unknownWatchEnds = 5 * time.Minute
)

// Unread returns what is held of messages that are not complete.
func (s *Server) Unread() inflow.Stats { return s.inflow.Stats() }

// TrailerReason is the trailer in which an answer of Health.Check says, one value for each
// reason, why the node is not serving.
const TrailerReason = "sluice-reason"

// healthService is the health service, which also says why not, its message having no room for that, and which ends what unauthenticated
// clients watch.
type healthService struct {
	*health.Server
	api *Server
}

// Check implements healthv1.HealthServer.
func (h *healthService) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	resp, err := h.Server.Check(ctx, req)
	if err != nil || h.api.reasons == nil || resp.Status == healthv1.HealthCheckResponse_SERVING {
		return resp, err
	}
	// It fails only without a call to answer, which there is none of under a grpc.Server.
	_ = grpc.SetTrailer(ctx, metadata.MD{TrailerReason: h.api.reasons()})
	return resp, nil
}

// Watch implements healthv1.HealthServer.
func (h *healthService) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	id := access.OfContext(stream.Context())
	if h.api.guard.Knows(&id) {
		return h.Server.Watch(req, stream)
	}
	ctx, cancel := context.WithTimeout(stream.Context(), unknownWatchEnds)
	defer cancel()
	err := h.Server.Watch(req, &shortWatch{stream, ctx})
	if ctx.Err() == context.DeadlineExceeded && stream.Context().Err() == nil {
		return status.Errorf(codes.Unavailable, "a watch of an unauthenticated client ends after %v; watch again", unknownWatchEnds)
	}
	return err
}

// shortWatch is a watch with a shorter context.
type shortWatch struct {
	healthv1.Health_WatchServer
	ctx context.Context
}

func (s *shortWatch) Context() context.Context { return s.ctx }
