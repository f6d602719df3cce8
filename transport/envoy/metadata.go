package envoy

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"reflect"
	"unicode/utf8"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluicecluster/sluice/internal/leaf/descvalue"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// metadata returns dynamic metadata for the next filters and the access log: domain, descriptors and hitsAddend of the
// request, and under metadata that of the rules that are not over, merged in the order of the descriptors.
func metadata(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) *structpb.Struct {
	descriptors := make([]*structpb.Value, len(req.GetDescriptors()))
	for i, d := range req.GetDescriptors() {
		descriptors[i] = structpb.NewStructValue(entries(d))
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(req.GetDomain()),
		"descriptors": list(descriptors),
	}
	if hits := req.GetHitsAddend(); hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(hits))
	}
	merged := map[string]any{}
	for i := range b.Results {
		if r := &b.Results[i]; limited(r) && !over(r) && r.Rule != nil {
			merge(merged, r.Rule.Metadata)
		}
	}
	if len(merged) > 0 {
		// Rules are read into nothing that a Struct cannot hold.
		if s, err := structpb.NewStruct(merged); err == nil {
			fields["metadata"] = structpb.NewStructValue(s)
		}
	}
	return &structpb.Struct{Fields: fields}
}

// entries returns a descriptor with each entry as one text.
func entries(d *commonv3.RateLimitDescriptor) *structpb.Struct {
	texts := make([]*structpb.Value, len(d.GetEntries()))
	for i, e := range d.GetEntries() {
		texts[i] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
	}
	fields := map[string]*structpb.Value{"entries": list(texts)}
	if o := d.GetLimit(); o != nil {
		fields["limit"] = structpb.NewStringValue(limitText(o))
	}
	if h := d.GetHitsAddend(); h != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(h.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// limitText spells o as envoyproxy/ratelimit does, in the text form of its message.
func limitText(o *override) string {
	text := fmt.Sprintf("requests_per_unit:%d unit:%v", o.GetRequestsPerUnit(), o.GetUnit())
	if m := o.GetUnitMultiplier(); m != nil {
		text += fmt.Sprintf(" unit_multiplier:{value:%d}", m.GetValue())
	}
	return text
}

func list(values []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

// merge adds to to what only from has, also within mappings that both have. It does not change from, nor anything in it.
func merge(to, from map[string]any) {
	for key, value := range from {
		inner, isMap := value.(map[string]any)
		have, taken := to[key]
		switch {
		case !taken && isMap:
			own := map[string]any{}
			merge(own, inner)
			to[key] = own
		case !taken:
			to[key] = value
		case isMap:
			if own, ok := have.(map[string]any); ok {
				merge(own, inner)
			}
		}
	}
}

// Register adds the services of Envoy and Kuadrant to g, which must have a wire.Codec and not serve
// yet.
func (a *API) Register(g grpc.ServiceRegistrar) {
	desc := ratelimitv3.RateLimitService_ServiceDesc
	desc.Methods = []grpc.MethodDesc{method(Method, newRequest, (*API).ShouldRateLimit)}
	g.RegisterService(&desc, a)
	g.RegisterService(&kuadrantDesc, a)
}

func newRequest() *ratelimitv3.RateLimitRequest { return new(ratelimitv3.RateLimitRequest) }

// method returns the method with that full name. Its handler is as generated ones are, except that it accepts values of
// descriptors that are not UTF-8: Envoy copies headers into descriptors, and an error would let the request pass.
func method[Req, Res proto.Message](name string, empty func() Req, serve func(*API, context.Context, Req) (Res, error)) grpc.MethodDesc {
	shape := shapeOf(empty())
	handler := func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		e := envelope{api: srv.(*API), ctx: ctx, req: empty(), shape: shape}
		err := dec(&e)
		if err = cmp.Or(err, e.err); err != nil {
			return nil, err
		}
		if interceptor == nil {
			return serve(srv.(*API), ctx, e.req.(Req))
		}
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: name}
		return interceptor(ctx, e.req, info, func(ctx context.Context, req any) (any, error) {
			return serve(srv.(*API), ctx, req.(Req))
		})
	}
	return grpc.MethodDesc{MethodName: path.Base(name), Handler: handler}
}

// envelope decodes a request.
type envelope struct {
	api   *API
	ctx   context.Context
	req   proto.Message
	shape *wire.Shape
	// err is why it could not be decoded: gRPC would give errors of a codec the code INTERNAL.
	err error
}

// WireShape implements wire.Shaped.
func (e *envelope) WireShape() *wire.Shape { return e.shape }

// DecodeWire reads the request. A large one is rejected unread if its caller has no permission in
// its domain.
func (e *envelope) DecodeWire(data []byte) error {
	if len(data) > large {
		if rejected := e.api.known(e.ctx, domainOf(data)); rejected != nil {
			e.err = errorOf(rejected, "")
			return nil
		}
	}
	if err := decode(data, e.req); err != nil {
		e.err = status.Error(codes.InvalidArgument, "the request cannot be read: "+err.Error())
	}
	return nil
}

// known returns why a caller has no permission at all in domain, or nil.
func (a *API) known(ctx context.Context, domain string) *limiter.Error {
	pass, rejected := a.config.Guard.Call(ctx, limiter.EnvoyAPI)
	if rejected != nil {
		return rejected
	}
	for verb := access.Check; verb <= access.Admin; verb++ {
		if pass.Allows(verb, domain) {
			return nil
		}
	}
	return pass.May(access.Check, domain)
}

// large is the size of a message, in bytes, whose caller is looked at before it is decoded.
const large = 4 << 10

// domainOf returns the domain of a request, "" if it has none.
func domainOf(data []byte) (domain string) {
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return domain
		}
		if data = rest; num == requestDomain && typ == protowire.BytesType {
			domain = string(value[:min(len(value), limiter.MaxText+1)])
		}
	}
	return domain
}

