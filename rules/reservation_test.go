package rules_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// TestReservationAsRead: what each key means, and what the defaults are beside it.
func TestReservationAsRead(t *testing.T) {
	usual := rules.Reservation{MaxOpen: 100_000, TTL: time.Minute, MaxTTL: 10 * time.Minute, OnExpiry: rules.ExpiryCharge}
	with := func(change func(*rules.Reservation)) rules.Reservation {
		r := usual
		change(&r)
		return r
	}
	for _, c := range []struct {
		text string
		want rules.Reservation
	}{
		{one("period: 1h, count: 9000"), usual},
		{one("unlimited: true"), usual},
		{one("period: 1h, count: 0"), usual},
		{one("period: 1s, count: 1, algorithm: leaky_queue"), usual},
		{"domain: d\notherwise: {limits: [1/1s]}\n", usual},
		{reserving("period: 1h, count: 9000", ""), usual},
		{reserving("period: 1h, count: 9000", "max_units: 8000, max_open: 200000, ttl: 30s, max_ttl: 1d, on_expiry: release, estimate: 8000"),
			rules.Reservation{MaxUnits: 8000, MaxOpen: 200_000, Estimate: 8000, TTL: 30 * time.Second, MaxTTL: 24 * time.Hour, OnExpiry: rules.ExpiryRelease}},
		{"domain: d\notherwise: {limits: [1/1s], reservation: {max_open: 1}}\n", with(func(r *rules.Reservation) { r.MaxOpen = 1 })},
		{reserving("unlimited: true", "estimate: 5000000000"), with(func(r *rules.Reservation) { r.Estimate = 5_000_000_000 })},
		{reserving("period: 1h, count: 9", "estimate: 9"), with(func(r *rules.Reservation) { r.Estimate = 9 })},
		{reserving("period: 1h, count: 9", "max_units: 9223372036854775807"), with(func(r *rules.Reservation) { r.MaxUnits = math.MaxInt64 })},
		{reserving("period: 1h, count: 9", "ttl: 1h"), with(func(r *rules.Reservation) { r.TTL, r.MaxTTL = time.Hour, time.Hour })},
		{reserving("period: 1h, count: 9", "ttl: 24h"), with(func(r *rules.Reservation) { r.TTL, r.MaxTTL = 24*time.Hour, 24*time.Hour })},
		{reserving("period: 1h, count: 9", "ttl: 1ms"), with(func(r *rules.Reservation) { r.TTL = time.Millisecond })},
		{reserving("period: 1h, count: 9", "max_ttl: 5s"), with(func(r *rules.Reservation) { r.TTL, r.MaxTTL = 5*time.Second, 5*time.Second })},
		{reserving("period: 1h, count: 9", "max_ttl: 5s, ttl: 5s"), with(func(r *rules.Reservation) { r.TTL, r.MaxTTL = 5*time.Second, 5*time.Second })},
		{reserving("period: 1h, count: 9", "max_ttl: 5m"), with(func(r *rules.Reservation) { r.MaxTTL = 5 * time.Minute })},
	} {
		if got := mustParse(t, c.text).Rules()[0].Reservation; got != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.text, got, c.want)
		}
	}
	for _, text := range []string{one("period: 1h, count: 9") + "    reservation:\n", reserving("period: 1h, count: 9", "ttl: , max_ttl: , on_expiry: , max_units: , max_open: , estimate: ")} {
		if got := load(t, text).Rules()[0].Reservation; got != usual {
			t.Errorf("%s: keys without a value: %+v", text, got)
		}
	}
	if got := rules.DefaultReservation(nil); got != usual {
		t.Errorf("default %+v", got)
	}
	if got := fmt.Sprint(rules.ExpiryCharge, rules.ExpiryRelease, rules.OnExpiry(9)); got != "charge release unknown" {
		t.Error(got)
	}
}

// TestMostUnits: max_units and the smallest capacity bound a reservation.
func TestMostUnits(t *testing.T) {
	const (
		window, weighted = "100/1s", "{count: 100, period: 1s, weight: 3}"
		burst, soft      = "{algorithm: token_bucket, count: 10, period: 1s, burst: 50}", "{count: 40, period: 1s, soft: 100%}"
	)
	for _, c := range []struct {
		limits    string
		max, want int64
	}{
		{window, 0, 100}, {window + ", " + burst, 0, 50}, {window + ", " + soft, 0, 40}, {window + ", " + weighted, 0, 33},
		{"{unlimited: true}", 0, math.MaxInt64}, {window + ", " + burst, 7, 7}, {"{unlimited: true}", 7, 7}, {window + ", " + burst, 70, 50},
	} {
		rule := mustParse(t, head+"  - {key: a, limits: ["+c.limits+"]}\n").Rules()[0]
		r := rules.DefaultReservation(rule.Limits)
		r.MaxUnits = c.max
		if got := r.Most(rule.Limits); got != c.want {
			t.Errorf("%s: %d, want %d", c.limits, got, c.want)
		}
	}
	l, err := bucket.NewLimits(bucket.Limit{Unlimited: true}, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Second})
	if r := rules.DefaultReservation(l); err != nil || r.Most(l) != 100 {
		t.Errorf("beside unlimited: %d, %v", r.Most(l), err)
	}
}

const hourly = "period: 1h, count: 9000"

