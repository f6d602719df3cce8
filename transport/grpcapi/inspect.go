package grpcapi

import (
	"context"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/access"
)

// Inspect implements sluicev1.SluiceServiceServer.
func (s *Server) Inspect(ctx context.Context, req *sluicev1.InspectRequest) (*sluicev1.InspectResponse, error) {
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused == nil {
		refused = pass.Operate(ctx, access.Read, req.GetDomain())
	}
	if refused != nil {
		return nil, statusOf(refused)
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
		Reason: x.Explanation.Reason, Partition: int32(x.Partition), Holder: x.Holder, Generation: x.Gen,
		Standbys: x.Standbys, Filling: x.Filling, Counted: x.Counted, Grants: int32(x.Grants), Lent: x.Lent,
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
