package client

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-project/sluice/internal/leaf/descvalue"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// The messages of CheckStream are written and read by hand, since reflection would cost more than all else that a check
// needs here. A test compares both with the generated types.

// Field numbers of sluice.v1.
const (
	requestChecks, requestID                                        = 1, 3
	checkDomain, checkDescriptor, checkCost, checkVerb, checkLimits = 1, 2, 3, 4, 5
	entryKey, entryValue                                            = 1, 2

	responseDecisions, responseID, responseError = 1, 2, 3
)

// appendCounter appends the fields of c that identify its counter: domain, descriptor and limits. Domains and keys must
// be UTF-8.
func appendCounter(b []byte, c *Check) ([]byte, *Error) {
	if !utf8.ValidString(c.Domain) {
		return b, invalid("domain", "not valid UTF-8")
	}
	b = appendString(b, checkDomain, c.Domain)
	for i := range c.Descriptor {
		e := &c.Descriptor[i]
		if !utf8.ValidString(e.Key) {
			return b, invalid(fmt.Sprintf("descriptor[%d].key", i), "not valid UTF-8")
		}
		value := descvalue.Of(e.Value)
		b = protowire.AppendTag(b, checkDescriptor, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeString(e.Key)+sizeString(value)))
		b = appendString(b, entryKey, e.Key)
		b = appendString(b, entryValue, value)
	}
	for i := range c.Limits {
		p := c.Limits[i].proto()
		b = protowire.AppendTag(b, checkLimits, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(proto.Size(p)))
		var err error
		if b, err = (proto.MarshalOptions{}).MarshalAppend(b, p); err != nil {
			return b, invalid(fmt.Sprintf("limits[%d]", i), err.Error())
		}
	}
	return b, nil
}

// appendSpending appends the other fields.
func appendSpending(b []byte, cost int64, verb sluicev1.Verb) []byte {
	if cost != 1 {
		b = protowire.AppendTag(b, checkCost, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(cost))
	}
	if verb != 0 {
		b = protowire.AppendTag(b, checkVerb, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(verb))
	}
	return b
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s)) // field numbers here take one byte
}

var errMalformed = errors.New("malformed answer")

// readResponse returns the id of a CheckResponse, its decisions, appended to into, and its error.
func readResponse(b []byte, into [][]byte) (id uint64, decisions [][]byte, failure *sluicev1.Error, err error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, nil, nil, errMalformed
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return 0, nil, nil, errMalformed
		}
		switch {
		case num == responseDecisions && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b)
			into = append(into, v)
		case num == responseID && typ == protowire.VarintType:
			id, _ = protowire.ConsumeVarint(b)
		case num == responseError && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b)
			failure = new(sluicev1.Error)
			if proto.Unmarshal(v, failure) != nil {
				return 0, nil, nil, errMalformed
			}
		}
		b = b[n:]
	}
	return id, into, failure, nil
}

func duration(v uint64) time.Duration { return time.Duration(int64(v)) }

// readDecision reads a Decision, or the error in its place.
func readDecision(b []byte, d *Decision, names *names) (failure *sluicev1.Error, err error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errMalformed
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return nil, errMalformed
			}
			d.number(num, v)
			b = b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return nil, errMalformed
			}
			switch num {
			case 4:
				d.Owner = names.get(v)
			case 5:
				d.Rule = names.get(v)
			case 17:
				failure = new(sluicev1.Error)
				err = proto.Unmarshal(v, failure)
			case 18:
				d.Response, err = readRuleResponse(v)
			}
			if err != nil {
				return nil, errMalformed
			}
			b = b[n:]
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return nil, errMalformed
			}
			b = b[n:]
		}
	}
	if d.Source == SourceUnmatched && d.Allowed {
		d.Limit, d.Remaining = math.MaxInt64, math.MaxInt64
	}
	return failure, nil
}

// number sets the field of sluice.v1.Decision that is numbered num.
func (d *Decision) number(num protowire.Number, v uint64) {
	switch num {
	case 1:
		d.Allowed = v != 0
	case 2:
		d.verdict(sluicev1.Verdict(v))
	case 3:
		d.Source = Source(min(v, uint64(SourceLostState)))
	case 7:
		d.Limit = int64(v)
	case 8:
		d.Remaining = int64(v)
	case 9:
		d.ResetAfter = duration(v)
	case 10:
		d.RetryAfter = duration(v)
	case 11:
		d.Delay = duration(v)
	case 12:
		d.deniedFor = duration(v)
	case 13:
		d.Period = duration(v)
	case 16:
		d.LimitIndex = int(uint32(v))
	case 19:
		d.Staleness = duration(v)
	}
}

func (d *Decision) verdict(v sluicev1.Verdict) {
	switch v {
	case sluicev1.Verdict_VERDICT_ALLOWED_SOFT:
		d.Soft = true
	case sluicev1.Verdict_VERDICT_ALLOWED_SHADOW:
		d.Shadowed = true
	case sluicev1.Verdict_VERDICT_ALLOWED_ELASTIC:
		d.Elastic = true
	case sluicev1.Verdict_VERDICT_DENIED_NEVER:
		d.RetryAfter = Never
	}
}

func readRuleResponse(b []byte) (*Response, error) {
	var p sluicev1.DenialResponse
	if err := proto.Unmarshal(b, &p); err != nil {
		return nil, err
	}
	r := &Response{Status: int(p.GetStatus()), Body: p.GetBody()}
	for _, h := range p.GetHeaders() {
		r.Header = append(r.Header, Header{h.GetName(), h.GetValue()})
	}
	return r, nil
}

// names interns the names of rules and nodes. Not safe for concurrent use.
type names struct{ known map[string]string }

// maxNames bounds names; with more rules and nodes, strings are allocated again.
const maxNames = 4096

func (n *names) get(b []byte) string {
	if s, ok := n.known[string(b)]; ok {
		return s
	}
	if n.known == nil || len(n.known) >= maxNames {
		n.known = map[string]string{}
	}
	s := string(b)
	n.known[s] = s
	return s
}

// codec is gRPC's own except for the frames of streams.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(encproto.Name)} }

// Marshal hands a frame's buffer over to gRPC.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	out := f.out
	f.out = nil
	return mem.BufferSlice{mem.NewBuffer(out, mem.DefaultBufferPool())}, nil
}

// Unmarshal passes a response to its stream, and keeps the bytes of a reply.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *stream:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return v.take(buf.ReadOnlyData())
	case *reply:
		v.bytes = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// reply is the encoded response of a unary call.
type reply struct{ bytes []byte }
