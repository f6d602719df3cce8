package grpcapi

import (
	"cmp"
	"context"
	"errors"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Members implements sluicev1.SluiceServiceServer.
func (s *Server) Members(ctx context.Context, _ *sluicev1.MembersRequest) (*sluicev1.MembersResponse, error) {
	if _, rejected := s.config.Guard.Call(ctx, limiter.GRPCAPI); rejected != nil {
		return nil, statusOf(rejected)
	}
	m := s.config.Limiter.Members(ctx)
	h := m.PartitionCounts
	res := &sluicev1.MembersResponse{
		Self: m.Self, Ring: m.Ring, Partitions: int32(m.Partitions), Members: make([]*sluicev1.Member, len(m.Members)),
		VoterSet: setToProto(m.Set), MayDecide: m.MayDecide, Reason: m.Reason, Unreached: m.Unreached,
		PartitionCounts: &sluicev1.PartitionCounts{
			Owned: int32(h.Owned), Unprotected: int32(h.Unprotected), BelowReplicas: int32(h.BelowReplicas),
			HandingOver: int32(h.HandingOver), Replicas: int32(h.Replicas), TakingOver: int32(h.TakingOver),
			Divergent: int32(h.Divergent), Lost: int32(h.Lost),
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
		Name: m.Name, Boot: m.Boot, State: m.StateName(),
		GossipAddress: m.Gossip, PeerAddress: m.Peer, GrpcAddress: m.GRPC, HttpAddress: m.HTTP,
		Version: m.Version, Zone: m.Zone, Partitions: int32(m.Partitions), Owned: int32(m.Owned),
		Voter: m.Voter, Alive: m.Alive,
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
func setToProto(s limiter.VoterSet) *sluicev1.VoterSet {
	if s.Version == 0 {
		return nil
	}
	return &sluicev1.VoterSet{ClusterId: s.ClusterID, Version: s.Version, Members: s.Members}
}

// ForgetMember implements sluicev1.SluiceServiceServer.
func (s *Server) ForgetMember(ctx context.Context, req *sluicev1.ForgetMemberRequest) (*sluicev1.ForgetMemberResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	set, err := s.config.Limiter.Forget(ctx, req.GetName())
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ForgetMemberResponse{VoterSet: setToProto(set)}, nil
}

// Bootstrap implements sluicev1.SluiceServiceServer.
func (s *Server) Bootstrap(ctx context.Context, _ *sluicev1.BootstrapRequest) (*sluicev1.BootstrapResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	set, err := s.config.Limiter.Bootstrap(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.BootstrapResponse{VoterSet: setToProto(set)}, nil
}

// AcceptLoss implements sluicev1.SluiceServiceServer.
func (s *Server) AcceptLoss(ctx context.Context, _ *sluicev1.AcceptLossRequest) (*sluicev1.AcceptLossResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	partitions, told, err := s.config.Limiter.AcceptLoss(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.AcceptLossResponse{Partitions: int32(partitions), Told: told}, nil
}

// Inspect implements sluicev1.SluiceServiceServer.
func (s *Server) Inspect(ctx context.Context, req *sluicev1.InspectRequest) (*sluicev1.InspectResponse, error) {
	pass, err := s.operate(ctx, access.Read, req.GetDomain())
	if err != nil {
		return nil, err
	}
	q := limiter.Check{Domain: req.GetDomain()}
	for _, e := range req.GetDescriptor_() {
		q.Descriptor = append(q.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	x, err := s.config.Limiter.Inspect(ctx, &q)
	if err != nil {
		return nil, statusOf(err)
	}
	res := inspectionToProto(&x)
	for _, domain := range x.Domains {
		if pass.Allows(access.Check, domain) || pass.Allows(access.Read, domain) {
			res.Domains = append(res.Domains, domain)
		}
	}
	return res, nil
}

func inspectionToProto(x *limiter.Inspection) *sluicev1.InspectResponse {
	res := &sluicev1.InspectResponse{
		Reason: x.Explanation.Reason, Partition: int32(x.Partition), Owner: x.Owner, Generation: x.Gen,
		Replicas: x.Replicas, InitialSync: x.InitialSync, Counted: x.Counted, Grants: int32(x.Grants), Granted: x.Granted,
		Denying: x.Denying, Missing: x.Missing, Shown: entriesToProto(x.Shown),
	}
	for _, l := range x.Leases {
		res.Leases = append(res.Leases, &sluicev1.LeaseLeft{Node: l.Node, Left: l.Left})
	}
	if x.Rule == nil {
		return res
	}
	res.Rule, res.Unlimited, res.Shadow = x.Rule.Name, x.Rule.Unlimited, x.Rule.Shadow
	for i, l := range x.Limits {
		res.Limits = append(res.Limits, &sluicev1.LimitStanding{
			Name: x.Rule.LimitName(i), Limit: transport.LimitToProto(x.Rule.Limits.At(i)),
			Spent: l.Spent, Remaining: l.Remaining, ResetAfterNs: int64(l.ResetAfter),
		})
	}
	return res
}

func entriesToProto(list []rules.Entry) []*sluicev1.Entry {
	out := make([]*sluicev1.Entry, len(list))
	for i, e := range list {
		out[i] = &sluicev1.Entry{Key: e.Key, Value: e.Value}
	}
	return out
}

// defaultTop is the number of keys of a request that does not set n.
const defaultTop = 20

// Top implements sluicev1.SluiceServiceServer.
func (s *Server) Top(ctx context.Context, req *sluicev1.TopRequest) (*sluicev1.TopResponse, error) {
	pass, err := s.authorize(ctx, access.Read, req.GetDomain())
	if err != nil {
		return nil, err
	}
	by := limiter.TopBy(req.GetBy())
	if int32(by) != int32(req.GetBy()) { // out of the range of TopBy: rejected as its highest value
		by = ^limiter.TopBy(0)
	}
	top, err := s.config.Limiter.Top(ctx, limiter.TopQuery{
		By: by, N: cmp.Or(int(req.GetN()), defaultTop), Domain: req.GetDomain(), Operator: pass.IsOperator(ctx),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	res := &sluicev1.TopResponse{CoversNs: int64(top.Covers), Nodes: top.Nodes, Missing: top.Missing}
	for i := range top.Keys {
		k := &top.Keys[i]
		res.Keys = append(res.Keys, &sluicev1.TopKey{
			Domain: k.Domain, Descriptor_: entriesToProto(k.Descriptor), Rule: k.Rule, Cut: k.Cut,
			Count: k.Count, Error: k.Error, PerSecond: k.PerSecond,
		})
	}
	return res, nil
}

// errLeaving answers calls after Drain. A stream that ends with it has answered everything that was decided; the detail
// tells it from a broken connection.
var errLeaving = statusOf(&limiter.Error{Code: limiter.Unavailable, Message: "this node is leaving; ask another"})

// codeOf has the gRPC code of an error of a call; Internal for those that it lacks.
var codeOf = map[limiter.Code]codes.Code{
	limiter.Invalid: codes.InvalidArgument, limiter.UnknownDomain: codes.InvalidArgument,
	limiter.Overloaded: codes.ResourceExhausted, limiter.Unavailable: codes.Unavailable,
	limiter.NotFound: codes.NotFound, limiter.Rejected: codes.FailedPrecondition,
	limiter.Forbidden: codes.PermissionDenied, limiter.Unauthenticated: codes.Unauthenticated,
}

// statusOf returns the error of a call as a status with a sluice.v1.Error as its detail.
func statusOf(err error) error {
	e, ok := errors.AsType[*limiter.Error](err)
	if !ok {
		return status.Error(codes.Internal, err.Error())
	}
	st := status.New(cmp.Or(codeOf[e.Code], codes.Internal), e.Error())
	if with, err := st.WithDetails(callError(e)); err == nil {
		st = with
	}
	return st.Err()
}

// callError is e, which is about a whole call, on the wire.
func callError(e *limiter.Error) *sluicev1.Error {
	return &sluicev1.Error{Code: sluicev1.ErrorCode(e.Code), Field: e.Field, Message: e.Message}
}

// errorAt is e, which is about check i, on the wire.
func errorAt(e *limiter.Error, i int) *sluicev1.Error {
	return &sluicev1.Error{Code: sluicev1.ErrorCode(e.Code), Field: e.Path(i), Message: e.Message}
}
