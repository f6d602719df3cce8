package prom_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/client/prom"
)

func ExampleNew() {
	o := prom.New()
	r := prometheus.NewRegistry()
	r.MustRegister(o)
	// sluice.New(target, sluice.WithObserver(o)) calls this:
	o.Decided(context.Background(), limit.Event{Domain: "shop", Amount: 1, Decision: limit.Decision{Allowed: true}})
	families, err := r.Gather()
	for _, f := range families {
		fmt.Println(f.GetName())
	}
	fmt.Println(err)
	// Output:
	// sluice_client_check_seconds
	// sluice_client_checks_total
	// sluice_client_units_total
	// <nil>
}

func ExampleObserver() {
	var _ limit.Observer = &prom.Observer{}
	var _ prometheus.Collector = &prom.Observer{}
	// Output:
}
