package grpcapi

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport"
	"github.com/sluicecluster/sluice/transport/internal/wire"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// question is a sluice.v1.CheckRequest, decoded straight into a batch. It accepts exactly the messages that the generated
// type accepts; a fuzzer compares the two. ADR 14 has the measurements.
type question struct {
	batch *limiter.Batch
	id    uint64
	// timeout is how long the decision may take, 0 for no bound.
	timeout     time.Duration
	traceparent string
	lease       *sluicev1.LeaseRequest
	// fault is set when the whole request is invalid.
	fault *limiter.Error
	text  wire.Text
	// held is its memory, on a stream.
	held inflow.Held
}

// WireShape implements wire.Shaped.
func (*question) WireShape() *wire.Shape { return requestShape }

// Keep implements inflow.Keeper.
func (q *question) Keep(h inflow.Held) { q.held = h }

// decoded is what the parts of a call take that are decoded into a batch.
var decoded = map[protoreflect.FullName]wire.Own{
	"sluice.v1.Check": {Bytes: limiter.CheckBytes, Most: limiter.MaxChecks},
	"sluice.v1.Entry": {Bytes: limiter.EntryBytes, Most: limiter.MaxEntries + 1},
	"sluice.v1.Limit": {Bytes: limiter.LimitBytes, Most: bucket.MaxLimits + 1},
}

var requestShape = wire.ShapeOf((*sluicev1.CheckRequest)(nil).ProtoReflect().Descriptor(), decoded)

// Field numbers of sluice.v1.
const (
	requestChecks, requestAllOrNothing, requestID                   = 1, 2, 3
	requestTimeout, requestTraceparent, requestRequires, requestKey = 4, 5, 6, 7
	requestLease                                                    = 8
	checkDomain, checkDescriptor, checkCost, checkVerb, checkLimits = 1, 2, 3, 4, 5
	entryKey, entryValue                                            = 1, 2

	limitAlgorithm, limitCount, limitPeriod, limitUnlimited, limitBurst, limitWeight, limitRefill, limitAlign                = 1, 2, 3, 4, 5, 6, 7, 8
	limitUnit, limitTimezone, limitMinInterval, limitSoft, limitCountDenied, limitSubWindows, limitLogEntries, limitBlockFor = 9, 10, 11, 12, 13, 14, 15, 16
)

// DecodeWire reads a CheckRequest into a new batch. data is not needed afterwards.
func (q *question) DecodeWire(data []byte) error {
	q.batch = limiter.NewBatch()
	count, lacks := 0, (*limiter.Error)(nil)
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
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
			q.batch.AllOrNothing = wire.Varint(value) != 0
		case num == requestID && typ == protowire.VarintType:
			q.id = wire.Varint(value)
		case num == requestLease && typ == protowire.BytesType: // several are merged
			if q.lease == nil {
				q.lease = new(sluicev1.LeaseRequest)
			}
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(value, q.lease); err != nil {
				return fmt.Errorf("lease: %w", err)
			}
		case num == requestTimeout && typ == protowire.VarintType:
			q.timeout = time.Duration(wire.Varint(value))
		case (num == requestTraceparent || num == requestRequires || num == requestKey) && typ == protowire.BytesType:
			if !utf8.Valid(value) {
				return wire.ErrUTF8
			}
			// One byte too many is enough for it to be ignored or rejected.
			if num == requestTraceparent {
				q.traceparent = string(value[:min(len(value), maxTraceparent+1)])
			} else if num == requestKey {
				q.batch.IdempotencyKey = string(value[:min(len(value), limiter.MaxIdempotencyKey+1)])
			} else if text := string(value[:min(len(value), maxFeature)]); lacks == nil && !slices.Contains(limiter.Features, text) {
				lacks = &limiter.Error{Code: limiter.Unsupported, Field: "requires", Message: fmt.Sprintf("this node does not have %q; ask a node of a newer version", text)}
			}
		}
	}
	if q.fault = limiter.CountError(count); q.fault == nil {
		q.fault = lacks
	}
	if q.fault == nil && q.timeout < 0 {
		q.fault = errTimeout
	}
	return nil
}

var errTimeout = &limiter.Error{Code: limiter.Invalid, Field: "timeout_ns", Message: "negative; want the time that the node may take, or 0 for no bound"}

const (
	maxTraceparent = 128 // bytes of a traceparent that is read
	maxFeature     = 64  // bytes of a feature's name that an error shows
)

// decodeCheck adds a check. behind is the length of the request after it.
func (q *question) decodeCheck(data []byte, behind int) error {
	c := q.batch.Add()
	before := &limiter.Check{}
	if n := len(q.batch.Checks); n > 1 {
		before = &q.batch.Checks[n-2]
	}
	return q.decodeInto(c, before, data, behind)
}

// decodeInto reads c. before is the check before it, or an empty one.
func (q *question) decodeInto(c, before *limiter.Check, data []byte, behind int) error {
	entries, limits, verb := 0, 0, int32(0)
	for len(data) > 0 {
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		left := len(value) + len(rest) + behind
		data = rest
		switch {
		case num == checkDomain && typ == protowire.BytesType:
			if c.Domain, err = q.text.Keep(value, before.Domain, left); err != nil {
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
			c.Cost = int64(wire.Varint(value))
		case num == checkVerb && typ == protowire.VarintType:
			verb = int32(wire.Varint(value))
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
		num, typ, value, rest, err := wire.Field(data)
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
			e.Key, err = q.text.Keep(value, like.Key, left)
		case entryValue:
			e.Value, err = q.text.Keep(value, like.Value, left)
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
		num, typ, value, rest, err := wire.Field(data)
		if err != nil {
			return err
		}
		data = rest
		if num == limitTimezone && typ == protowire.BytesType {
			if !utf8.Valid(value) {
				return fmt.Errorf("timezone: %w", wire.ErrUTF8)
			}
			l.Timezone = string(value)
		}
		if typ != protowire.VarintType {
			continue
		}
		switch v := wire.Varint(value); num {
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
		case limitWeight:
			l.Weight = int64(v)
		case limitRefill:
			l.Refill = sluicev1.Refill(v)
		case limitAlign:
			l.Align = sluicev1.Align(v)
		case limitUnit:
			l.Unit = sluicev1.CalendarUnit(v)
		case limitMinInterval:
			l.MinIntervalNs = int64(v)
		case limitSoft:
			l.SoftPercent = int32(v)
		case limitCountDenied:
			l.CountDenied = v != 0
		case limitSubWindows:
			l.SubWindows = int32(v)
		case limitLogEntries:
			l.LogEntries = int32(v)
		case limitBlockFor:
			l.BlockForNs = int64(v)
		}
	}
	return nil
}

// setVerb sets the verb, or the Err of an unknown one.
func setVerb(c *limiter.Check, v int32) {
	if v >= 0 && v <= int32(sluicev1.Verb_VERB_RESET) {
		c.Verb = bucket.Verb(v)
		return
	}
	c.Err = &limiter.Error{Code: limiter.Invalid, Field: "verb", Message: fmt.Sprintf("unknown verb %d; want 0 to %d", v, sluicev1.Verb_VERB_RESET)}
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
