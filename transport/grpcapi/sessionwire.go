package grpcapi

import (
	"fmt"
	"maps"
	"reflect"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/internal/buffers"
	"github.com/sluicecluster/sluice/transport/internal/wire"
)

// Field numbers of sluice.v1.
const (
	sessionAcquire, sessionRelease, sessionResume, sessionHeartbeat = 1, 2, 3, 4
	slotNumber, slotCheck, slotUnits, slotWait                      = 1, 2, 3, 4
	slotTenant, slotWeight, slotWaited, slotAlso                    = 5, 6, 7, 8
	heldNumber, heldReservation                                     = 1, 2

	sessionSlots, sessionAnswered, sessionExpires, sessionNotRenewed = 1, 2, 3, 4
	grantNumber, grantDecision, grantReservation, grantFence         = 1, 2, 3, 4
	grantExpires, grantHeartbeat, grantError, grantMoved, grantOwner = 5, 6, 7, 8, 9
	grantWaited                                                      = 10
)

// sessionRequest is a sluice.v1.SessionRequest, whose checks are decoded straight into batches, as those of a question. Its memory is used
// again for the next one.
type sessionRequest struct {
	acquire   []slotRequest
	release   []uint64
	resume    []heldRequest
	heartbeat uint64
	reader    question
	fault     *limiter.Error // the message is invalid, and not read to its end
}

type slotRequest struct {
	limiter.SlotRequest
	number uint64
	batch  *limiter.Batch
	waited time.Duration
}

type heldRequest struct {
	number      uint64
	reservation string
}

// WireShape implements wire.Shaped.
func (*sessionRequest) WireShape() *wire.Shape { return sessionShape }

var sessionShape = wire.ShapeOf((*sluicev1.SessionRequest)(nil).ProtoReflect().Descriptor(), slotParts())

// slotParts is decoded, and what the requests of a session take.
func slotParts() map[protoreflect.FullName]wire.Own {
	parts := maps.Clone(decoded)
	parts["sluice.v1.SlotRequest"] = wire.Own{Bytes: limiter.BatchBytes + int64(reflect.TypeFor[slotRequest]().Size()), Most: maxSlots}
	parts["sluice.v1.HeldSlot"] = wire.Own{Bytes: int64(reflect.TypeFor[heldRequest]().Size())}
	return parts
}

// drop releases what is not answered.
func (r *sessionRequest) drop() {
	for i := range r.acquire {
		r.acquire[i].batch.Release()
	}
}

// DecodeWire reads a SessionRequest. data is not needed afterwards.
func (r *sessionRequest) DecodeWire(data []byte) error {
	clear(r.acquire)
	clear(r.resume)
	*r = sessionRequest{acquire: r.acquire[:0], release: r.release[:0], resume: r.resume[:0]}
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		data = rest
		switch {
		case num == sessionAcquire && typ == protowire.BytesType:
			if len(r.acquire) >= maxSlots {
				r.fault = errManyRequests
				return nil
			}
			if err := r.decodeSlot(value, len(rest)); err != nil {
				return fmt.Errorf("acquire[%d]: %w", len(r.acquire)-1, err)
			}
		case num == sessionRelease && typ == protowire.VarintType:
			r.release = append(r.release, wire.Varint(value))
		case num == sessionRelease && typ == protowire.BytesType: // packed
			for len(value) > 0 {
				v, n := protowire.ConsumeVarint(value)
				if n < 0 {
					return fmt.Errorf("release: %w", protowire.ParseError(n))
				}
				r.release, value = append(r.release, v), value[n:]
			}
		case num == sessionResume && typ == protowire.BytesType:
			if err := r.decodeHeld(value); err != nil {
				return fmt.Errorf("resume[%d]: %w", len(r.resume)-1, err)
			}
		case num == sessionHeartbeat && typ == protowire.VarintType:
			r.heartbeat = wire.Varint(value)
		}
	}
	return nil
}

var errManyRequests = &limiter.Error{Code: limiter.Invalid, Field: "acquire", Message: fmt.Sprintf("more than %d requests in a message; split it", maxSlots)}

