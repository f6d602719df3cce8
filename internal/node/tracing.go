package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluicecluster/sluice/internal/tracing"
)

// enabled reports whether traces are to be sent, by the flag or by OpenTelemetry's environment variables. unsupported is a variable
// that wants another protocol or exporter.
func (t *Traces) enabled(env func(string) string) (yes bool, unsupported string) {
	if env("OTEL_SDK_DISABLED") == "true" {
		return false, ""
	}
	if t.Endpoint != "" {
		return true, ""
	}
	if env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return false, ""
	}
	switch env("OTEL_TRACES_EXPORTER") {
	case "", "otlp":
	case "none":
		return false, ""
	default:
		return false, "OTEL_TRACES_EXPORTER"
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := env(name); p == "grpc" {
			break
		} else if p != "" {
			return false, name
		}
	}
	return true, ""
}

const (
	maxSpans      = 2048             // ended and not sent yet; later ones are dropped
	exportTimeout = 10 * time.Second // of one attempt to send some
	flushTimeout  = 2 * time.Second  // of the last one, at a stop
)

// spans sends spans to an OpenTelemetry collector and counts them. No call waits for the collector. Nil sends nothing.
type spans struct {
	tracer   *tracing.Tracer
	provider *sdk.TracerProvider
	exporter sdk.SpanExporter
	log      *slog.Logger

	pending               atomic.Int64
	sent, failed, dropped atomic.Uint64
	failing               atomic.Bool
}

// spanStats count spans since the start; waiting are those to be sent now.
type spanStats struct {
	sent, failed, dropped uint64
	waiting               int64
}

// openTracing returns nil if no traces are wanted. It does not wait for the collector.
func openTracing(ctx context.Context, c *Config, log *slog.Logger) (*spans, error) {
	yes, unsupported := c.Traces.enabled(os.Getenv)
	if unsupported != "" {
		log.Warn("no traces are sent: this variable is not for OTLP over gRPC", "name", unsupported)
	}
	if !yes {
		return nil, nil
	}
	if _, given := os.LookupEnv("OTEL_TRACES_SAMPLER"); given {
		log.Warn("OTEL_TRACES_SAMPLER is ignored: see --trace-sample and --trace-callers")
	}
	options := []otlptracegrpc.Option{otlptracegrpc.WithTimeout(exportTimeout)}
	if c.Traces.Endpoint != "" {
		options = append(options, otlptracegrpc.WithEndpointURL(c.Traces.Endpoint))
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("--otlp-endpoint: %w", err)
	}
	// The library's own errors, such as spans that a collector accepted only in part.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("OpenTelemetry", "error", err) }))
	s, err := newSpans(ctx, c, exporter, log)
	if err == nil {
		log.Info("traces are sent", "share", c.Traces.Share, "callers", c.Traces.Callers)
	}
	return s, err
}

// newSpans sends to exporter, which it owns.
func newSpans(ctx context.Context, c *Config, exporter sdk.SpanExporter, log *slog.Logger) (*spans, error) {
	own, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "sluice"),
			attribute.String("service.version", c.Version), attribute.String("service.instance.id", c.Name)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		log.Warn("OTEL_RESOURCE_ATTRIBUTES is ignored in part", "error", err)
	}
	s := &spans{exporter: exporter, log: log}
	batches := sdk.NewBatchSpanProcessor(s, sdk.WithMaxQueueSize(maxSpans), sdk.WithExportTimeout(exportTimeout))
	s.provider = sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample()), sdk.WithResource(own), sdk.WithSpanProcessor(bounded{batches, s}))
	if s.tracer, err = tracing.New(tracing.Config{Provider: s.provider, Share: c.Traces.Share, Callers: c.Traces.Callers}); err != nil {
		return nil, err
	}
	return s, nil
}

// trace returns the tracer, nil for none.
func (s *spans) trace() *tracing.Tracer {
	if s == nil {
		return nil
	}
	return s.tracer
}

func (s *spans) stats() spanStats {
	if s == nil {
		return spanStats{}
	}
	return spanStats{s.sent.Load(), s.failed.Load(), s.dropped.Load(), s.pending.Load()}
}

// close sends the remaining spans, for flushTimeout at most.
func (s *spans) close() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := s.provider.Shutdown(ctx); err != nil {
		s.log.Debug("not all traces were sent", "error", err)
	}
}

// bounded drops and counts spans when maxSpans are pending, before the queue of the processor would drop them uncounted.
type bounded struct {
	sdk.SpanProcessor
	spans *spans
}

// OnEnd implements sdk.SpanProcessor.
func (b bounded) OnEnd(s sdk.ReadOnlySpan) {
	if b.spans.pending.Add(1) > maxSpans {
		b.spans.pending.Add(-1)
		b.spans.dropped.Add(1)
		return
	}
	b.SpanProcessor.OnEnd(s)
}

// ExportSpans implements sdk.SpanExporter. It counts failed spans, and logs the first failure until a success.
func (s *spans) ExportSpans(ctx context.Context, list []sdk.ReadOnlySpan) error {
	err := s.exporter.ExportSpans(ctx, list)
	s.pending.Add(-int64(len(list)))
	if err == nil {
		s.sent.Add(uint64(len(list)))
		if s.failing.Swap(false) {
			s.log.Info("traces are sent again")
		}
		return nil
	}
	s.failed.Add(uint64(len(list)))
	if !s.failing.Swap(true) {
		s.log.Warn("traces cannot be sent; calls do not wait for them", "error", err)
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (s *spans) Shutdown(ctx context.Context) error { return s.exporter.Shutdown(ctx) }
