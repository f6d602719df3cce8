package grpcapi

import (
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/sluice-project/sluice/transport/internal/buffers"
)

// codec is gRPC's own for all messages but those of the hot calls, which have
// their own shape in memory. Bytes on the wire are the same.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encproto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*answer); ok {
		return a.encode(), nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	q, ok := v.(*question)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	q.size = data.Len()
	buf := data.MaterializeToBuffer(buffers.Pool)
	defer buf.Free()
	return q.decode(buf.ReadOnlyData())
}
