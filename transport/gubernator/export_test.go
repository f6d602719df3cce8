package gubernator

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
)

// GetRateLimits calls d as gRPC does: by the bytes of req.
func (a *API) GetRateLimits(ctx context.Context, req *gubernatorv1.GetRateLimitsReq) (*gubernatorv1.GetRateLimitsResp, error) {
	data, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	q := new(question)
	if err := q.DecodeWire(data); err != nil {
		return nil, err
	}
	pass, rejected := a.config.Guard.Call(ctx, limiter.GubernatorAPI)
	if err := a.decide(ctx, &pass, rejected, q); err != nil {
		return nil, err
	}
	buf := q.EncodeWire()
	defer buf.Free()
	res := new(gubernatorv1.GetRateLimitsResp)
	return res, proto.Unmarshal(buf.Materialize(), res)
}
