package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/transport/access"
)

// TrailerReason is the trailer in which an answer of Health.Check says, one value for each
// reason, why the node is not serving.
const TrailerReason = "sluice-reason"

// healthService is the health service, which also says why not, its message having no room for that, and which ends what unauthenticated
// clients watch.
type healthService struct {
	*health.Server
	door *Server
}

// Check implements healthv1.HealthServer.
func (h *healthService) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	resp, err := h.Server.Check(ctx, req)
	if err != nil || h.door.reasons == nil || resp.Status == healthv1.HealthCheckResponse_SERVING {
		return resp, err
	}
	// It fails only without a call to answer, which there is none of under a grpc.Server.
	_ = grpc.SetTrailer(ctx, metadata.MD{TrailerReason: h.door.reasons()})
	return resp, nil
}

// Watch implements healthv1.HealthServer.
func (h *healthService) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	id := access.OfContext(stream.Context())
	if h.door.guard.Knows(&id) {
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
