package grpcapi

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/internal/buffers"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// question is a sluice.v1.CheckRequest, decoded straight into a batch. It accepts exactly the messages that the generated
// type accepts; a fuzzer compares the two. ADR 14 has the measurements.
type question struct {
	batch *limiter.Batch
	id    uint64
	// fault is set when the whole request is invalid.
	fault *limiter.Error
	text  text
	size  int // of the message, in bytes
}

// WireSize is the size of q's message in bytes.
func (q *question) WireSize() int { return q.size }

// Field numbers of sluice.v1.
const (
	requestChecks, requestAllOrNothing, requestID                   = 1, 2, 3
	checkDomain, checkDescriptor, checkCost, checkVerb, checkLimits = 1, 2, 3, 4, 5
	entryKey, entryValue                                            = 1, 2

	limitAlgorithm, limitCount, limitPeriod, limitUnlimited, limitBurst, limitCost, limitRefill, limitAlign   = 1, 2, 3, 4, 5, 6, 7, 8
	limitUnit, limitTimezone, limitMinInterval, limitSoft, limitCountDenied, limitSubWindows, limitLogEntries = 9, 10, 11, 12, 13, 14, 15
)

var (
	errUTF8   = errors.New("a string is not valid UTF-8")
	errNumber = errors.New("a field number is out of range")
)

// text is where the strings of a request are copied to: grpc takes its memory back.
type text struct{ chunk strings.Builder }

// A chunk has room for the rest of a short request, or for a part of the rest of a long one: most of that is tags, and
// strings that the check before has too.
const (
	shortRequest = 256
	partOfLong   = 4
)

// keep returns like if part equals it, else a copy of part, which must be valid UTF-8. left is the length of the rest of
// the request, part included.
func (t *text) keep(part []byte, like string, left int) (string, error) {
	if string(part) == like {
		return like, nil
	}
	if !utf8.Valid(part) {
		return "", errUTF8
	}
	if t.chunk.Cap()-t.chunk.Len() < len(part) {
		t.chunk.Reset() // what was copied to it stays where it is
		t.chunk.Grow(max(len(part), min(left, max(shortRequest, left/partOfLong))))
	}
	at := t.chunk.Len()
	t.chunk.Write(part)
	return t.chunk.String()[at:], nil
}

// decode reads a CheckRequest into a new batch. data is not needed afterwards.
func (q *question) decode(data []byte) error {
	q.batch = limiter.NewBatch()
	count := 0
	for len(data) > 0 {
		num, typ, value, rest, err := field(data)
		if err != nil {
			return err
		}
		data = rest
		switch {
		case num == requestChecks && typ == protowire.BytesType:
			// One check too many is enough for the request to be rejected.
			if count++; count <= limiter.MaxChecks {
				if err := q.decodeCheck(value, len(rest)); err != nil {
					return fmt.Errorf("checks[%d]: %w", count-1, err)
				}
			}
		case num == requestAllOrNothing && typ == protowire.VarintType:
			q.batch.AllOrNothing = varint(value) != 0
		case num == requestID && typ == protowire.VarintType:
			q.id = varint(value)
		}
	}
	q.fault = limiter.CountError(count)
	return nil
}

// decodeCheck adds a check. behind is the length of the request after it.
func (q *question) decodeCheck(data []byte, behind int) error {
	c := q.batch.Add()
	before := &limiter.Check{}
	if n := len(q.batch.Checks); n > 1 {
		before = &q.batch.Checks[n-2]
	}
	entries, limits, verb := 0, 0, int32(0)
	for len(data) > 0 {
		num, typ, value, rest, err := field(data)
		if err != nil {
			return err
		}
		left := len(value) + len(rest) + behind
		data = rest
		switch {
		case num == checkDomain && typ == protowire.BytesType:
			if c.Domain, err = q.text.keep(value, before.Domain, left); err != nil {
				return fmt.Errorf("domain: %w", err)
			}
		case num == checkDescriptor && typ == protowire.BytesType:
			var like rules.Entry
			if entries < len(before.Descriptor) {
				like = before.Descriptor[entries]
			}
			e, err := q.decodeEntry(value, like, left)
			if err != nil {
				return fmt.Errorf("descriptor[%d]: %w", entries, err)
			}
			if entries++; entries <= limiter.MaxEntries+1 {
				c.Descriptor = append(c.Descriptor, e)
			}
		case num == checkCost && typ == protowire.VarintType:
			c.Cost = int64(varint(value))
		case num == checkVerb && typ == protowire.VarintType:
			verb = int32(varint(value))
		case num == checkLimits && typ == protowire.BytesType:
			var l sluicev1.Limit
			if err := decodeLimit(value, &l); err != nil {
				return fmt.Errorf("limits[%d]: %w", limits, err)
			}
			if limits++; limits <= bucket.MaxLimits+1 {
				addLimit(c, limits-1, &l)
			}
		}
	}
	setVerb(c, verb)
	return nil
}

