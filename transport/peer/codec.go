package peer

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/tracing"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	"github.com/sluicecluster/sluice/transport/internal/buffers"
	"google.golang.org/grpc/encoding"
	encproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// frameCodec is gRPC's protobuf codec, except that it decodes frames into the memory that their message already has, and uses
// the pool of package buffers. The bytes on the wire are the same.
type frameCodec struct{ encoding.CodecV2 }

func newFrameCodec() frameCodec { return frameCodec{encoding.GetCodecV2(encproto.Name)} }

// reuse merges into columns that were truncated. Unknown fields, of a newer minor, must be dropped: merged, they would pile up.
var reuse = proto.UnmarshalOptions{Merge: true, DiscardUnknown: true}

// cached is for messages whose Size was called just before.
var cached = proto.MarshalOptions{UseCachedSize: true}

func (c frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := proto.Size(m)
	if mem.IsBelowBufferPoolingThreshold(size) {
		small, err := cached.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(small)}, err
	}
	buf := buffers.Pool.Get(size)
	if _, err := cached.MarshalAppend((*buf)[:0], m); err != nil {
		buffers.Pool.Put(buf)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buf, buffers.Pool)}, nil
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	var m proto.Message
	switch v := v.(type) {
	case *peerv1.Request:
		m = v
		resetRequest(v)
	case *peerv1.Reply:
		m = v
		resetReply(v)
	case *peerv1.MessageFrame:
		m = v
		resetMessages(v)
	case *peerv1.Greeting:
		if data.Len() > maxGreeting {
			return fmt.Errorf("a first frame of %d bytes; a hello has at most %d", data.Len(), maxGreeting)
		}
		m = v
	default:
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(buffers.Pool)
	defer buf.Free()
	return reuse.Unmarshal(buf.ReadOnlyData(), m)
}

// resetRequest empties m and keeps the memory of its columns.
func resetRequest(m *peerv1.Request) {
	m.Hello, m.Seq = nil, 0
	clear(m.Define)
	clear(m.Traces)
	truncate(&m.Define)
	truncate(&m.Traces)
	truncate(&m.KeyHi, &m.KeyLo, &m.Id, &m.Once)
	truncate(&m.Limits)
	truncate(&m.Cost, &m.Times, &m.Want, &m.Rate, &m.ForNs, &m.Reserve)
	truncate(&m.Verb, &m.Flags, &m.Lost)
}

// resetReply is resetRequest for a Reply.
func resetReply(m *peerv1.Reply) {
	m.Hello, m.Seq = nil, 0
	clear(m.Names)
	clear(m.Denials)
	truncate(&m.Names)
	truncate(&m.Denials)
	truncate(&m.Status, &m.Flags, &m.Index)
	truncate(&m.Limit, &m.Remaining, &m.ResetAfterNs, &m.RetryAfterNs, &m.DelayNs, &m.Granted, &m.ForNs)
	truncate(&m.Owner)
	truncate(&m.Grant)
}

// resetMessages is resetRequest for a MessageFrame.
func resetMessages(m *peerv1.MessageFrame) {
	m.Hello, m.Messages = nil, nil
	clear(m.Define)
	truncate(&m.Define)
}

func truncate[T any](columns ...*[]T) {
	for _, c := range columns {
		*c = (*c)[:0]
	}
}

// trim empties the columns that have only zeros: this is how those travel.
func trim[T comparable](columns ...*[]T) {
	var zero T
next:
	for _, c := range columns {
		for _, v := range *c {
			if v != zero {
				continue next
			}
		}
		*c = (*c)[:0]
	}
}

// column is the name and the length of a column.
type column struct {
	name string
	len  int
}

// checkColumns returns an error if a column of frame seq, which has n records, is neither empty nor has n values.
func checkColumns(seq uint64, n int, columns ...column) error {
	for _, c := range columns {
		if c.len != 0 && c.len != n {
			return columnError(seq, c.name, c.len, n)
		}
	}
	return nil
}

func columnError(seq uint64, column string, got, records int) error {
	return fmt.Errorf("frame %d: column %s has %d values for %d records; want as many, or none", seq, column, got, records)
}

// bit returns mask if set, else 0.
func bit(set bool, mask byte) byte {
	if set {
		return mask
	}
	return 0
}

// at returns value i of a column that may have been left empty.
func at[T any](column []T, i int) T {
	if len(column) == 0 {
		var zero T
		return zero
	}
	return column[i]
}

