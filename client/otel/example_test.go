package otel_test

import (
	"context"
	"fmt"
	"log"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/client/otel"
)

func ExampleNew() {
	reader := sdkmetric.NewManualReader()
	o, err := otel.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		log.Fatal(err)
	}
	// sluice.New(target, sluice.WithObserver(o)) calls this:
	o.Decided(context.Background(), limit.Event{Domain: "shop", Amount: 1, Decision: limit.Decision{Allowed: true}})
	var got metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &got); err != nil {
		log.Fatal(err)
	}
	for _, m := range got.ScopeMetrics[0].Metrics {
		fmt.Println(m.Name)
	}
	// Output:
	// sluice.client.checks
	// sluice.client.duration
}

func ExampleObserver() {
	var o limit.Observer = &otel.Observer{}
	fmt.Printf("%T\n", o)
	// Output: *otel.Observer
}
