package tracing

import (
	"testing"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// What a caller sends as traceparent is one, with a trace and a span, or is not read.
func FuzzParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("00-00000000000000000000000000000000-b7ad6b7169203331-01")
	f.Fuzz(func(t *testing.T, text string) {
		var p parent
		if p.read(text) && (len(text) < flagsEnd || !oteltrace.SpanContextFromContext(p.context()).IsValid()) {
			t.Errorf("%q was read", text)
		}
	})
}
