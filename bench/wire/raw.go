package wire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-project/sluice/bench/load"
)

// Raw asks limiters whose messages are written and read here by hand, so that
// the harness needs none of their code. That costs this side less than generated
// messages would, so it flatters them.
type Raw struct {
	// Conns were dialled with RawCodec.
	Conns []*grpc.ClientConn
	// Method is the full name of the call.
	Method string
	// Append adds the request to b.
	Append func(b []byte, domain string, keys []string) []byte
	// Read adds the answers to seen and returns their number.
	Read func(b []byte, seen *load.Tally) (int, error)
}

// Nodes implements load.Target.
func (r *Raw) Nodes() int { return len(r.Conns) }

// NewCaller implements load.Target.
func (r *Raw) NewCaller(domain string, _ int) load.Caller {
	return &rawCaller{target: r, domain: domain}
}

type rawCaller struct {
	target   *Raw
	domain   string
	req, res []byte
}

// Call implements load.Caller.
func (c *rawCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	c.req = c.target.Append(c.req[:0], c.domain, keys)
	if err := c.target.Conns[node].Invoke(ctx, c.target.Method, &c.req, &c.res); err != nil {
		return err
	}
	n, err := c.target.Read(c.res, seen)
	if err == nil && n != len(keys) {
		err = fmt.Errorf("%d answers for %d checks", n, len(keys))
	}
	return err
}

// RawCodec makes a connection carry *[]byte as they are.
func RawCodec() grpc.DialOption {
	return grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}))
}

type rawCodec struct{}

// Name is what the servers know as their own codec.
func (rawCodec) Name() string { return "proto" }

// Marshal copies, because gRPC may keep what it returns and callers write again.
func (rawCodec) Marshal(v any) ([]byte, error) {
	return append([]byte(nil), *v.(*[]byte)...), nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	b := v.(*[]byte)
	*b = append((*b)[:0], data...)
	return nil
}

// field is one field of a message: number for varints, bytes for the rest.
type field struct {
	num    protowire.Number
	number uint64
	bytes  []byte
}

// fields calls f for each field of the message b.
func fields(b []byte, f func(field)) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		out := field{num: num}
		switch kind {
		case protowire.VarintType:
			out.number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			out.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		f(out)
	}
	return nil
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendMessage(b []byte, num protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), m)
}