// decodeSlot reads a SlotRequest. behind is the length of the message after it.
func (r *sessionRequest) decodeSlot(data []byte, behind int) error {
	b := limiter.NewBatch()
	b.Add() // check, whose place is the first
	r.acquire = append(r.acquire, slotRequest{batch: b})
	a, first := &r.acquire[len(r.acquire)-1], false
	r.reader.batch = b
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		left := len(rest) + behind
		data = rest
		switch {
		case num == slotNumber && typ == protowire.VarintType:
			a.number = wire.Varint(value)
		case num == slotCheck && typ == protowire.BytesType:
			c := &b.Checks[0]
			if first {
				c.Err = &limiter.Error{Code: limiter.Invalid, Field: "check", Message: "twice; want it once"}
				continue
			}
			first = true
			if err := r.reader.decodeInto(c, &limiter.Check{}, value, left); err != nil {
				return fmt.Errorf("check: %w", err)
			}
			alone(c, "check")
		case num == slotAlso && typ == protowire.BytesType:
			if len(b.Checks) > limiter.MaxBudgets { // one too many is enough to be rejected
				continue
			}
			if err := r.reader.decodeCheck(value, left); err != nil {
				return fmt.Errorf("also[%d]: %w", len(b.Checks)-2, err)
			}
			alone(&b.Checks[len(b.Checks)-1], "also")
		case num == slotUnits && typ == protowire.VarintType:
			a.Units = int64(wire.Varint(value))
		case num == slotWait && typ == protowire.VarintType:
			a.Wait = wire.Varint(value) != 0
		case num == slotTenant && typ == protowire.BytesType:
			if !utf8.Valid(value) {
				return fmt.Errorf("tenant: %w", wire.ErrUTF8)
			}
			a.Tenant = string(value[:min(len(value), limiter.MaxTenant+1)])
		case num == slotWeight && typ == protowire.VarintType:
			a.Weight = int64(wire.Varint(value))
		case num == slotWaited && typ == protowire.VarintType:
			a.waited = time.Duration(wire.Varint(value))
		}
	}
	return nil
}

// alone sets the error of a check that has more than a domain and a descriptor.
func alone(c *limiter.Check, field string) {
	if c.Cost != 1 || c.Verb != bucket.Check || len(c.Limits) > 0 || c.Err != nil {
		c.Err = &limiter.Error{Code: limiter.Invalid, Field: field, Message: "want a domain and a descriptor alone"}
	}
}

func (r *sessionRequest) decodeHeld(data []byte) error {
	r.resume = append(r.resume, heldRequest{})
	h := &r.resume[len(r.resume)-1]
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		data = rest
		switch {
		case num == heldNumber && typ == protowire.VarintType:
			h.number = wire.Varint(value)
		case num == heldReservation && typ == protowire.BytesType:
			if !utf8.Valid(value) {
				return fmt.Errorf("reservation: %w", wire.ErrUTF8)
			}
			h.reservation = string(value)
		}
	}
	return nil
}

// sessionResponse is a sluice.v1.SessionResponse, encoded straight from batches, which it owns and releases.
type sessionResponse struct {
	slots      []slotResponse
	heartbeat  uint64
	notRenewed []uint64
}

type slotResponse struct {
	limiter.SlotAnswer
	number, heartbeat uint64
	expires           time.Duration
	batch             *limiter.Batch // nil if there is no decision
}

// drop releases what is not sent.
func (r *slotResponse) drop() {
	if r.batch != nil {
		r.batch.Release()
	}
}

// EncodeWire returns the message in a pooled buffer.
func (r *sessionResponse) EncodeWire() mem.BufferSlice {
	size := 64 + 10*len(r.notRenewed)
	for i := range r.slots {
		if s := &r.slots[i]; s.batch != nil {
			x := &s.batch.Results[s.Check]
			size += decisionSize + 2*len(x.RuleName()) + len(x.Owner) + len(s.ID) + 64
		}
	}
	pool := buffers.Pool
	buf := pool.Get(size)
	out := (*buf)[:0]
	for i := range r.slots {
		out = protowire.AppendTag(out, sessionSlots, protowire.BytesType)
		out = wire.Nest(out, r.slots[i].appendTo)
		r.slots[i].drop()
	}
	clear(r.slots)
	if out = wire.AppendVarint(out, sessionAnswered, r.heartbeat); r.heartbeat > 0 {
		out = wire.AppendVarint(out, sessionExpires, uint64(limiter.SlotTTL))
	}
	if len(r.notRenewed) > 0 {
		out = protowire.AppendTag(out, sessionNotRenewed, protowire.BytesType)
		out = wire.Nest(out, func(out []byte) []byte {
			for _, n := range r.notRenewed {
				out = protowire.AppendVarint(out, n)
			}
			return out
		})
	}
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

func (r *slotResponse) appendTo(out []byte) []byte {
	out = wire.AppendVarint(out, grantNumber, r.number)
	if r.batch != nil {
		room := limiter.MaxResponses
		out = protowire.AppendTag(out, grantDecision, protowire.BytesType)
		out = wire.Nest(out, func(out []byte) []byte { return appendDecision(out, &r.batch.Results[r.Check], r.Check, &room) })
	}
	out = wire.AppendString(out, grantReservation, r.ID)
	out = wire.AppendVarint(out, grantFence, r.Fence)
	out = wire.AppendVarint(out, grantExpires, uint64(r.expires))
	out = wire.AppendVarint(out, grantHeartbeat, r.heartbeat)
	if r.Err != nil {
		out = appendMessage(out, grantError, callError(r.Err))
	}
	out = wire.AppendBool(out, grantMoved, r.Moved)
	out = wire.AppendString(out, grantOwner, r.Owner)
	return wire.AppendBool(out, grantWaited, r.Waited)
}