// Bits of Reply.flags.
const (
	flagAllowed = 1 << 0
	flagSoft    = 1 << 1
	flagSplit   = 1 << 2
	flagGranted = 1 << 3
	flagLost    = 1 << 4
	flagLate    = 1 << 5
	flagAgain   = 1 << 6
	flagUnknown = 1 << 7
)

// writeReply puts replies into the empty m. self is the name of the node that answers.
func writeReply(m *peerv1.Reply, self string, replies []check.Reply) {
	for i := range replies {
		r := &replies[i]
		if r.Denial != nil {
			m.Denials = append(m.Denials, denialOf(r.Denial))
		}
		m.Status = append(m.Status, byte(r.Status))
		m.Flags = append(m.Flags, bit(r.Allowed, flagAllowed)|bit(r.Soft, flagSoft)|bit(r.Denial != nil, flagSplit)|
			bit(r.LeasedOut, flagGranted)|bit(r.Decision.Lost, flagLost)|bit(r.Late, flagLate)|bit(r.Repeated, flagAgain)|bit(r.Unknown, flagUnknown))
		m.Index = append(m.Index, r.Index)
		m.Limit = append(m.Limit, r.Limit)
		m.Remaining = append(m.Remaining, r.Remaining)
		m.ResetAfterNs = append(m.ResetAfterNs, int64(r.ResetAfter))
		m.RetryAfterNs = append(m.RetryAfterNs, int64(r.RetryAfter))
		m.DelayNs = append(m.DelayNs, int64(r.Delay))
		m.Owner = append(m.Owner, ownerNumber(m, self, r.Owner))
		m.Granted = append(m.Granted, r.Admitted)
		m.Grant = append(m.Grant, r.Grant)
		m.ForNs = append(m.ForNs, int64(r.For))
	}
	// Status stays: its length is the number of replies.
	trim(&m.Flags, &m.Index)
	trim(&m.Limit, &m.Remaining, &m.ResetAfterNs, &m.RetryAfterNs, &m.DelayNs, &m.Granted, &m.ForNs)
	trim(&m.Owner)
	trim(&m.Grant)
}

func denialOf(d *bucket.Decision) *peerv1.Denial {
	return &peerv1.Denial{
		Index: uint32(d.Index), Limit: d.Limit, Remaining: d.Remaining,
		ResetAfterNs: int64(d.ResetAfter), RetryAfterNs: int64(d.RetryAfter), Lost: d.Lost,
	}
}

func readDenial(m *peerv1.Denial) *bucket.Decision {
	return &bucket.Decision{
		Index: uint8(m.Index), Limit: m.Limit, Remaining: m.Remaining,
		ResetAfter: time.Duration(m.ResetAfterNs), RetryAfter: time.Duration(m.RetryAfterNs), Lost: m.Lost,
	}
}

// splits counts the replies with a Denial.
func splits(flags []byte) (n int) {
	for _, f := range flags {
		if f&flagSplit != 0 {
			n++
		}
	}
	return n
}

// ownerNumber returns the number of name in m: 0 for the sender, else 1 + its index in m.Names, to which it is added if it
// is missing. A frame names few owners.
func ownerNumber(m *peerv1.Reply, self, name string) uint32 {
	if name == self {
		return 0
	}
	i := slices.Index(m.Names, name)
	if i < 0 {
		i = len(m.Names)
		m.Names = append(m.Names, name)
	}
	return uint32(i) + 1
}

// checkReply returns an error if m is not a well-formed answer to frame seq of n records.
func checkReply(m *peerv1.Reply, seq uint64, n int) error {
	switch {
	case m.Hello != nil:
		return errSecondHello
	case m.Seq != seq:
		return fmt.Errorf("answer to frame %d where %d was due", m.Seq, seq)
	case len(m.Status) != n:
		return columnError(seq, "status", len(m.Status), n)
	}
	if err := checkColumns(seq, n,
		column{"flags", len(m.Flags)}, column{"index", len(m.Index)}, column{"limit", len(m.Limit)},
		column{"remaining", len(m.Remaining)}, column{"reset_after_ns", len(m.ResetAfterNs)},
		column{"retry_after_ns", len(m.RetryAfterNs)}, column{"delay_ns", len(m.DelayNs)}, column{"owner", len(m.Owner)},
		column{"granted", len(m.Granted)}, column{"grant", len(m.Grant)}, column{"for_ns", len(m.ForNs)},
	); err != nil {
		return err
	}
	if n := splits(m.Flags); n != len(m.Denials) {
		return fmt.Errorf("frame %d: %d denials for %d replies that have one", seq, len(m.Denials), n)
	}
	for i, h := range m.Owner {
		if int(h) > len(m.Names) {
			return fmt.Errorf("frame %d, reply %d: owner %d of %d names", seq, i, h, len(m.Names))
		}
	}
	return nil
}

