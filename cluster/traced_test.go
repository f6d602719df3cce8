package cluster

import (
	"slices"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/tracing"
)

// recordingTestCluster returns a test cluster of a and b, of which a records what it is asked to.
func recordingTestCluster(t *testing.T) (*testCluster, *Node, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	tracer, err := tracing.New(tracing.Config{Provider: sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))})
	must(t, err)
	w := newTestCluster(t, "b")
	a := w.add("a", func(c *Config) { c.Tracer = tracer })
	w.agree(2)
	return w, a, spans
}

// TestForwardTraced: what is asked of another node has a span, and the records say so; what is
// decided here, or is in no trace, has none.
func TestForwardTraced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, spans := recordingTestCluster(t)
		at := &check.Trace{ID: [16]byte{1}, Span: [8]byte{2}}
		away, here := request(a, "b", 1, hourly(10)), request(a, "a", 1, hourly(10))
		batch := &check.Batch{Requests: []check.Request{away, here, away, here}, Answers: make([]check.Answer, 4), Trace: at}
		a.Decide(t.Context(), batch)
		batch.Trace = nil
		a.Decide(t.Context(), batch)

		calls, ended := w.callsSoFar(), spans.Ended()
		if len(calls) != 2 || len(ended) != 1 {
			t.Fatalf("%d calls and %d spans, want 2 and 1", len(calls), len(ended))
		}
		s := ended[0]
		if s.SpanContext().TraceID() != at.ID || s.Parent().SpanID() != at.Span || s.Name() != "sluice.forward" {
			t.Errorf("span %s of %v below %v", s.Name(), s.SpanContext().TraceID(), s.Parent().SpanID())
		}
		got := calls[0].records[0].Trace
		if got == nil || got.ID != at.ID || got.Span != s.SpanContext().SpanID() {
			t.Errorf("the record says %+v", got)
		}
		if calls[1].records[0].Trace != nil {
			t.Error("a record of no trace says that it is in one")
		}
		for _, a := range s.Attributes() {
			if a.Key == "sluice.checks" && a.Value.AsInt64() != 2 {
				t.Errorf("%d checks, want 2", a.Value.AsInt64())
			}
		}
	})
}

// TestForwardTracedFails: a span says that no answer came.
func TestForwardTracedFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, spans := recordingTestCluster(t)
		fates := []fate{unsent, replyLost, delivered}
		w.mu.fate = func(string, string, []check.Record) fate {
			f := fates[0]
			fates = fates[1:]
			return f
		}
		batch := &check.Batch{Requests: []check.Request{request(a, "b", 1, hourly(10))}, Answers: make([]check.Answer, 1), Trace: &check.Trace{ID: [16]byte{1}, Span: [8]byte{2}}}
		a.Decide(t.Context(), batch)
		var got []string
		for _, s := range spans.Ended() {
			got = append(got, s.Status().Description)
		}
		if want := []string{"not sent", "not answered", ""}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
