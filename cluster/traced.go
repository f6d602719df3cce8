package cluster

import (
	"errors"

	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/tracing"
)

// Names of spans, and of what is noted at them.
const (
	spanForward = "sluice.forward"

	noteAddress   = "sluice.address"
	noteRecords   = "sluice.records"
	noteChecks    = "sluice.checks"
	noteNotHolder = "sluice.not_holder"
	noteLater     = "sluice.later"
)

// ask begins the span of a call to the node at addr, and says in records where in the trace they are sent from. It
// does nothing unless at is not nil.
func (n *Node) ask(at *check.Trace, addr string, records []check.Record) *tracing.Span {
	if at == nil {
		return nil
	}
	span := n.cfg.Tracer.Ask(spanForward, at)
	checks := int64(0)
	for i := range records {
		records[i].Trace = span.Trace()
		checks += max(1, records[i].Times)
	}
	span.Text(noteAddress, addr)
	span.Int(noteRecords, int64(len(records)))
	span.Int(noteChecks, checks)
	return span
}

// endAsk ends the span of a call that has brought replies and err.
func endAsk(span *tracing.Span, replies []check.Reply, err error) {
	if span == nil {
		return
	}
	notHolder, later := 0, 0
	for i := range replies {
		switch replies[i].Status {
		case check.NotHolder:
			notHolder++
		case check.Later:
			later++
		}
	}
	span.Count(noteNotHolder, notHolder)
	span.Count(noteLater, later)
	switch {
	case errors.Is(err, check.ErrUnsent):
		span.Fail("not sent")
	case errors.Is(err, check.ErrOverloaded):
		span.Fail("overloaded")
	case err != nil:
		span.Fail("not answered")
	}
	span.End()
}
