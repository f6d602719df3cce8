package prom

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicecluster/sluice/client/limit"
)

func TestObserver(t *testing.T) {
	o := New()
	if err := prometheus.NewPedanticRegistry().Register(o); err != nil {
		t.Fatal(err)
	}
	allowed := limit.Decision{Allowed: true, Source: limit.SourceOwned}
	for _, e := range []limit.Event{
		{Amount: 3, Decision: allowed, Took: time.Millisecond},
		{Amount: 1, Decision: limit.Decision{Source: limit.SourceDenyCache}},
		{Amount: 1, Decision: limit.Decision{Allowed: true, Verdict: limit.VerdictShadow, Source: limit.SourceOwned}},
		{Amount: 1, Err: &limit.Error{Field: "domain"}},
		{Amount: 1, Err: errors.New("gone")},
	} {
		e.Domain = "shop"
		o.Decided(t.Context(), e)
	}
	want := `
# HELP sluice_client_checks_total Checks by outcome and by who decided.
# TYPE sluice_client_checks_total counter
sluice_client_checks_total{domain="shop",outcome="allowed",source="owned",verb="check"} 1
sluice_client_checks_total{domain="shop",outcome="denied",source="deny_cache",verb="check"} 1
sluice_client_checks_total{domain="shop",outcome="error",source="",verb="check"} 1
sluice_client_checks_total{domain="shop",outcome="invalid",source="",verb="check"} 1
sluice_client_checks_total{domain="shop",outcome="shadowed",source="owned",verb="check"} 1
# HELP sluice_client_units_total Units that were asked for, by outcome.
# TYPE sluice_client_units_total counter
sluice_client_units_total{domain="shop",outcome="allowed",verb="check"} 3
sluice_client_units_total{domain="shop",outcome="denied",verb="check"} 1
sluice_client_units_total{domain="shop",outcome="error",verb="check"} 1
sluice_client_units_total{domain="shop",outcome="invalid",verb="check"} 1
sluice_client_units_total{domain="shop",outcome="shadowed",verb="check"} 1
`
	if err := testutil.CollectAndCompare(o, strings.NewReader(want), "sluice_client_checks_total", "sluice_client_units_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(o, "sluice_client_check_seconds"); n != 3 {
		t.Errorf("%d histograms, want 3", n)
	}
}
