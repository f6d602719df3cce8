package sluice

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/descvalue"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// The messages of CheckStream and Session are written and read by hand, since reflection would cost more than all else that a check
// needs here. A test compares both with the generated types.

// Field numbers of sluice.v1.
const (
	requestChecks, requestAll, requestID                            = 1, 2, 3
	requestTimeout, requestRequires, requestIdempotencyKey          = 4, 6, 7
	requestLease                                                    = 8
	checkDomain, checkDescriptor, checkCost, checkVerb, checkLimits = 1, 2, 3, 4, 5
	entryKey, entryValue                                            = 1, 2

	responseDecisions, responseID, responseError, responseLease = 1, 2, 3, 6
)

// appendCounter appends the fields of c that identify its counter: domain, descriptor and limits. Domains and keys must
// be UTF-8.
func appendCounter(b []byte, c *Check) ([]byte, error) {
	if !utf8.ValidString(c.Domain) {
		return b, limit.Invalid("domain", "not valid UTF-8")
	}
	b = appendString(b, checkDomain, c.Domain)
	for i := range c.Descriptor {
		e := &c.Descriptor[i]
		if !utf8.ValidString(e.Key) {
			return b, limit.Invalid(fmt.Sprintf("descriptor[%d].key", i), "not valid UTF-8")
		}
		value := descvalue.Of(e.Value)
		b = protowire.AppendTag(b, checkDescriptor, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeString(e.Key)+sizeString(value)))
		b = appendString(b, entryKey, e.Key)
		b = appendString(b, entryValue, value)
	}
	for i := range c.Limits {
		var fields [128]byte // of most limits
		l := appendLimit(fields[:0], &c.Limits[i])
		if !utf8.ValidString(c.Limits[i].TimeZone) {
			return b, limit.Invalid(fmt.Sprintf("limits[%d].timezone", i), "not valid UTF-8")
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, checkLimits, protowire.BytesType), l)
	}
	return b, nil
}

// appendLimit appends the fields of l.
func appendLimit(b []byte, l *Limit) []byte {
	b = appendNumber(b, 1, int64(l.Algorithm))
	b = appendNumber(b, 2, l.Count)
	b = appendNumber(b, 3, int64(l.Period))
	b = appendBool(b, 4, l.Unlimited)
	b = appendNumber(b, 5, l.Burst)
	b = appendNumber(b, 6, l.Weight)
	b = appendNumber(b, 7, int64(l.Refill))
	b = appendNumber(b, 8, int64(l.Align))
	b = appendNumber(b, 9, int64(l.Unit))
	b = appendString(b, 10, l.TimeZone)
	b = appendNumber(b, 11, int64(l.MinInterval))
	b = appendNumber(b, 12, int64(l.SoftPercent))
	b = appendBool(b, 13, l.CountDenied)
	b = appendNumber(b, 14, int64(l.SubWindows))
	b = appendNumber(b, 15, int64(l.LogEntries))
	return appendNumber(b, 16, int64(l.BlockFor))
}

// appendSpending appends the other fields.
func appendSpending(b []byte, c *Check) []byte {
	if c.Amount != 1 { // unset means 1
		b = protowire.AppendVarint(protowire.AppendTag(b, checkCost, protowire.VarintType), uint64(c.Amount))
	}
	return appendNumber(b, checkVerb, int64(c.Verb)) // with the same numbers
}

// allOrNothing returns the field of a request that is decided as one.
func allOrNothing() []byte { return appendBool(nil, requestAll, true) }

// idempotent returns the fields of a request that is made once; nodes that cannot do that reject it.
func idempotent(key string) []byte {
	return appendString(appendString(nil, requestRequires, "idempotency_key"), requestIdempotencyKey, key)
}

// leasing returns the fields of a request for a lease, which may give back another one.
func leasing(units int64, life time.Duration, back *spentLease) []byte {
	b := appendNumber(appendNumber(nil, 1, units), 2, int64(life))
	if back != nil {
		b = appendNumber(appendString(b, 3, back.id), 4, back.actual)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, requestLease, protowire.BytesType), b)
}

func appendNumber(b []byte, num protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v)) // #nosec G115 -- as int64 is encoded
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), 1)
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

// response is a CheckResponse.
type response struct {
	id        uint64
	decisions [][]byte
	failure   *sluicev1.Error
	lease     *sluicev1.Lease
}

// readResponse reads a CheckResponse, and appends its decisions to into.
func readResponse(b []byte, into [][]byte) (r response, err error) {
	r.decisions = into
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return response{}, errMalformed
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return response{}, errMalformed
		}
		var m proto.Message
		switch {
		case num == responseDecisions && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b)
			r.decisions = append(r.decisions, v)
		case num == responseID && typ == protowire.VarintType:
			r.id, _ = protowire.ConsumeVarint(b)
		case num == responseError && typ == protowire.BytesType:
			r.failure = new(sluicev1.Error)
			m = r.failure
		case num == responseLease && typ == protowire.BytesType:
			r.lease = new(sluicev1.Lease)
			m = r.lease
		}
		if m != nil {
			if v, _ := protowire.ConsumeBytes(b); proto.Unmarshal(v, m) != nil {
				return response{}, errMalformed
			}
		}
		b = b[n:]
	}
	return r, nil
}

func duration(v uint64) time.Duration { return time.Duration(int64(v)) }

// answer is a decision, and what a node says of it for the client.
type answer struct {
	Decision
	deniedFor time.Duration // how long a denial may be remembered
	onFailure onFailure
}

// readDecision reads a Decision, or the error in its place.
func readDecision(b []byte, d *answer, names *names) (failure *sluicev1.Error, err error) {
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
			case 6:
				d.LimitName = names.get(v)
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
	return failure, nil
}

// number sets the field of sluice.v1.Decision that is numbered num.
func (d *answer) number(num protowire.Number, v uint64) {
	switch num {
	case 1:
		d.Allowed = v != 0
	case 2: // the numbers are the same, of those that are known
		if d.Verdict = limit.VerdictUnknown; v <= uint64(limit.VerdictDeniedByOthers) {
			d.Verdict = limit.Verdict(v)
		}
	case 3: // as above
		if d.Source = limit.SourceUnknown; v <= uint64(limit.SourceLostState) {
			d.Source = limit.Source(v)
		}
	case 7:
		d.Counted, d.Limit = true, int64(v)
	case 8:
		d.Remaining = int64(v)
	case 9:
		d.ResetAfter = duration(v)
	case 10:
		d.RetryAfter = max(1, duration(v))
	case 11:
		d.Delay = duration(v)
	case 12:
		d.deniedFor = duration(v)
	case 13:
		d.Period = duration(v)
	case 14:
		d.Count = int64(v)
	case 15:
		d.Burst = int64(v)
	case 16:
		d.LimitIndex = int(uint32(v))
	case 19:
		d.Staleness = duration(v)
	case 20:
		if v <= uint64(onFailureClosed) {
			d.onFailure = onFailure(v)
		}
	}
}

func readRuleResponse(b []byte) (*limit.Response, error) {
	var p sluicev1.DenialResponse
	if err := proto.Unmarshal(b, &p); err != nil {
		return nil, err
	}
	r := &limit.Response{Status: int(p.GetStatus()), Body: p.GetBody()}
	for _, h := range p.GetHeaders() {
		r.Header = append(r.Header, limit.Header{Name: h.GetName(), Value: h.GetValue()})
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

// Unmarshal passes a response to its stream or session.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if s, ok := v.(interface{ take(b []byte) error }); ok {
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return s.take(buf.ReadOnlyData())
	}
	return c.CodecV2.Unmarshal(data, v)
}
