package grpcapi

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/internal/buffers"
	"github.com/sluice-project/sluice/transport/internal/wire"
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

// EncodeWire returns the message in a pooled buffer.
func (a *answer) EncodeWire() mem.BufferSlice {
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
			out = wire.Nest(out, func(out []byte) []byte { return appendDecision(out, &a.batch.Results[i], i, &room) })
		}
		a.batch.Release()
		a.batch = nil
	}
	out = wire.AppendVarint(out, responseID, a.id)
	if a.fault != nil {
		out = appendMessage(out, responseError, callError(a.fault))
	}
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

// appendDecision appends r, the result of check i. room is the number of bytes left for responses.
func appendDecision(out []byte, r *limiter.Result, i int, room *int) []byte {
	if r.Err != nil {
		out = wire.AppendString(out, decisionRule, r.RuleName())
		return appendMessage(out, decisionError, errorAt(r.Err, i))
	}
	out = wire.AppendBool(out, decisionAllowed, r.Allowed)
	out = wire.AppendVarint(out, decisionLimit, uint64(r.Limit))
	out = wire.AppendVarint(out, decisionRemaining, uint64(r.Remaining))
	out = wire.AppendVarint(out, decisionResetAfter, uint64(r.ResetAfter))
	out = wire.AppendVarint(out, decisionRetryAfter, uint64(r.RetryAfter))
	out = wire.AppendVarint(out, decisionDelay, uint64(r.Delay))
	out = wire.AppendString(out, decisionRule, r.RuleName())
	out = wire.AppendVarint(out, decisionSource, uint64(r.Source))
	out = wire.AppendString(out, decisionOwner, r.Owner)
	out = wire.AppendBool(out, decisionSoft, r.Soft)
	out = wire.AppendBool(out, decisionShadowed, r.Shadowed)
	out = wire.AppendBool(out, decisionElastic, r.Elastic)
	out = wire.AppendBool(out, decisionNever, r.Never())
	out = wire.AppendVarint(out, decisionLimitIndex, uint64(r.LimitPlace()))
	out = wire.AppendVarint(out, decisionPeriod, uint64(r.Period))
	out = wire.AppendVarint(out, decisionDeniedFor, uint64(r.DeniedFor))
	out = wire.AppendVarint(out, decisionStaleness, uint64(r.Staleness))
	if p := r.Response(); p != nil && len(p.Body) <= *room {
		before := len(out)
		out = protowire.AppendTag(out, decisionResponse, protowire.BytesType)
		out = wire.Nest(out, func(out []byte) []byte { return appendResponse(out, p) })
		if n := len(out) - before; n <= *room {
			*room -= n
		} else {
			out = out[:before]
		}
	}
	return out
}

func appendResponse(out []byte, p *rules.Response) []byte {
	out = wire.AppendVarint(out, responseStatus, uint64(p.Status))
	for i := range p.Headers {
		out = protowire.AppendTag(out, responseHeaders, protowire.BytesType)
		out = wire.Nest(out, func(out []byte) []byte {
			return wire.AppendString(wire.AppendString(out, headerName, p.Headers[i].Name), headerValue, p.Headers[i].Value)
		})
	}
	return wire.AppendString(out, responseBody, p.Body)
}

func appendMessage(out []byte, num protowire.Number, m proto.Message) []byte {
	out = protowire.AppendTag(out, num, protowire.BytesType)
	return wire.Nest(out, func(out []byte) []byte {
		// Fails on invalid UTF-8 only; field and message are made of valid text.
		out, _ = proto.MarshalOptions{}.MarshalAppend(out, m)
		return out
	})
}