// shapeOf says what requests of the type of req take. What Kuadrant alone has is of types that are
// not generated, and so is all within it: their messages have maps, and descriptors are decoded a
// second time.
func shapeOf(req proto.Message) *wire.Shape {
	of := func(t reflect.Type) int64 { return int64(t.Size()) + 16 } // and its place in a list
	const text = 128                                                 // in the metadata
	descriptor := of(reflect.TypeFor[commonv3.RateLimitDescriptor]()) + limiter.CheckBytes
	entry := of(reflect.TypeFor[commonv3.RateLimitDescriptor_Entry]()) + 2*limiter.EntryBytes + text
	override := of(reflect.TypeFor[commonv3.RateLimitDescriptor_RateLimitOverride]()) + limiter.LimitBytes
	if _, generated := req.(*ratelimitv3.RateLimitRequest); !generated {
		const dynamic = 512
		descriptor, entry, override = descriptor+dynamic, entry+dynamic, override+dynamic
	}
	name := (*commonv3.RateLimitDescriptor)(nil).ProtoReflect().Descriptor().FullName()
	return wire.ShapeOf(req.ProtoReflect().Descriptor(), map[protoreflect.FullName]wire.Own{
		name: {Bytes: descriptor}, name + ".Entry": {Bytes: entry}, name + ".RateLimitOverride": {Bytes: override},
	})
}

// Field numbers of all requests, RateLimitDescriptor and its Entry.
const requestDomain, requestDescriptors, descriptorEntries, entryValue = 1, 2, 1, 2

// decode reads a request. Values that are not UTF-8 are shortened.
func decode(data []byte, req proto.Message) error {
	err := proto.Unmarshal(data, req)
	if err != nil && proto.Unmarshal(mend(data, requestDescriptors, descriptorEntries, entryValue), req) == nil {
		return nil
	}
	return err
}

// mend returns a message with every text at the path of fields that is not UTF-8 shortened. A part that cannot be read stays
// unchanged.
func mend(data []byte, fields ...protowire.Number) []byte {
	if len(fields) == 0 {
		if utf8.Valid(data) {
			return data
		}
		return []byte(descvalue.Of(string(data)))
	}
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeField(data)
		if n < 0 {
			return append(out, data...)
		}
		if num == fields[0] && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data[protowire.SizeTag(num):])
			out = protowire.AppendBytes(protowire.AppendTag(out, num, typ), mend(value, fields[1:]...))
		} else {
			out = append(out, data[:n]...)
		}
		data = data[n:]
	}
	return out
}
