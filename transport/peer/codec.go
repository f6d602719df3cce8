package peer

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
	"github.com/sluice-project/sluice/transport/internal/buffers"
)

// frameCodec is gRPC's own codec, except that it decodes frames into the memory
// that their message already has, and has a pool of its own. Bytes on the wire are the same, so either side
// may be without it.
type frameCodec struct{ encoding.CodecV2 }

func newFrameCodec() frameCodec { return frameCodec{encoding.GetCodecV2(encproto.Name)} }

// reuse merges into columns that were cut to length 0. Fields that a newer minor
// added must be dropped: merged, they would pile up frame by frame.
var reuse = proto.UnmarshalOptions{Merge: true, DiscardUnknown: true}

// cached is for messages whose Size was called just before.
var cached = proto.MarshalOptions{UseCachedSize: true}

func (c frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := proto.Size(m)
	if mem.IsBelowBufferPoolingThreshold(size) {
		small, err := cached.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(small)}, err
	}
	buf := buffers.Pool.Get(size)
	if _, err := cached.MarshalAppend((*buf)[:0], m); err != nil {
		buffers.Pool.Put(buf)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buf, buffers.Pool)}, nil
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	var m proto.Message
	switch v := v.(type) {
	case *peerv1.Request:
		cutRequest(v)
		m = v
	case *peerv1.Reply:
		cutReply(v)
		m = v
	case *peerv1.Post:
		cutPost(v)
		m = v
	case *peerv1.Greeting:
		if data.Len() > maxGreeting {
			return fmt.Errorf("a first frame of %d bytes; a hello has at most %d", data.Len(), maxGreeting)
		}
		m = v
	default:
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(buffers.Pool)
	defer buf.Free()
	return reuse.Unmarshal(buf.ReadOnlyData(), m)
}

// cutRequest empties m and keeps the memory of its columns.
func cutRequest(m *peerv1.Request) {
	m.Hello = nil
	m.Seq = 0
	clear(m.Define)
	m.Define = m.Define[:0]
	m.KeyHi = m.KeyHi[:0]
	m.KeyLo = m.KeyLo[:0]
	m.Limits = m.Limits[:0]
	m.Cost = m.Cost[:0]
	m.Verb = m.Verb[:0]
	m.Flags = m.Flags[:0]
	m.Id = m.Id[:0]
	m.Times = m.Times[:0]
	m.Want = m.Want[:0]
	m.Rate = m.Rate[:0]
	m.ForNs = m.ForNs[:0]
	m.Reserve = m.Reserve[:0]
	m.Lost = m.Lost[:0]
	clear(m.Traces)
	m.Traces = m.Traces[:0]
}

// cutReply is cutRequest for a Reply.
func cutReply(m *peerv1.Reply) {
	m.Hello = nil
	m.Seq = 0
	m.Status = m.Status[:0]
	m.Flags = m.Flags[:0]
	m.Index = m.Index[:0]
	m.Limit = m.Limit[:0]
	m.Remaining = m.Remaining[:0]
	m.ResetAfterNs = m.ResetAfterNs[:0]
	m.RetryAfterNs = m.RetryAfterNs[:0]
	m.DelayNs = m.DelayNs[:0]
	clear(m.Names)
	m.Names = m.Names[:0]
	m.Holder = m.Holder[:0]
	m.Granted = m.Granted[:0]
	m.Grant = m.Grant[:0]
	m.ForNs = m.ForNs[:0]
	clear(m.Denials)
	m.Denials = m.Denials[:0]
}

// cutPost is cutRequest for a Post. Letters are made anew.
func cutPost(m *peerv1.Post) {
	m.Hello = nil
	clear(m.Define)
	m.Define = m.Define[:0]
	clear(m.Texts)
	m.Texts = m.Texts[:0]
	clear(m.Letters)
	m.Letters = m.Letters[:0]
}

// trim empties a column of zeros, which is how it travels.
func trim[T comparable](column []T) []T {
	var zero T
	for _, v := range column {
		if v != zero {
			return column
		}
	}
	return column[:0]
}

// at returns value i of a column that may have been left empty.
func at[T any](column []T, i int) T {
	if len(column) == 0 {
		var zero T
		return zero
	}
	return column[i]
}
