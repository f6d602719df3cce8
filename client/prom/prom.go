// Package prom exports the decisions of a limit.Limiter to Prometheus.
package prom

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicecluster/sluice/client/limit"
)

// Observer is a limit.Observer and a prometheus.Collector. Its metrics have the labels domain, verb, outcome (allowed,
// denied, shadowed, invalid, error) and source.
type Observer struct {
	checks *prometheus.CounterVec
	units  *prometheus.CounterVec
	took   *prometheus.HistogramVec
}

// New returns an Observer, to be registered and passed to sluice.WithObserver. Domains are label values, so they must not
// come from requests.
func New() *Observer {
	return &Observer{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_client_checks_total", Help: "Checks by outcome and by who decided.",
		}, []string{"domain", "verb", "outcome", "source"}),
		units: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_client_units_total", Help: "Units that were asked for, by outcome.",
		}, []string{"domain", "verb", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_client_check_seconds", Help: "Time until a check was answered, retries included.",
			Buckets: []float64{1e-6, 1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1, 5},
		}, []string{"verb", "source"}),
	}
}

// Decided implements limit.Observer.
func (o *Observer) Decided(_ context.Context, e limit.Event) {
	verb, outcome, source := e.Verb.String(), string(e.Outcome()), ""
	if e.Err == nil {
		source = e.Decision.Source.String()
	}
	o.checks.WithLabelValues(e.Domain, verb, outcome, source).Inc()
	o.units.WithLabelValues(e.Domain, verb, outcome).Add(float64(e.Amount))
	o.took.WithLabelValues(verb, source).Observe(e.Took.Seconds())
}

// Describe implements prometheus.Collector.
func (o *Observer) Describe(ch chan<- *prometheus.Desc) {
	o.checks.Describe(ch)
	o.units.Describe(ch)
	o.took.Describe(ch)
}

// Collect implements prometheus.Collector.
func (o *Observer) Collect(ch chan<- prometheus.Metric) {
	o.checks.Collect(ch)
	o.units.Collect(ch)
	o.took.Collect(ch)
}