// decodeEntry reads one entry of a descriptor. like is the entry at this place of the check before, left the length of the
// rest of the request.
func (q *question) decodeEntry(data []byte, like rules.Entry, left int) (e rules.Entry, err error) {
	for len(data) > 0 {
		num, typ, value, rest, err := field(data)
		if err != nil {
			return e, err
		}
		left -= len(data) - len(value) - len(rest)
		data = rest
		if typ != protowire.BytesType {
			continue
		}
		switch num {
		case entryKey:
			e.Key, err = q.text.keep(value, like.Key, left)
		case entryValue:
			e.Value, err = q.text.keep(value, like.Value, left)
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// decodeLimit reads a Limit.
func decodeLimit(data []byte, l *sluicev1.Limit) error {
	for len(data) > 0 {
		num, typ, value, rest, err := field(data)
		if err != nil {
			return err
		}
		data = rest
		if num == limitTimezone && typ == protowire.BytesType {
			if !utf8.Valid(value) {
				return fmt.Errorf("timezone: %w", errUTF8)
			}
			l.Timezone = string(value)
		}
		if typ != protowire.VarintType {
			continue
		}
		switch v := varint(value); num {
		case limitAlgorithm:
			l.Algorithm = sluicev1.Algorithm(v)
		case limitCount:
			l.Count = int64(v)
		case limitPeriod:
			l.PeriodNs = int64(v)
		case limitUnlimited:
			l.Unlimited = v != 0
		case limitBurst:
			l.Burst = int64(v)
		case limitCost:
			l.Cost = int64(v)
		case limitRefill:
			l.Refill = sluicev1.Refill(v)
		case limitAlign:
			l.Align = sluicev1.Align(v)
		case limitUnit:
			l.Unit = sluicev1.Unit(v)
		case limitMinInterval:
			l.MinIntervalNs = int64(v)
		case limitSoft:
			l.Soft = int32(v)
		case limitCountDenied:
			l.CountDenied = v != 0
		case limitSubWindows:
			l.SubWindows = int32(v)
		case limitLogEntries:
			l.LogEntries = int32(v)
		}
	}
	return nil
}

// field reads one field. The value of a BytesType is without its length, so that value always ends where rest begins.
func field(data []byte) (num protowire.Number, typ protowire.Type, value, rest []byte, err error) {
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

// varint reads a value that field has found to be one.
func varint(value []byte) uint64 {
	v, _ := protowire.ConsumeVarint(value)
	return v
}

// setVerb sets the verb, or the Err of an unknown one.
func setVerb(c *limiter.Check, v int32) {
	if v >= 0 && v <= int32(sluicev1.Verb_VERB_REFUND) {
		c.Verb = bucket.Verb(v)
		return
	}
	c.Err = &limiter.Error{Code: limiter.Invalid, Field: "verb", Message: fmt.Sprintf("unknown verb %d; want 0 to %d", v, sluicev1.Verb_VERB_REFUND)}
}

// addLimit adds limit i, or the Err of an invalid one.
func addLimit(c *limiter.Check, i int, p *sluicev1.Limit) {
	l, err := transport.LimitFromProto(p)
	if err != nil {
		if c.Err == nil {
			c.Err = limiter.LimitsError(transport.AtLimit(err, i))
		}
		return
	}
	c.Limits = append(c.Limits, l)
}

// codec is gRPC's own, except for the messages of the hot calls: they have their own shape in memory and the same bytes on
// the wire.
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