// reservationFaults are those of reservation.
var reservationFaults = faults{
	bySchema: []fault{
		{"no units", reserving(hourly, "max_units: 0"), "5: d/a.reservation.max_units: must be from 1 to 9223372036854775807, not 0"},
		{"none open", reserving(hourly, "max_open: 0"), "5: d/a.reservation.max_open: must be from 1 to 200000, not 0"},
		{"too many open", reserving(hourly, "max_open: 200001"), "5: d/a.reservation.max_open: must be from 1 to 200000, not 200001"},
		{"a number of words", reserving(hourly, "max_open: many"), `5: d/a.reservation.max_open: must be a whole number, not the string "many"`},
		{"a ttl without a unit", reserving(hourly, "ttl: 60"), `5: d/a.reservation.ttl: "60" is not a duration such as 90s, 1h30m or 7d: a unit is missing`},
		{"unknown on_expiry", reserving(hourly, "on_expiry: return"), `5: d/a.reservation.on_expiry: must be one of charge, release, not "return"`},
		{"no estimate", reserving(hourly, "estimate: 0"), "5: d/a.reservation.estimate: must be from 1 to 9223372036854775807, not 0"},
		{"unknown key", reserving(hourly, "max_unit: 5"), `5: d/a.reservation: unknown key "max_unit"; did you mean max_units?`},
		{"key of a reservation", beside("max_ttl: 5m"), "5: d.descriptors[0]: the key max_ttl belongs in reservation, not here"},
		{"no mapping", beside("reservation: false"), `5: d/a.reservation: must be a mapping (key: value), not "false"`},
		{"without limits", "domain: d\ndescriptors: [{key: a, reservation: {ttl: 5s}}]\n", "2: d/a.reservation: has no effect without limits beside it"},
	},
	byReader: []fault{
		{"a short ttl", reserving(hourly, "ttl: 999us"), "5: d/a.reservation.ttl: must be at least 1ms, not 999us"},
		{"a ttl of nothing", reserving(hourly, "ttl: 0s"), "5: d/a.reservation.ttl: must be at least 1ms, not 0s"},
		{"a long ttl", reserving(hourly, "ttl: 25h"), "5: d/a.reservation.ttl: must be from 1ms to 24h, not 25h"},
		{"a ttl above max_ttl", reserving(hourly, "ttl: 10m, max_ttl: 5m"), "5: d/a.reservation.ttl: must be from 1ms to max_ttl, 5m, not 10m"},
		{"a short max_ttl", reserving(hourly, "max_ttl: 1us"), "5: d/a.reservation.max_ttl: must be at least 1ms, not 1us"},
		{"a long max_ttl", reserving(hourly, "ttl: 1h, max_ttl: 2d"), "5: d/a.reservation.max_ttl: must be from 1ms to 24h, not 2d"},
		{"charged concurrency", reserving("algorithm: concurrency, count: 9", "on_expiry: charge"), "5: d/a.reservation.on_expiry: charge is not for concurrency, whose units are free again at the deadline; leave it out"},
		{"an estimate above the concurrency", reserving("algorithm: concurrency, count: 9", "estimate: 10"), "5: d/a.reservation.estimate: must be from 1 to 9, the most units of one reservation, not 10"},
		{"an estimate above max_units", reserving(hourly, "max_units: 400, estimate: 500"), "5: d/a.reservation.estimate: must be from 1 to 400, the most units of one reservation, not 500"},
		{"an estimate above the limit", reserving(hourly, "estimate: 9001"), "5: d/a.reservation.estimate: must be from 1 to 9000, the most units of one reservation, not 9001"},
		{"an estimate above the weighted limit", reserving(hourly+", weight: 100", "max_units: 400, estimate: 91"), "5: d/a.reservation.estimate: must be from 1 to 90, the most units of one reservation, not 91"},
		{"an estimate of what is unlimited", reserving("unlimited: true", "max_units: 4, estimate: 5"), "5: d/a.reservation.estimate: must be from 1 to 4, the most units of one reservation, not 5"},
		{"a line of its own", one(hourly) + "    reservation:\n      max_units: 4\n      estimate: 5\n", "7: d/a.reservation.estimate: must be from 1 to 4, the most units of one reservation, not 5"},
		{"of a queue", reserving("period: 1s, count: 5, algorithm: leaky_queue", ""), "4: d/a.rate_limit: does not go with reservation: a queue delays what it admits, so it cannot set units aside"},
		{"of a pace", reserving(hourly+", min_interval: 1s", ""), "4: d/a.rate_limit: does not go with reservation: min_interval makes checks under it depend on each other"},
		{"of what blocks", reserving(hourly+", block_for: 1s", ""), "4: d/a.rate_limit: does not go with reservation: block_for makes checks under it depend on each other"},
		{"of what counts denials", reserving(hourly+", algorithm: sliding_log, count_denied: true", ""), "4: d/a.rate_limit: does not go with reservation: count_denied makes checks under it depend on each other"},
		{"of less than a unit", reserving(hourly+", weight: 9001", ""), "4: d/a.rate_limit: does not go with reservation: one unit is more than the limit"},
		{"of nothing", reserving("period: 1h, count: 0", ""), "4: d/a.rate_limit: does not go with reservation: one unit is more than the limit"},
		{"of the second limit", "domain: d\notherwise:\n  limits:\n    - 5/1m\n    - {count: 5, period: 1h, min_interval: 1s}\n  reservation: {}\n", "5: d.otherwise.limits[1]: does not go with reservation: min_interval makes checks under it depend on each other"},
	},
}

// reserving is a rule with the limit and the reservation given.
func reserving(limit, reservation string) string {
	return one(limit) + "    reservation: {" + reservation + "}\n"
}
