package envoy

import (
	"context"
	"slices"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluice-project/sluice/internal/shortvalue"
)

// Register adds envoy.service.ratelimit.v3.RateLimitService to g, which must not serve yet.
func (d *Door) Register(g grpc.ServiceRegistrar) {
	desc := ratelimitv3.RateLimitService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	desc.Methods[0].Handler = handle
	g.RegisterService(&desc, d)
}

// handle is the generated handler of ShouldRateLimit, but for reading the request: Envoy puts headers into descriptors as they
// come, and the generated one fails where a header is not UTF-8, which would let the request pass.
func handle(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	var raw emptypb.Empty // keeps every field as bytes
	if err := dec(&raw); err != nil {
		return nil, err
	}
	req, err := decode(raw.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the request cannot be read: "+err.Error())
	}
	door := srv.(ratelimitv3.RateLimitServiceServer)
	if interceptor == nil {
		return door.ShouldRateLimit(ctx, req)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: Method}
	return interceptor(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return door.ShouldRateLimit(ctx, req.(*ratelimitv3.RateLimitRequest))
	})
}

// Field numbers of RateLimitRequest, RateLimitDescriptor and its Entry.
const requestDescriptors, descriptorEntries, entryValue = 2, 1, 2

// decode reads a RateLimitRequest. Values that are not UTF-8 are shortened.
func decode(data []byte) (*ratelimitv3.RateLimitRequest, error) {
	req := new(ratelimitv3.RateLimitRequest)
	err := proto.Unmarshal(data, req)
	if err != nil && proto.Unmarshal(mend(data, requestDescriptors, descriptorEntries, entryValue), req) == nil {
		return req, nil
	}
	return req, err
}

// mend returns a message in which every text at the path of fields that is not UTF-8 is shortened. What cannot be read stays as
// it is.
func mend(data []byte, path ...protowire.Number) []byte {
	if len(path) == 0 {
		if utf8.Valid(data) {
			return data
		}
		return []byte(shortvalue.Of(string(data)))
	}
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeField(data)
		if n < 0 {
			return append(out, data...)
		}
		if num == path[0] && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data[protowire.SizeTag(num):])
			out = protowire.AppendBytes(protowire.AppendTag(out, num, typ), mend(value, path[1:]...))
		} else {
			out = append(out, data[:n]...)
		}
		data = data[n:]
	}
	return out
}
