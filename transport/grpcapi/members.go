package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/limiter"
	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/access"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// admin is the API of operators.
type admin struct {
	adminv1alpha1.UnimplementedAdminServiceServer
	*Server
}

// Members implements adminv1alpha1.AdminServiceServer.
func (s admin) Members(ctx context.Context, _ *adminv1alpha1.MembersRequest) (*adminv1alpha1.MembersResponse, error) {
	if _, rejected := s.config.Guard.Call(ctx, limiter.GRPCAPI); rejected != nil {
		return nil, statusOf(rejected)
	}
	m := s.config.Limiter.Members(ctx)
	return membersToProto(&m), nil
}

func membersToProto(m *limiter.Members) *adminv1alpha1.MembersResponse {
	res := &adminv1alpha1.MembersResponse{
		Self: m.Self, Ring: m.Ring, Partitions: int32(m.Partitions), Members: make([]*adminv1alpha1.Member, len(m.Members)),
		VoterSet: setToProto(m.Set), MayDecide: m.MayDecide, Reason: m.Reason, Unreached: m.Unreached,
		PartitionCounts: countsToProto(m.PartitionCounts), ClockCorrectionNs: int64(m.Clocks.Correction),
		Health: &adminv1alpha1.Health{Status: string(m.Health.Status), Summary: m.Health.Summary},
	}
	for _, x := range m.Health.Causes {
		res.Health.Causes = append(res.Health.Causes, &adminv1alpha1.HealthCause{Severity: string(x.Severity), Text: x.Text, Doc: x.Doc})
	}
	if m.Clocks.Known {
		res.ClocksAgree = new(m.Clocks.Agree)
	}
	for _, x := range m.LostRules {
		res.LostRules = append(res.LostRules, &adminv1alpha1.LostRule{Domain: x.Domain, Rule: x.Rule, LeftNs: int64(x.Left)})
	}
	for i := range m.Members {
		res.Members[i] = memberToProto(&m.Members[i])
	}
	return res
}

func countsToProto(h limiter.PartitionCounts) *adminv1alpha1.PartitionCounts {
	return &adminv1alpha1.PartitionCounts{
		Owned: int32(h.Owned), Unprotected: int32(h.Unprotected), BelowReplicas: int32(h.BelowReplicas),
		HandingOver: int32(h.HandingOver), Replicas: int32(h.Replicas), TakingOver: int32(h.TakingOver),
		Divergent: int32(h.Divergent), Lost: int32(h.Lost),
	}
}

// Status implements adminv1alpha1.AdminServiceServer.
func (s admin) Status(ctx context.Context, _ *adminv1alpha1.StatusRequest) (*adminv1alpha1.StatusResponse, error) {
	if _, err := s.operate(ctx, access.Read, ""); err != nil {
		return nil, err
	}
	st := s.config.Limiter.Status(ctx)
	res := &adminv1alpha1.StatusResponse{Members: membersToProto(&st.Members), Missing: st.Missing}
	for i := range st.Nodes {
		n := &st.Nodes[i]
		r := &adminv1alpha1.NodeReport{
			Name: n.Name, MayDecide: n.MayDecide, Reason: n.Reason, Rules: n.Rules, RulesError: n.RulesError,
			PartitionCounts: countsToProto(limiter.PartitionCounts(n.PartitionCounts)), Insecure: n.Insecure, Region: n.Region, Decides: n.Decides, DecidedBy: n.DecidedBy, RegionWeight: int64(n.Weight),
			RoleProblem: n.RoleProblem,
		}
		for _, f := range n.Files {
			r.Files = append(r.Files, &adminv1alpha1.FollowedFile{Label: f.Label, Error: f.Error, Expires: f.Expires, Left: f.Left})
		}
		for _, x := range n.Regions {
			r.Regions = append(r.Regions, &adminv1alpha1.RegionReport{
				Name: x.Name, State: string(x.State), Nodes: x.Nodes, RttNs: int64(x.RTT), Reason: x.Reason, BytesIn: x.In, BytesOut: x.Out, DecidedBy: x.DecidedBy, Weight: int64(x.Weight),
				InStateNs: int64(x.InState),
			})
		}
		res.Nodes = append(res.Nodes, r)
	}
	return res, nil
}

