package limiter

import (
	"context"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
	"github.com/sluicecluster/sluice/internal/tracing"
	"github.com/sluicecluster/sluice/rules"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func recording(t *testing.T, share float64) (*tracetest.SpanRecorder, func(*Config)) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	tracer, err := tracing.New(tracing.Config{Provider: sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), Share: share, Callers: 10})
	if err != nil {
		t.Fatal(err)
	}
	return spans, func(c *Config) { c.Tracer = tracer }
}

// notes are what a span says, with its status.
func notes(s sdk.ReadOnlySpan) map[string]string {
	m := map[string]string{"name": s.Name(), "failed": s.Status().Description}
	for _, a := range s.Attributes() {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

func TestSpans(t *testing.T) {
	const secret = "a-value-nobody-may-see"
	spans, traced := recording(t, 1)
	var asked *check.Trace
	s := newScript(t, testRules, traced)
	s.config.Decider = decideFunc(func(ctx context.Context, b *check.Batch) {
		asked = b.Trace
		for i := range b.Answers {
			b.Answers[i] = check.Answer{Decision: bucket.Decision{Allowed: b.Requests[i].Cost < 5, Limit: 3}, Source: check.Forwarded, Owner: "n2"}
			if b.Requests[i].Cost > 8 {
				b.Answers[i] = check.Answer{Err: check.ErrNoOwner}
			}
		}
	})
	for _, c := range []struct {
		name, call string
		want       map[string]string
	}{
		{"allowed", "user=SECRET *2", map[string]string{
			"name": "sluice.check", "sluice.api": "envoy", "sluice.checks": "1", "sluice.domain": "shop", "sluice.rule": "shop/user",
			"sluice.verb": "check", "sluice.hits": "2", "sluice.result": "allowed", "sluice.source": "forwarded", "sluice.owner": "n2", "failed": ""}},
		{"denied", "user=SECRET *5", map[string]string{"sluice.result": "denied", "failed": ""}},
		{"shadowed", "watched=SECRET *5", map[string]string{"sluice.result": "shadowed", "sluice.rule": "watch"}},
		{"no answer", "user=SECRET *9", map[string]string{"sluice.result": "unavailable", "failed": "unavailable"}},
		{"invalid", "=SECRET", map[string]string{"sluice.result": "invalid", "failed": ""}},
		{"a batch", "user=SECRET | user=SECRET *5 | user=SECRET *9 | free=SECRET", map[string]string{
			"sluice.checks": "4", "sluice.allowed": "2", "sluice.denied": "1", "sluice.errors": "1", "sluice.domain": "shop", "failed": "unavailable"}},
		{"reset", "user=SECRET reset", map[string]string{"name": "sluice.check", "sluice.verb": "reset"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(spans.Ended())
			b := s.batch(strings.ReplaceAll(c.call, "SECRET", secret))
			b.API = EnvoyAPI
			_ = s.Check(t.Context(), b)
			ended := spans.Ended()[before:]
			if len(ended) != 1 {
				t.Fatalf("%d spans", len(ended))
			}
			got := notes(ended[0])
			for key, want := range c.want {
				if got[key] != want {
					t.Errorf("%s is %q, want %q", key, got[key], want)
				}
			}
			for key, value := range got {
				if strings.Contains(key+value, secret) {
					t.Errorf("%s shows a value: %q", key, value)
				}
			}
			if asked != nil && asked.Span != ended[0].SpanContext().SpanID() {
				t.Errorf("the decider was told of %v", asked)
			}
			asked = nil
		})
	}
}

// TestUntracedAllocatesNothing: tracing costs calls that are not traced no allocation, nor does a Trace
// stay behind in a batch that is used again.
func TestUntracedAllocatesNothing(t *testing.T) {
	spans, traced := recording(t, 0)
	var asked *check.Trace
	s := newService(t, decideFunc(func(ctx context.Context, b *check.Batch) { asked = b.Trace; allow(ctx, b) }), traced)
	const on, off = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	call := func(traceparent string) {
		b := NewBatch()
		b.Traceparent = traceparent
		q := b.Add()
		q.Domain = "shop"
		q.Descriptor = append(q.Descriptor, rules.Entry{Key: "user", Value: "x"})
		q.Limits = append(q.Limits, bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: 1e9})
		if err := s.Check(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	call(on)
	if asked == nil || len(spans.Ended()) != 1 {
		t.Fatal("a call whose caller is traced is not")
	}
	for _, traceparent := range []string{"", off, "rubbish"} {
		if n := testing.AllocsPerRun(100, func() { call(traceparent) }); n > 0 && !race.Enabled {
			t.Errorf("%q: %v allocations", traceparent, n)
		}
		if asked != nil {
			t.Errorf("%q: the decider was told of a trace", traceparent)
		}
	}
}
