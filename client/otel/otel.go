// Package otel exports the decisions of a limit.Limiter to OpenTelemetry: metrics, and an event on the span of
// the call's context.
package otel

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluicecluster/sluice/client/limit"
)

// scope is the instrumentation scope of the metrics.
const scope = "github.com/sluicecluster/sluice/client"

// Observer is a limit.Observer.
type Observer struct {
	checks metric.Int64Counter
	took   metric.Float64Histogram
}

// New returns an Observer for sluice.WithObserver, with metrics of p:
// sluice.client.checks, a counter by domain, verb, outcome (allowed, denied, shadowed, invalid, error) and source, and
// sluice.client.duration, a histogram in seconds.
func New(p metric.MeterProvider) (*Observer, error) {
	if p == nil {
		return nil, errors.New("sluice/otel: the MeterProvider is nil")
	}
	m := p.Meter(scope)
	checks, err := m.Int64Counter("sluice.client.checks", metric.WithUnit("{check}"), metric.WithDescription("Checks by outcome and by who decided."))
	if err != nil {
		return nil, fmt.Errorf("sluice/otel: %w", err)
	}
	took, err := m.Float64Histogram("sluice.client.duration", metric.WithUnit("s"),
		metric.WithDescription("Time until a check was answered, retries included."),
		metric.WithExplicitBucketBoundaries(1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1, 5))
	if err != nil {
		return nil, fmt.Errorf("sluice/otel: %w", err)
	}
	return &Observer{checks, took}, nil
}

// Decided implements limit.Observer.
func (o *Observer) Decided(ctx context.Context, e limit.Event) {
	attrs := []attribute.KeyValue{
		attribute.String("sluice.domain", e.Domain), attribute.String("sluice.verb", e.Verb.String()), attribute.String("sluice.outcome", string(e.Outcome())),
	}
	if e.Err == nil {
		attrs = append(attrs, attribute.String("sluice.source", e.Decision.Source.String()))
	}
	set := metric.WithAttributeSet(attribute.NewSet(attrs...))
	o.checks.Add(ctx, 1, set)
	o.took.Record(ctx, e.Took.Seconds(), set)
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if e.Err == nil {
		attrs = append(attrs, attribute.String("sluice.rule", e.Decision.Rule), attribute.String("sluice.owner", e.Decision.Owner),
			attribute.Int64("sluice.limit", e.Decision.Limit), attribute.Int64("sluice.remaining", e.Decision.Remaining))
	} else {
		attrs = append(attrs, attribute.String("error.message", e.Err.Error()))
	}
	span.AddEvent("sluice."+e.Verb.String(), trace.WithAttributes(append(attrs, attribute.Int64("sluice.amount", e.Amount))...))
}
