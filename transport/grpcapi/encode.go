package grpcapi

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/internal/buffers"
	"github.com/sluicecluster/sluice/transport/internal/wire"
)

// answer is a sluice.v1.CheckResponse, encoded straight from a batch, which it owns and releases.
type answer struct {
	batch *limiter.Batch // nil when fault is set
	id    uint64
	fault *limiter.Error
	lease limiter.Reservation // if it has units
}

// Field numbers of sluice.v1.
const (
	responseDecisions, responseID, responseError, responseAllowed, responseRetryAfter, responseLease = 1, 2, 3, 4, 5, 6

	decisionAllowed, decisionVerdict, decisionSource, decisionOwner = 1, 2, 3, 4
	decisionRule, decisionLimitName, decisionLimit                  = 5, 6, 7
	decisionRemaining, decisionResetAfter, decisionRetryAfter       = 8, 9, 10
	decisionDelay, decisionDeniedFor, decisionPeriod                = 11, 12, 13
	decisionCount, decisionBurst, decisionLimitIndex                = 14, 15, 16
	decisionError, decisionResponse, decisionStaleness              = 17, 18, 19
	decisionOnFailure                                               = 20

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
			size += decisionSize + 2*len(r.RuleName()) + len(r.Owner)
		}
	}
	pool := buffers.Pool
	buf := pool.Get(size)
	out := (*buf)[:0]
	if a.batch != nil {
		out = appendOverall(out, a.batch.Results)
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
	if l := &a.lease; l.Units > 0 {
		out = appendMessage(out, responseLease, &sluicev1.Lease{Id: l.ID, Units: l.Units, ExpiresAfterNs: int64(l.ExpiresAfter)})
	}
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

// appendOverall appends whether all are allowed and, if one is denied, the time until all may be if that is known.
func appendOverall(out []byte, list []limiter.Result) []byte {
	allowed, wait, known := limiter.Overall(list)
	if known {
		out = appendDuration(out, responseRetryAfter, wait)
	}
	return wire.AppendBool(out, responseAllowed, allowed)
}

// appendDuration appends d even if it is 0.
func appendDuration(out []byte, num protowire.Number, d time.Duration) []byte {
	return protowire.AppendVarint(protowire.AppendTag(out, num, protowire.VarintType), uint64(d))
}

// onFailures are the values of sluice.v1.OnFailure.
var onFailures = [...]uint64{
	rules.FailShare:  uint64(sluicev1.OnFailure_ON_FAILURE_SHARE),
	rules.FailOpen:   uint64(sluicev1.OnFailure_ON_FAILURE_OPEN),
	rules.FailClosed: uint64(sluicev1.OnFailure_ON_FAILURE_CLOSED),
}

// appendDecision appends r, the result of check i. room is the number of bytes left for responses.
func appendDecision(out []byte, r *limiter.Result, i int, room *int) []byte {
	if r.Rule != nil && r.Rule.StatesOnFailure {
		out = wire.AppendVarint(out, decisionOnFailure, onFailures[r.Rule.OnFailure])
	}
	if r.Err != nil {
		out = wire.AppendString(out, decisionRule, r.RuleName())
		return appendMessage(out, decisionError, errorAt(r.Err, i))
	}
	out = wire.AppendBool(out, decisionAllowed, r.Allowed)
	out = wire.AppendVarint(out, decisionVerdict, uint64(r.Verdict()))
	out = wire.AppendVarint(out, decisionSource, uint64(r.Source))
	out = wire.AppendString(out, decisionOwner, r.Owner)
	out = wire.AppendString(out, decisionRule, r.RuleName())
	if r.Counted() {
		l := r.Limits.At(int(r.Index))
		if r.Rule != nil {
			out = wire.AppendString(out, decisionLimitName, r.Rule.LimitName(int(r.Index)))
		}
		out = protowire.AppendVarint(protowire.AppendTag(out, decisionLimit, protowire.VarintType), uint64(r.Limit))
		out = protowire.AppendVarint(protowire.AppendTag(out, decisionRemaining, protowire.VarintType), uint64(r.Remaining))
		out = wire.AppendVarint(out, decisionPeriod, uint64(r.Period))
		out = wire.AppendVarint(out, decisionCount, uint64(l.Count))
		out = wire.AppendVarint(out, decisionBurst, uint64(l.Burst))
		out = wire.AppendVarint(out, decisionLimitIndex, uint64(r.LimitPlace()))
	}
	out = wire.AppendVarint(out, decisionResetAfter, uint64(r.ResetAfter))
	if d, ok := r.RetryIn(); ok && !r.Allowed {
		out = appendDuration(out, decisionRetryAfter, d)
	}
	out = wire.AppendVarint(out, decisionDelay, uint64(r.Delay))
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
