package console

import (
	"fmt"
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// TestOtherwiseIsALevel: an otherwise rule stands beside the rules of its level, not in the place of the one above.
func TestOtherwiseIsALevel(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(
		"domain: d\notherwise: {limits: [1/1s]}\ndescriptors: [{key: a, limits: [1/1s], cache_denials: false, otherwise: {limits: [1/1s]}}]\n")}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range set.Rules() {
		j := ruleOf(r)
		got += fmt.Sprintln(j.Name, j.Path, j.Notes)
	}
	if want := "d/a [{a  false}] [denials are not cached]\nd/a.otherwise [{a  false} {(otherwise)  false}] []\nd.otherwise [{(otherwise)  false}] []\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestReservationNotes: all that a rule says about reservations is noted.
func TestReservationNotes(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte("domain: d\ndescriptors:\n" +
		"  - {key: a, limits: [9/1s], reservation: {max_units: 8, max_open: 7, ttl: 1m30s, max_ttl: 1h, on_expiry: release, estimate: 6}}\n" +
		"  - {key: b, limits: [9/1s], reservation: {ttl: 60s, on_expiry: charge}}\n")}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(ruleOf(set.Rules()[0]).Notes, ruleOf(set.Rules()[1]).Notes)
	if want := "[reservations of at most 8 at most 7 open reservations reservations for 1m30s, at most 1h on expiry release reservations of 6 by estimate] []"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestConcurrencyHasNoRate: the utilization of keys is of limits with a period.
func TestConcurrencyHasNoRate(t *testing.T) {
	set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(
		"domain: d\notherwise: {limits: [{algorithm: concurrency, count: 3}, 9/1m]}\n")}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	j := ruleOf(set.Rules()[0])
	if got, want := fmt.Sprint(j.Limits, j.Rates), "[3 at a time, concurrency 9 in 1m, fixed window] [{9 60}]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
