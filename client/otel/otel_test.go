package otel

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sluicecluster/sluice/client/limit"
)

func TestObserver(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	o, err := New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	spans := tracetest.NewSpanRecorder()
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(t.Context(), "request")
	o.Decided(ctx, limit.Event{Domain: "shop", Amount: 2, Took: time.Millisecond, Decision: limit.Decision{Source: limit.SourceOwned, Rule: "shop/user"}})
	o.Decided(t.Context(), limit.Event{Domain: "shop", Amount: 1, Err: limit.ErrClosed})
	span.End()

	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int64{}
	for _, m := range got.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				v, _ := p.Attributes.Value(attribute.Key("sluice.outcome"))
				outcomes[v.AsString()] = p.Value
			}
		case metricdata.Histogram[float64]:
			if len(data.DataPoints) != 2 {
				t.Errorf("%s has %d points", m.Name, len(data.DataPoints))
			}
		}
	}
	if outcomes["denied"] != 1 || outcomes["error"] != 1 || len(outcomes) != 2 {
		t.Errorf("outcomes %v", outcomes)
	}
	events := spans.Ended()[0].Events()
	if len(events) != 1 || events[0].Name != "sluice.check" {
		t.Fatalf("events %v", events)
	}
	found := false
	for _, a := range events[0].Attributes {
		found = found || a == attribute.String("sluice.rule", "shop/user")
	}
	if !found {
		t.Errorf("attributes %v", events[0].Attributes)
	}
	if _, err := New(nil); err == nil {
		t.Error("no MeterProvider was accepted")
	}
}
