// Package wire reads and writes messages of hot calls as protobuf, straight from and to the memory that they are decided in; ADR 14
// has the measurements.
package wire

import (
	"errors"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/transport/internal/buffers"
)

// ErrUTF8 is the error of a string that a client must not send.
var ErrUTF8 = errors.New("a string is not valid UTF-8")

var errNumber = errors.New("a field number is out of range")

// Text is where the strings of a request are copied to: grpc takes its memory back.
type Text struct{ chunk strings.Builder }

// A chunk has room for the rest of a short request, or for a part of the rest of a long one: most of that is tags, and
// strings that the check before has too.
const (
	shortRequest = 256
	partOfLong   = 4
)

// Keep returns like if part equals it, else a copy of part, which must be valid UTF-8. left is the length of the rest of
// the request, part included.
func (t *Text) Keep(part []byte, like string, left int) (string, error) {
	if string(part) == like {
		return like, nil
	}
	if !utf8.Valid(part) {
		return "", ErrUTF8
	}
	if t.chunk.Cap()-t.chunk.Len() < len(part) {
		t.chunk.Reset() // what was copied to it stays where it is
		t.chunk.Grow(max(len(part), min(left, max(shortRequest, left/partOfLong))))
	}
	at := t.chunk.Len()
	t.chunk.Write(part)
	return t.chunk.String()[at:], nil
}

// Field reads one field. The value of a BytesType is without its length, so that value always ends where rest begins.
func Field(data []byte) (num protowire.Number, typ protowire.Type, value, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(data)
	if n < 0 {
		return 0, 0, nil, nil, protowire.ParseError(n)
	}
	if num > protowire.MaxValidNumber { // ConsumeTag lets some of these pass
		return 0, 0, nil, nil, errNumber
	}
	data = data[n:]
	if typ == protowire.BytesType {
		value, n = protowire.ConsumeBytes(data)
		if n < 0 {
			return 0, 0, nil, nil, protowire.ParseError(n)
		}
		return num, typ, value, data[n:], nil
	}
	n = protowire.ConsumeFieldValue(num, typ, data)
	if n < 0 {
		return 0, 0, nil, nil, protowire.ParseError(n)
	}
	return num, typ, data[:n], data[n:], nil
}

// Varint reads a value that Field has found to be one.
func Varint(value []byte) uint64 {
	v, _ := protowire.ConsumeVarint(value)
	return v
}

// Nest appends the message that f appends, with its length before it. One byte is reserved for the length, enough below
// 128; a longer message is moved.
func Nest(out []byte, f func([]byte) []byte) []byte {
	start := len(out)
	out = f(append(out, 0))
	n := len(out) - start - 1
	if n < 0x80 {
		out[start] = byte(n)
		return out
	}
	more := protowire.SizeVarint(uint64(n)) - 1
	for range more {
		out = append(out, 0)
	}
	copy(out[start+1+more:], out[start+1:start+1+n])
	protowire.AppendVarint(out[:start], uint64(n))
	return out
}

// AppendVarint appends a field, unless v is 0.
func AppendVarint(out []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, num, protowire.VarintType), v)
}

// AppendBool appends a field, unless v is false.
func AppendBool(out []byte, num protowire.Number, v bool) []byte {
	return AppendVarint(out, num, protowire.EncodeBool(v))
}

// AppendString appends a field, unless s is empty.
func AppendString(out []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, num, protowire.BytesType), s)
}

// Request is a message that decodes itself.
type Request interface {
	// DecodeWire reads the message. data is not needed afterwards.
	DecodeWire(data []byte) error
}

// Response is a message that encodes itself, once.
type Response interface{ EncodeWire() mem.BufferSlice }

// Codec is gRPC's own, except for Request and Response.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(encproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(Response); ok {
		return r.EncodeWire(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*inflow.Message)
	if !ok {
		return c.decode(data, v)
	}
	decode, most := m.Begin(data.Len())
	if most > 0 {
		cost, field := int64(data.Len()), ""
		if shape := shapeFor(m.Into); shape != nil {
			cost, field = shape.Cost(data, most)
		}
		decode = m.Take(cost, field)
	}
	if !decode {
		return nil
	}
	return c.decode(data, m.Into)
}

func (c Codec) decode(data mem.BufferSlice, v any) error {
	r, ok := v.(Request)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(buffers.Pool)
	defer buf.Free()
	return r.DecodeWire(buf.ReadOnlyData())
}
