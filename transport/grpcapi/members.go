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
	if _, rejected := s.guard.Call(ctx, limiter.GRPCAPI); rejected != nil {
		return nil, statusOf(rejected)
	}
	m := s.limiter.Members(ctx)
	res := &sluicev1.MembersResponse{
		Self:       m.Self,
		Ring:       m.Ring,
		Partitions: int32(m.Partitions),
		Members:    make([]*sluicev1.Member, len(m.Members)),
		VoterSet:   setToProto(m.Set),
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
			Divergent:     int32(m.Holdings.Divergent),
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
func setToProto(s limiter.VoterSet) *sluicev1.VoterSet {
	if s.Version == 0 {
		return nil
	}
	return &sluicev1.VoterSet{ClusterId: s.ClusterID, Version: s.Version, Members: s.Members}
}

// ForgetMember implements sluicev1.SluiceServiceServer.
func (s *Server) ForgetMember(ctx context.Context, req *sluicev1.ForgetMemberRequest) (*sluicev1.ForgetMemberResponse, error) {
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected == nil {
		rejected = pass.Operate(ctx, access.Admin, "")
	}
	if rejected != nil {
		return nil, statusOf(rejected)
	}
	if s.gone() {
		return nil, errLeaving
	}
	set, err := s.limiter.Forget(ctx, req.GetName())
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.ForgetMemberResponse{VoterSet: setToProto(set)}, nil
}

// Bootstrap implements sluicev1.SluiceServiceServer.
func (s *Server) Bootstrap(ctx context.Context, _ *sluicev1.BootstrapRequest) (*sluicev1.BootstrapResponse, error) {
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected == nil {
		rejected = pass.Operate(ctx, access.Admin, "")
	}
	if rejected != nil {
		return nil, statusOf(rejected)
	}
	if s.gone() {
		return nil, errLeaving
	}
	set, err := s.limiter.Bootstrap(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &sluicev1.BootstrapResponse{VoterSet: setToProto(set)}, nil
}

// AcceptLoss implements sluicev1.SluiceServiceServer.
func (s *Server) AcceptLoss(ctx context.Context, _ *sluicev1.AcceptLossRequest) (*sluicev1.AcceptLossResponse, error) {
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected == nil {
		rejected = pass.Operate(ctx, access.Admin, "")
	}
	if rejected != nil {
		return nil, statusOf(rejected)
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

// Inspect implements sluicev1.SluiceServiceServer.
func (s *Server) Inspect(ctx context.Context, req *sluicev1.InspectRequest) (*sluicev1.InspectResponse, error) {
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected == nil {
		rejected = pass.Operate(ctx, access.Read, req.GetDomain())
	}
	if rejected != nil {
		return nil, statusOf(rejected)
	}
	if s.gone() {
		return nil, errLeaving
	}
	q := limiter.Check{Domain: req.GetDomain()}
	for _, e := range req.GetDescriptor_() {
		q.Descriptor = append(q.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	x, err := s.limiter.Inspect(ctx, &q)
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
		Replicas: x.Replicas, Filling: x.Filling, Counted: x.Counted, Grants: int32(x.Grants), Granted: x.Granted,
		Denying: x.Denying, Missing: x.Missing,
	}
	for _, e := range x.Shown {
		res.Shown = append(res.Shown, &sluicev1.Entry{Key: e.Key, Value: e.Value})
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

// defaultTop is how many keys are listed where the caller does not say.
const defaultTop = 20

// Top implements sluicev1.SluiceServiceServer.
func (s *Server) Top(ctx context.Context, req *sluicev1.TopRequest) (*sluicev1.TopResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	pass, rejected := s.guard.Call(ctx, limiter.GRPCAPI)
	if rejected == nil {
		rejected = pass.May(access.Read, req.GetDomain())
	}
	if rejected != nil {
		return nil, statusOf(rejected)
	}
	by := limiter.TopBy(req.GetBy())
	if int32(by) != int32(req.GetBy()) { // beyond what TopBy can hold, and so rejected as the highest that it can
		by = ^limiter.TopBy(0)
	}
	top, err := s.limiter.Top(ctx, limiter.TopQuery{
		By: by, N: cmp.Or(int(req.GetN()), defaultTop), Domain: req.GetDomain(), Operator: pass.IsOperator(ctx),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	res := &sluicev1.TopResponse{CoversNs: int64(top.Covers), Nodes: top.Nodes, Missing: top.Missing}
	for i := range top.Keys {
		k := &top.Keys[i]
		p := &sluicev1.TopKey{Domain: k.Domain, Rule: k.Rule, Cut: k.Cut, Count: k.Count, Error: k.Error, PerSecond: k.PerSecond}
		for _, e := range k.Descriptor {
			p.Descriptor_ = append(p.Descriptor_, &sluicev1.Entry{Key: e.Key, Value: e.Value})
		}
		res.Keys = append(res.Keys, p)
	}
	return res, nil
}

// errLeaving answers what comes after Drain. A stream that ends with it has answered everything that was
// decided; the detail tells it from a connection that broke.
var errLeaving = statusOf(&limiter.Error{Code: limiter.Unavailable, Message: "this node is leaving; ask another"})

// codeOf is the gRPC code of an error that is about a whole call.
func codeOf(c limiter.Code) codes.Code {
	switch c {
	case limiter.Invalid, limiter.UnknownDomain:
		return codes.InvalidArgument
	case limiter.Overloaded:
		return codes.ResourceExhausted
	case limiter.Unavailable:
		return codes.Unavailable
	case limiter.NotFound:
		return codes.NotFound
	case limiter.Rejected:
		return codes.FailedPrecondition
	case limiter.Forbidden:
		return codes.PermissionDenied
	case limiter.Unauthenticated:
		return codes.Unauthenticated
	}
	return codes.Internal
}

// statusOf maps the error of a call; the status carries it as a sluice.v1.Error too.
func statusOf(err error) error {
	e, ok := errors.AsType[*limiter.Error](err)
	if !ok {
		return status.Error(codes.Internal, err.Error())
	}
	st := status.New(codeOf(e.Code), e.Error())
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
