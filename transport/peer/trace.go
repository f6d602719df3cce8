package peer

import (
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/tracing"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Names of the span of what was answered, and of what is noted at it.
const (
	spanHolder = "sluice.hold"

	noteFrom      = "sluice.peer"
	noteRecords   = "sluice.records"
	noteAllowed   = "sluice.allowed"
	noteDenied    = "sluice.denied"
	noteNotHolder = "sluice.not_holder"
	noteLater     = "sluice.later"
)

// addTrace says of record index of m, of which nothing was said yet, that it was sent for at. It reports whether
// that took an entry of its own: records that follow each other have one.
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

// traced is what a frame has of one trace.
type traced struct {
	span           *tracing.Span
	first, records int
}

// begin begins a span for each part of the frame that is of a trace. A part that makes no
// sense is passed over: no check is to fail by what is only for looking at.
func (x *exchange) begin() {
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
		x.traced = append(x.traced, traced{x.server.cfg.Tracer.Answer(spanHolder, at), int(t.First), int(t.Records)})
	}
}

// end ends those spans.
func (x *exchange) end() {
	if len(x.traced) == 0 {
		return
	}
	for i := range x.traced {
		t := &x.traced[i]
		t.note(x.replies[t.first : t.first+t.records])
		t.span.Text(noteFrom, x.fromName)
		t.span.End()
	}
	clear(x.traced)
	x.traced = x.traced[:0]
}

func (t *traced) note(replies []check.Reply) {
	allowed, denied, notHolder, later := 0, 0, 0, 0
	for i := range replies {
		switch r := &replies[i]; {
		case r.Status == check.NotHolder:
			notHolder++
		case r.Status == check.Later:
			later++
		case r.Status == check.Decided && r.Allowed:
			allowed++
		case r.Status == check.Decided:
			denied++
		}
	}
	t.span.Int(noteRecords, int64(t.records))
	t.span.Count(noteAllowed, allowed)
	t.span.Count(noteDenied, denied)
	t.span.Count(noteNotHolder, notHolder)
	t.span.Count(noteLater, later)
}
