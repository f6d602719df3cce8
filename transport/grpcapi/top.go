package grpcapi

import (
	"cmp"
	"context"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport/access"
)

// defaultTop is how many keys are listed where the caller does not say.
const defaultTop = 20

// Top implements sluicev1.SluiceServiceServer.
func (s *Server) Top(ctx context.Context, req *sluicev1.TopRequest) (*sluicev1.TopResponse, error) {
	if s.gone() {
		return nil, errLeaving
	}
	pass, refused := s.guard.Call(ctx, limiter.GRPCDoor)
	if refused == nil {
		refused = pass.May(access.Read, req.GetDomain())
	}
	if refused != nil {
		return nil, statusOf(refused)
	}
	by := limiter.TopBy(req.GetBy())
	if int32(by) != int32(req.GetBy()) { // beyond what TopBy can hold, and so refused as the highest that it can
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
