package grpcapi

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/internal/buffers"
)

// answer is a sluice.v1.CheckResponse, encoded straight from a batch, which it owns and releases.
type answer struct {
	batch *limiter.Batch // nil when fault is set
	id    uint64
	fault *limiter.Error
}

// Field numbers of sluice.v1.
const (
	responseDecisions, responseID, responseError = 1, 2, 3

	decisionAllowed, decisionLimit, decisionRemaining     = 1, 2, 3
	decisionResetAfter, decisionRetryAfter, decisionDelay = 4, 5, 6
	decisionRule, decisionSource, decisionOwner           = 7, 8, 9
	decisionSoft, decisionShadowed, decisionNever         = 10, 11, 12
	decisionLimitIndex, decisionPeriod, decisionError     = 13, 14, 15
	decisionDeniedFor, decisionResponse                   = 16, 17
	decisionStaleness, decisionElastic                    = 18, 19

	responseStatus, responseHeaders, responseBody = 1, 2, 3
	headerName, headerValue                       = 1, 2
)

// decisionSize is more than any decision takes on the wire without its strings and its error.
const decisionSize = 120

// encode returns the message in a pooled buffer.
func (a *answer) encode() mem.BufferSlice {
	size := 64
	if a.batch != nil {
		for i := range a.batch.Results {
			r := &a.batch.Results[i]
			size += decisionSize + len(r.RuleName()) + len(r.Owner)
		}
	}
	pool := buffers.Pool
	buf := pool.Get(size)
	out := (*buf)[:0]
	if a.batch != nil {
		room := limiter.MaxResponses
		for i := range a.batch.Results {
			out = protowire.AppendTag(out, responseDecisions, protowire.BytesType)
			out = nest(out, func(out []byte) []byte { return appendDecision(out, &a.batch.Results[i], i, &room) })
		}
		a.batch.Release()
		a.batch = nil
	}
	out = appendVarint(out, responseID, a.id)
	if a.fault != nil {
		out = appendMessage(out, responseError, callError(a.fault))
	}
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

// appendDecision appends r, the result of check i. room is the number of bytes left for responses.
func appendDecision(out []byte, r *limiter.Result, i int, room *int) []byte {
	if r.Err != nil {
		out = appendString(out, decisionRule, r.RuleName())
		return appendMessage(out, decisionError, errorAt(r.Err, i))
	}
	out = appendBool(out, decisionAllowed, r.Allowed)
	out = appendVarint(out, decisionLimit, uint64(r.Limit))
	out = appendVarint(out, decisionRemaining, uint64(r.Remaining))
	out = appendVarint(out, decisionResetAfter, uint64(r.ResetAfter))
	out = appendVarint(out, decisionRetryAfter, uint64(r.RetryAfter))
	out = appendVarint(out, decisionDelay, uint64(r.Delay))
	out = appendString(out, decisionRule, r.RuleName())
	out = appendVarint(out, decisionSource, uint64(r.Source))
	out = appendString(out, decisionOwner, r.Owner)
	out = appendBool(out, decisionSoft, r.Soft)
	out = appendBool(out, decisionShadowed, r.Shadowed)
	out = appendBool(out, decisionElastic, r.Elastic)
	out = appendBool(out, decisionNever, r.Never())
	out = appendVarint(out, decisionLimitIndex, uint64(r.LimitPlace()))
	out = appendVarint(out, decisionPeriod, uint64(r.Period))
	out = appendVarint(out, decisionDeniedFor, uint64(r.DeniedFor))
	out = appendVarint(out, decisionStaleness, uint64(r.Staleness))
	if p := r.Response(); p != nil && len(p.Body) <= *room {
		before := len(out)
		out = protowire.AppendTag(out, decisionResponse, protowire.BytesType)
		out = nest(out, func(out []byte) []byte { return appendResponse(out, p) })
		if n := len(out) - before; n <= *room {
			*room -= n
		} else {
			out = out[:before]
		}
	}
	return out
}

func appendResponse(out []byte, p *rules.Response) []byte {
	out = appendVarint(out, responseStatus, uint64(p.Status))
	for i := range p.Headers {
		out = protowire.AppendTag(out, responseHeaders, protowire.BytesType)
		out = nest(out, func(out []byte) []byte {
			return appendString(appendString(out, headerName, p.Headers[i].Name), headerValue, p.Headers[i].Value)
		})
	}
	return appendString(out, responseBody, p.Body)
}

// nest appends the message that f appends, with its length before it. One byte is reserved for the length, enough below
// 128; a longer message is moved.
func nest(out []byte, f func([]byte) []byte) []byte {
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

func appendVarint(out []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, num, protowire.VarintType), v)
}

func appendBool(out []byte, num protowire.Number, v bool) []byte {
	return appendVarint(out, num, protowire.EncodeBool(v))
}

func appendString(out []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, num, protowire.BytesType), s)
}

func appendMessage(out []byte, num protowire.Number, m proto.Message) []byte {
	out = protowire.AppendTag(out, num, protowire.BytesType)
	return nest(out, func(out []byte) []byte {
		// Fails on invalid UTF-8 only; field and message are made of valid text.
		out, _ = proto.MarshalOptions{}.MarshalAppend(out, m)
		return out
	})
}
