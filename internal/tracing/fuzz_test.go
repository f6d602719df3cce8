package tracing

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// FuzzParent: what callers send is read as OpenTelemetry's own reader does. But that lets version 00 end in a
// dash, and rejects it with flags that it does not know.
func FuzzParent(f *testing.F) {
	for _, text := range []string{sampled, unheeded, "01" + sampled[2:], "01" + sampled[2:] + "-more", sampled + "-", "ff" + sampled[2:], "", "00--01"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p parent
		ok := p.read(text)
		carrier := propagation.MapCarrier{"traceparent": text}
		want := oteltrace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
		dash := len(text) == flagsEnd+1 && text[:2] == "00"
		flags := len(text) == flagsEnd && text[:2] == "00" && text[spanEnd+1:] > "03"
		if ok != want.IsValid() && !dash && !flags {
			t.Fatalf("%q: read %v, want %v", text, ok, want.IsValid())
		}
		if ok && !flags && (p.trace != want.TraceID() || p.span != want.SpanID() || p.sampled != want.IsSampled()) {
			t.Fatalf("%q: %+v, want %v %v %v", text, p, want.TraceID(), want.SpanID(), want.IsSampled())
		}
	})
}
