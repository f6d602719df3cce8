package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// TrailerReason is the trailer in which an answer of Health.Check says, one value for each
// reason, why the node is not serving.
const TrailerReason = "sluice-reason"

// reasoned is the health service, which also says why not: its message has no room for that.
type reasoned struct {
	*health.Server
	reasons func() []string
}

// Check implements healthv1.HealthServer.
func (r *reasoned) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	resp, err := r.Server.Check(ctx, req)
	if err != nil || r.reasons == nil || resp.Status == healthv1.HealthCheckResponse_SERVING {
		return resp, err
	}
	// It fails only without a call to answer, which there is none of under a grpc.Server.
	_ = grpc.SetTrailer(ctx, metadata.MD{TrailerReason: r.reasons()})
	return resp, nil
}
