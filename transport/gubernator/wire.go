package gubernator

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluicecluster/sluice/limiter"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/transport/internal/buffers"
	"github.com/sluicecluster/sluice/transport/internal/wire"
)

// question is a GetRateLimitsReq, and then the decided batch of its GetRateLimitsResp. It accepts the messages that the generated type
// accepts.
type question struct {
	requests []request
	count    int // also of those above maxRequests
	text     wire.Text
	batch    *limiter.Batch
	now      time.Time
}

// questions has those that were answered.
var questions = sync.Pool{New: func() any { return new(question) }}

// WireShape implements wire.Shaped.
func (*question) WireShape() *wire.Shape { return callShape }

var callShape = wire.ShapeOf((*gubernatorv1.GetRateLimitsReq)(nil).ProtoReflect().Descriptor(), map[protoreflect.FullName]wire.Own{
	"pb.gubernator.RateLimitReq": {Bytes: int64(reflect.TypeFor[request]().Size()) + limiter.CheckBytes, Most: maxRequests},
})

// Field numbers.
const (
	callItems = 1 // of both messages

	requestName, requestKey, requestHits, requestLimit               = 1, 2, 3, 4
	requestDuration, requestAlgorithm, requestBehavior, requestBurst = 5, 6, 7, 8

	responseStatus, responseLimit, responseRemaining   = 1, 2, 3
	responseResetTime, responseError, responseMetadata = 4, 5, 6
	metadataKey, metadataValue                         = 1, 2
)

// serviceDesc is the generated one, except that GetRateLimits decodes to question and encodes from it.
func serviceDesc() *grpc.ServiceDesc {
	d := gubernatorv1.V1_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i := range d.Methods {
		if d.Methods[i].MethodName == "GetRateLimits" {
			d.Methods[i].Handler = getRateLimits
		}
	}
	return &d
}

func getRateLimits(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	c := questions.Get().(*question)
	if err := decode(c); err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, req any) (any, error) {
		c, a := req.(*question), srv.(*API)
		pass, rejected := a.config.Guard.Call(ctx, limiter.GubernatorAPI)
		return c, a.decide(ctx, &pass, rejected, c)
	}
	if interceptor == nil {
		return handle(ctx, c)
	}
	return interceptor(ctx, c, &grpc.UnaryServerInfo{Server: srv, FullMethod: gubernatorv1.V1_GetRateLimits_FullMethodName}, handle)
}

// DecodeWire reads a GetRateLimitsReq.
func (c *question) DecodeWire(data []byte) error {
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		data = rest
		if num != callItems || typ != protowire.BytesType {
			continue
		}
		if c.count++; c.count > maxRequests {
			continue // the call is rejected
		}
		if err := c.decodeRequest(value, len(rest)); err != nil {
			return fmt.Errorf("requests[%d]: %w", c.count-1, err)
		}
	}
	return nil
}

// decodeRequest adds a request. behind is the length of the message after it.
func (c *question) decodeRequest(data []byte, behind int) error {
	var q, before request
	if n := len(c.requests); n > 0 {
		before = c.requests[n-1]
	}
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		left := len(value) + len(rest) + behind
		data = rest
		switch {
		case num == requestName && typ == protowire.BytesType:
			q.name, err = c.text.Keep(value, before.name, left)
		case num == requestKey && typ == protowire.BytesType:
			q.key, err = c.text.Keep(value, before.key, left)
		case typ == protowire.VarintType:
			q.set(num, wire.Varint(value))
		}
		if err != nil {
			return err
		}
	}
	if q.domain = before.domain; q.name != before.name || q.domain == "" {
		q.domain = domainPrefix + q.name
	}
	c.requests = append(c.requests, q)
	return nil
}

// set sets a field that is a number.
func (q *request) set(num protowire.Number, v uint64) {
	switch num {
	case requestHits:
		q.hits = int64(v)
	case requestLimit:
		q.limit = int64(v)
	case requestDuration:
		q.duration = int64(v)
	case requestAlgorithm:
		q.algorithm = gubernatorv1.Algorithm(v)
	case requestBehavior:
		q.behavior = gubernatorv1.Behavior(v)
	case requestBurst:
		q.burst = int64(v)
	}
}

// responseSize is more than any response takes on the wire without its strings.
const responseSize = 64

// EncodeWire returns the GetRateLimitsResp in a pooled buffer.
func (c *question) EncodeWire() mem.BufferSlice {
	size := 64
	for i := range c.batch.Results {
		size += len(c.batch.Results[i].Owner)
	}
	buf := buffers.Pool.Get(size + responseSize*len(c.requests))
	out := (*buf)[:0]
	for i := range c.requests {
		a := c.requests[i].response(c.batch, c.now)
		out = protowire.AppendTag(out, callItems, protowire.BytesType)
		out = wire.Nest(out, a.append)
	}
	c.batch.Release()
	clear(c.requests)
	*c = question{requests: c.requests[:0]}
	questions.Put(c)
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, buffers.Pool)}
}

func (a *response) append(out []byte) []byte {
	out = wire.AppendVarint(out, responseStatus, uint64(a.status))
	out = wire.AppendVarint(out, responseLimit, uint64(a.limit))
	out = wire.AppendVarint(out, responseRemaining, uint64(a.remaining))
	out = wire.AppendVarint(out, responseResetTime, uint64(a.resetTime))
	out = wire.AppendString(out, responseError, a.err)
	if a.owner == "" {
		return out
	}
	out = protowire.AppendTag(out, responseMetadata, protowire.BytesType)
	return wire.Nest(out, func(out []byte) []byte {
		return wire.AppendString(wire.AppendString(out, metadataKey, ownerKey), metadataValue, a.owner)
	})
}

// ownerKey is the metadata that has the name of the deciding node.
const ownerKey = "owner"
