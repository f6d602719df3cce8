package grpcapi

import (
	"context"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport"
)

// Check implements sluicev1.SluiceServiceServer.
func (s *Server) Check(ctx context.Context, req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	res, err := s.check(ctx, req)
	if err != nil {
		return nil, statusOf(err)
	}
	return res, nil
}

// check decides one request, of a call or of a stream.
func (s *Server) check(ctx context.Context, req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	if e := transport.CountFault(len(req.GetChecks())); e != nil {
		return nil, e
	}
	b := transport.NewBatch()
	defer b.Release()
	b.AllOrNothing = req.GetAllOrNothing()
	fill(b, req.GetChecks())
	if err := s.limiter.Check(ctx, b); err != nil {
		return nil, err
	}
	return &sluicev1.CheckResponse{Id: req.GetId(), Decisions: decisions(b)}, nil
}

// Reset implements sluicev1.SluiceServiceServer.
func (s *Server) Reset(ctx context.Context, req *sluicev1.ResetRequest) (*sluicev1.ResetResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	if e := transport.CountFault(len(req.GetChecks())); e != nil {
		return nil, statusOf(e)
	}
	b := transport.NewBatch()
	defer b.Release()
	fill(b, req.GetChecks())
	if err := s.limiter.Reset(ctx, b); err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ResetResponse{Decisions: resets(b)}, nil
}

// Members implements sluicev1.SluiceServiceServer.
func (s *Server) Members(context.Context, *sluicev1.MembersRequest) (*sluicev1.MembersResponse, error) {
	m := s.limiter.Members()
	res := &sluicev1.MembersResponse{
		Self:       m.Self,
		Ring:       m.Ring,
		Partitions: int32(m.Partitions),
		Members:    make([]*sluicev1.Member, len(m.Members)),
	}
	for i, one := range m.Members {
		res.Members[i] = &sluicev1.Member{
			Name:          one.Name,
			Boot:          one.Boot,
			State:         one.State.String(),
			GossipAddress: one.Gossip,
			PeerAddress:   one.Peer,
			GrpcAddress:   one.GRPC,
			HttpAddress:   one.HTTP,
			Version:       one.Version,
			Partitions:    int32(one.Partitions),
		}
	}
	return res, nil
}