func memberToProto(m *limiter.Member) *adminv1alpha1.Member {
	p := &adminv1alpha1.Member{
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
func setToProto(s limiter.VoterSet) *adminv1alpha1.VoterSet {
	if s.Version == 0 {
		return nil
	}
	return &adminv1alpha1.VoterSet{ClusterId: s.ClusterID, Version: s.Version, Members: s.Members}
}

// ForgetMember implements adminv1alpha1.AdminServiceServer.
func (s admin) ForgetMember(ctx context.Context, req *adminv1alpha1.ForgetMemberRequest) (*adminv1alpha1.ForgetMemberResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	set, err := s.config.Limiter.Forget(ctx, req.GetName())
	if err != nil {
		return nil, statusOf(err)
	}
	return &adminv1alpha1.ForgetMemberResponse{VoterSet: setToProto(set)}, nil
}

// Bootstrap implements adminv1alpha1.AdminServiceServer.
func (s admin) Bootstrap(ctx context.Context, _ *adminv1alpha1.BootstrapRequest) (*adminv1alpha1.BootstrapResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	set, err := s.config.Limiter.Bootstrap(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &adminv1alpha1.BootstrapResponse{VoterSet: setToProto(set)}, nil
}

// AcceptLoss implements adminv1alpha1.AdminServiceServer.
func (s admin) AcceptLoss(ctx context.Context, _ *adminv1alpha1.AcceptLossRequest) (*adminv1alpha1.AcceptLossResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	partitions, told, err := s.config.Limiter.AcceptLoss(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &adminv1alpha1.AcceptLossResponse{Partitions: int32(partitions), Told: told}, nil
}

// PromoteRegion implements adminv1alpha1.AdminServiceServer.
func (s admin) PromoteRegion(ctx context.Context, req *adminv1alpha1.PromoteRegionRequest) (*adminv1alpha1.PromoteRegionResponse, error) {
	if _, err := s.operate(ctx, access.Admin, ""); err != nil {
		return nil, err
	}
	if err := s.config.Limiter.PromoteRegion(ctx, req.GetRegion(), req.GetHome(), req.GetStopped()); err != nil {
		return nil, statusOf(err)
	}
	return &adminv1alpha1.PromoteRegionResponse{}, nil
}

// Inspect implements adminv1alpha1.AdminServiceServer.
func (s admin) Inspect(ctx context.Context, req *adminv1alpha1.InspectRequest) (*adminv1alpha1.InspectResponse, error) {
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

func inspectionToProto(x *limiter.Inspection) *adminv1alpha1.InspectResponse {
	res := &adminv1alpha1.InspectResponse{
		Reason: x.Explanation.Reason, Partition: int32(x.Partition), Owner: x.Owner, Generation: x.Gen,
		Replicas: x.Replicas, InitialSync: x.InitialSync, Counted: x.Counted, Grants: int32(x.Grants), Granted: x.Granted,
		Denying: x.Denying, Missing: x.Missing, Shown: entriesToProto(x.Shown),
	}
	for _, l := range x.Leases {
		res.Leases = append(res.Leases, &adminv1alpha1.LeaseLeft{Node: l.Node, Left: l.Left})
	}
	if x.Rule == nil {
		return res
	}
	res.Rule, res.Unlimited, res.Shadow = x.Rule.Name, x.Rule.Unlimited, x.Rule.Shadow
	for i, l := range x.Limits {
		res.Limits = append(res.Limits, &adminv1alpha1.LimitStanding{
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

// Top implements adminv1alpha1.AdminServiceServer.
func (s admin) Top(ctx context.Context, req *adminv1alpha1.TopRequest) (*adminv1alpha1.TopResponse, error) {
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
	res := &adminv1alpha1.TopResponse{CoversNs: int64(top.Covers), Nodes: top.Nodes, Missing: top.Missing}
	for i := range top.Keys {
		k := &top.Keys[i]
		res.Keys = append(res.Keys, &adminv1alpha1.TopKey{
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
	limiter.Overloaded: codes.Unavailable, limiter.Unavailable: codes.Unavailable,
	limiter.NotFound: codes.NotFound, limiter.Rejected: codes.FailedPrecondition,
	limiter.Forbidden: codes.PermissionDenied, limiter.Unauthenticated: codes.Unauthenticated,
	limiter.Unsupported: codes.Unimplemented,
}

// overloadRetry is the time after which a call that met an overloaded node may be repeated.
const overloadRetry = time.Second

// errorDomain is that of google.rpc.ErrorInfo.
const errorDomain = "sluice.v1"

// statusOf returns the error of a call as a status with a sluice.v1.Error and a google.rpc.ErrorInfo as its details, and if
// the node is overloaded a google.rpc.RetryInfo. The reason of the ErrorInfo is the code's name in capitals.
func statusOf(err error) error {
	e, ok := errors.AsType[*limiter.Error](err)
	if !ok {
		return status.Error(codes.Internal, err.Error())
	}
	st := status.New(cmp.Or(codeOf[e.Code], codes.Internal), e.Error())
	details := []protoadapt.MessageV1{callError(e), &errdetails.ErrorInfo{Reason: strings.ToUpper(e.Code.String()), Domain: errorDomain}}
	if e.Code == limiter.Overloaded {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(overloadRetry)})
	}
	if with, err := st.WithDetails(details...); err == nil {
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
