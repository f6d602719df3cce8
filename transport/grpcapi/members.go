package grpcapi

import (
	"context"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport/access"
)

// Members implements sluicev1.SluiceServiceServer.
func (s *Server) Members(ctx context.Context, _ *sluicev1.MembersRequest) (*sluicev1.MembersResponse, error) {
	if _, refused := s.guard.Call(ctx, limiter.GRPCDoor); refused != nil {
		return nil, statusOf(refused)
	}
	m := s.limiter.Members(ctx)
	res := &sluicev1.MembersResponse{
		Self:       m.Self,
		Ring:       m.Ring,
		Partitions: int32(m.Partitions),
		Members:    make([]*sluicev1.Member, len(m.Members)),
		StableSet:  setToProto(m.Set),
		MayDecide:  m.MayDecide,
		Reason:     m.Reason,
		Unreached:  m.Unreached,
		Holdings: &sluicev1.Holdings{
			Holding:       int32(m.Holdings.Holding),
			Unprotected:   int32(m.Holdings.Unprotected),
			BelowReplicas: int32(m.Holdings.BelowReplicas),
			HandingOver:   int32(m.Holdings.HandingOver),
			Copies:        int32(m.Holdings.Copies),
			Claims:        int32(m.Holdings.Claims),
			Forks:         int32(m.Holdings.Forks),
			Lost:          int32(m.Holdings.Lost),
		},
		ClockCorrectionNs: int64(m.Clocks.Correction),
	}
	if m.Clocks.Known {
		res.ClocksAgree = new(m.Clocks.Agree)
	}
	for _, x := range m.LostRules {
		res.LostRules = append(res.LostRules, &sluicev1.LostRule{Domain: x.Domain, Rule: x.Rule, LeftNs: int64(x.Left)})
	}
	for i := range m.Members {
		res.Members[i] = memberToProto(&m.Members[i])
	}
	return res, nil
}

func memberToProto(m *limiter.Member) *sluicev1.Member {
	p := &sluicev1.Member{
		Name:          m.Name,
		Boot:          m.Boot,
		State:         m.StateName(),
		GossipAddress: m.Gossip,
		PeerAddress:   m.Peer,
		GrpcAddress:   m.GRPC,
		HttpAddress:   m.HTTP,
		Version:       m.Version,
		Zone:          m.Zone,
		Partitions:    int32(m.Partitions),
		Counted:       m.Counted,
		Lives:         m.Lives,
		Holds:         int32(m.Holds),
	}
	if m.Silent >= 0 {
		p.SilentNs = new(int64(m.Silent))
	}
	if m.Ahead != nil {
		p.ClockAheadNs = new(int64(*m.Ahead))
	}
	return p
}

// setToProto returns nil for no set.
func setToProto(s limiter.StableSet) *sluicev1.StableSet {
	if s.Version == 0 {
		return nil
	}
	return &sluicev1.StableSet{Lineage: s.Lineage, Version: s.Version, Members: s.Members}
}

// ForgetMember implements sluicev1.SluiceServiceServer.
func (s *Server) ForgetMember(ctx context.Context, req *sluicev1.ForgetMemberRequest) (*sluicev1.ForgetMemberResponse, error) {
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused == nil {
		refused = pass.Operate(ctx, access.Admin, "")
	}
	if refused != nil {
		return nil, statusOf(refused)
	}
	if s.gone() {
		return nil, errLeaving
	}
	set, err := s.limiter.Forget(ctx, req.GetName())
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ForgetMemberResponse{StableSet: setToProto(set)}, nil
}

// Bootstrap implements sluicev1.SluiceServiceServer.
func (s *Server) Bootstrap(ctx context.Context, _ *sluicev1.BootstrapRequest) (*sluicev1.BootstrapResponse, error) {
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused == nil {
		refused = pass.Operate(ctx, access.Admin, "")
	}
	if refused != nil {
		return nil, statusOf(refused)
	}
	if s.gone() {
		return nil, errLeaving
	}
	set, err := s.limiter.Bootstrap(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.BootstrapResponse{StableSet: setToProto(set)}, nil
}

// AcceptLoss implements sluicev1.SluiceServiceServer.
func (s *Server) AcceptLoss(ctx context.Context, _ *sluicev1.AcceptLossRequest) (*sluicev1.AcceptLossResponse, error) {
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused == nil {
		refused = pass.Operate(ctx, access.Admin, "")
	}
	if refused != nil {
		return nil, statusOf(refused)
	}
	if s.gone() {
		return nil, errLeaving
	}
	partitions, told, err := s.limiter.AcceptLoss(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.AcceptLossResponse{Partitions: int32(partitions), Told: told}, nil
}
