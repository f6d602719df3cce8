package grpcapi

import (
	"context"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport/access"
)

// ReportLoad implements sluicev1.SluiceServiceServer.
func (s *Server) ReportLoad(ctx context.Context, req *sluicev1.ReportLoadRequest) (*sluicev1.ReportLoadResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused == nil {
		refused = pass.May(access.Charge, req.GetDomain())
	}
	if refused != nil {
		return nil, statusOf(refused)
	}
	l, err := s.limiter.ReportLoad(ctx, limiter.LoadReport{
		Domain: req.GetDomain(), Pool: req.GetPool(), Load: req.GetLoad(), Reporter: req.GetReporter(),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ReportLoadResponse{Load: l.Load, ExpiresNs: int64(l.Expires)}, nil
}