// readReply fills replies from m, beginning at m's reply first. m has passed
// checkReply. sender is the name of the node that answered.
func readReply(m *peerv1.Reply, first int, sender string, replies []check.Reply) {
	denials := m.Denials
	if len(denials) > 0 {
		denials = denials[splits(m.Flags[:first]):]
	}
	for i := range replies {
		r, j := &replies[i], first+i
		flags := at(m.Flags, j)
		*r = check.Reply{Status: check.Status(m.Status[j]), Owner: sender}
		r.Allowed = flags&flagAllowed != 0
		r.Soft = flags&flagSoft != 0
		r.Decision.Lost = flags&flagLost != 0
		r.Index = at(m.Index, j)
		r.Limit = at(m.Limit, j)
		r.Remaining = at(m.Remaining, j)
		r.ResetAfter = time.Duration(at(m.ResetAfterNs, j))
		r.RetryAfter = time.Duration(at(m.RetryAfterNs, j))
		r.Delay = time.Duration(at(m.DelayNs, j))
		r.Admitted = at(m.Granted, j)
		r.LeasedOut = flags&flagGranted != 0
		r.Late, r.Repeated, r.Unknown = flags&flagLate != 0, flags&flagAgain != 0, flags&flagUnknown != 0
		r.Grant = at(m.Grant, j)
		r.For = time.Duration(at(m.ForNs, j))
		if flags&flagSplit != 0 {
			r.Denial, denials = readDenial(denials[0]), denials[1:]
		}
		if h := at(m.Owner, j); h != 0 {
			r.Owner = m.Names[h-1]
		}
	}
}

// addTrace notes in m that record index, which is in no trace yet, was sent for at. It reports whether that took an entry of
// its own: consecutive records of one span share one.
func addTrace(m *peerv1.Request, index uint32, at *check.Trace) bool {
	if n := len(m.Traces); n > 0 {
		last := m.Traces[n-1]
		if last.First+last.Records == index && string(last.Id) == string(at.ID[:]) && string(last.Span) == string(at.Span[:]) {
			last.Records++
			return false
		}
	}
	m.Traces = append(m.Traces, &peerv1.Trace{First: index, Records: 1, Id: at.ID[:], Span: at.Span[:]})
	return true
}

// traced is the part of a frame that belongs to one span.
type traced struct {
	span           *tracing.Span
	first, records int
}

// startSpans begins a span for each part of the frame that has a trace. It skips a malformed part: a trace must not fail a check.
func (x *exchange) startSpans() {
	if x.server.cfg.Tracer == nil {
		return
	}
	n := uint64(len(x.records))
	for _, t := range x.request.Traces {
		at := &check.Trace{}
		if t.Records == 0 || uint64(t.First)+uint64(t.Records) > n || len(t.Id) != len(at.ID) || len(t.Span) != len(at.Span) {
			continue
		}
		copy(at.ID[:], t.Id)
		copy(at.Span[:], t.Span)
		x.traced = append(x.traced, traced{x.server.cfg.Tracer.Answer("sluice.decide", at), int(t.First), int(t.Records)})
	}
}

// endSpans ends those spans.
func (x *exchange) endSpans() {
	for _, t := range x.traced {
		allowed, denied, notOwner, notReady := 0, 0, 0, 0
		for i := range t.records {
			switch r := &x.replies[t.first+i]; {
			case r.Status == check.NotOwner:
				notOwner++
			case r.Status == check.NotReady:
				notReady++
			case r.Status == check.Decided && r.Allowed:
				allowed++
			case r.Status == check.Decided:
				denied++
			}
		}
		t.span.Int("sluice.records", int64(t.records))
		t.span.Count("sluice.allowed", allowed)
		t.span.Count("sluice.denied", denied)
		t.span.Count("sluice.not_owner", notOwner)
		t.span.Count("sluice.not_ready", notReady)
		t.span.Text("sluice.peer", x.fromName)
		t.span.End()
	}
	clear(x.traced)
	x.traced = x.traced[:0]
}
