package limiter

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestReservationOfAnotherCluster: an ID of a cluster with another secret is invalid, whatever is asked of it.
func TestReservationOfAnotherCluster(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	x, _, err := b.reserve(ReserveRequest{Units: 5}, "", "user=ann")
	if err != nil {
		t.Fatal(err)
	}
	other := newService(t, b.config.Decider, func(c *Config) {
		if c.Hasher, err = NewHasher([]byte(strings.Repeat("o", MinSecret))); err != nil {
			t.Fatal(err)
		}
	})
	_, spend := other.Spend(ctx, x.ID, 1)
	_, extend := other.Extend(ctx, x.ID, 1, 0)
	_, settle := other.Settle(ctx, x.ID, 1)
	_, domains := other.ReservationDomains(x.ID)
	for what, err := range map[string]error{"spend": spend, "extend": extend, "settle": settle, "domains": domains} {
		if codeOf(err) != Invalid || !strings.Contains(err.Error(), "not with this secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	b.wants("reserved", 95)
}

// TestReservationOverflow: the largest numbers neither wrap around nor give units back.
func TestReservationOverflow(t *testing.T) {
	b, ctx := newBudgets(t), context.Background()
	if x, results, err := b.reserve(ReserveRequest{Units: math.MaxInt64}, "", "user=ann"); err != nil || x.Units != 0 || codeOf(results[0].Err) != Invalid {
		t.Errorf("%+v, %+v, %v", x, results, err)
	}
	if x, _, err := b.reserve(ReserveRequest{Units: math.MaxInt64, Least: 1}, "", "user=ann"); err != nil || x.Units != 100 {
		t.Errorf("all there is: %+v, %v", x, err)
	} else if _, err := b.Settle(ctx, x.ID, 0); err != nil {
		t.Fatal(err)
	}
	x, _, err := b.reserve(ReserveRequest{Units: 40}, "", "user=ann", "team=red")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := b.Spend(ctx, x.ID, math.MaxInt64); err != nil || s != (Spent{false, 40}) {
		t.Errorf("%+v, %v", s, err)
	}
	if e, err := b.Extend(ctx, x.ID, math.MaxInt64, 0); err != nil || e.Allowed || e.Units != 40 || e.RetryAfter != bucket.Never {
		t.Errorf("%+v, %v", e, err)
	}
	b.wants("unchanged", 60, 960)
	if s, err := b.Settle(ctx, x.ID, math.MaxInt64); err != nil || s != (Settlement{Charged: math.MaxInt64}) {
		t.Errorf("%+v, %v", s, err)
	}
	b.wants("a debt", 0, 0)
	if x, _, err := b.reserve(ReserveRequest{Units: 1}, "", "user=ann"); err != nil || x.Units != 0 {
		t.Errorf("beside the debt: %+v, %v", x, err)
	}
	if s, err := b.Settle(ctx, x.ID, math.MaxInt64); err != nil || s != (Settlement{Charged: math.MaxInt64, Repeated: true}) {
		t.Errorf("again: %+v, %v", s, err)
	}
	b.wants("the same debt", 0, 0)
}

// TestMillionReservations: one caller that reserves a million times has max_open reservations of a key, and checks are decided beside them. At
// their deadline all is as before.
func TestMillionReservations(t *testing.T) {
	const open = 100_000 // the default of max_open
	b := newBudgets(t)
	b.SetRules(parse(t, `
domain: llm
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2000000}
    reservation: {on_expiry: release}
`))
	made, same := 0, 0
	for i := range open + 1000 { // it denies those that follow too
		x, results, err := b.reserve(ReserveRequest{Units: 2}, "", "user=ann")
		r := &results[0]
		switch {
		case err != nil:
			t.Fatal(err)
		case x.Units > 0:
			made++
		case r.Err != nil && r.Err.Code == Unavailable && made < open: // the ID is that of another one
			same++
		case r.Verdict() != Denied || r.RetryAfter <= 0 || r.RetryAfter > time.Minute:
			t.Fatalf("%d: %+v", i, r)
		}
	}
	t.Logf("%d had the ID of another one", same)
	if made != open || same > 100 {
		t.Errorf("%d were made, want %d; %d had the ID of another one", made, open, same)
	}
	b.wants("held", 2_000_000-2*open)
	b.now += int64(time.Minute)
	for range open/1024 + 1 { // at most so many end with one decision
		b.left("user=ann")
	}
	b.wants("free again", 2_000_000)
}

// TestReservationsOutliveRules: what is reserved under one algorithm is held, spent and settled under another, and where rules let nothing be
// reserved any more.
func TestReservationsOutliveRules(t *testing.T) {
	ctx := context.Background()
	limit := func(text string) string {
		return fmt.Sprintf("domain: llm\ndescriptors:\n  - key: user\n    limits: [{%s}]\n", text)
	}
	algorithms := map[string]string{
		"token_bucket": "count: 100, period: 1000h", "leaky_bucket": "count: 100, period: 1000h", "fixed_window": "count: 100, period: 1000h, align: first_hit",
		"sliding_log": "count: 100, period: 1000h", "sliding_counter": "count: 100, period: 1000h", "sliding_window": "count: 100, period: 1000h", "leaky_queue": "count: 100, period: 1000h",
	}
	for from := range algorithms {
		for to, text := range algorithms {
			if from == "leaky_queue" {
				continue // it lets nothing be reserved
			}
			b := newBudgets(t)
			b.SetRules(parse(t, limit("algorithm: "+from+", "+algorithms[from])))
			x, _, err := b.reserve(ReserveRequest{Units: 40}, "", "user=ann")
			if err != nil || x.Units != 40 {
				t.Fatalf("%s: %+v, %v", from, x, err)
			}
			b.SetRules(parse(t, limit("algorithm: "+to+", "+text)))
			what := from + " to " + to
			b.wants(what+", held", 60)
			if s, err := b.Spend(ctx, x.ID, 5); err != nil || s != (Spent{true, 35}) {
				t.Errorf("%s: %+v, %v", what, s, err)
			}
			e, err := b.Extend(ctx, x.ID, 10, time.Minute)
			if err != nil || !e.Allowed || e.Units != 45 {
				t.Errorf("%s: %+v, %v", what, e, err)
			}
			b.wants(what+", extended", 50)
			y, results, err := b.reserve(ReserveRequest{Units: 1}, "", "user=ann")
			if to == "leaky_queue" {
				if err != nil || y.Units != 0 || codeOf(results[0].Err) != Invalid {
					t.Errorf("%s: %+v, %+v, %v", what, y, results, err)
				}
			} else if err != nil || y.Units != 1 {
				t.Errorf("%s: %+v, %v", what, y, err)
			} else if s, err := b.Settle(ctx, y.ID, 0); err != nil || s.Returned != 1 {
				t.Errorf("%s: %+v, %v", what, s, err)
			}
			if s, err := b.Settle(ctx, x.ID, 15); err != nil || s != (Settlement{Charged: 15, Returned: 30}) {
				t.Errorf("%s: %+v, %v", what, s, err)
			}
			b.wants(what+", settled", 80)
		}
		if from == "leaky_queue" {
			continue
		}
		b := newBudgets(t)
		b.SetRules(parse(t, limit("algorithm: "+from+", "+algorithms[from])))
		x, _, err := b.reserve(ReserveRequest{Units: 40}, "", "user=ann")
		if err != nil {
			t.Fatal(err)
		}
		b.SetRules(parse(t, "domain: llm\ndescriptors:\n  - {key: other, limits: [1/1h]}\n"))
		if s, err := b.Settle(ctx, x.ID, 15); err != nil || s != (Settlement{Charged: 15, Returned: 25}) {
			t.Errorf("%s without a rule: %+v, %v", from, s, err)
		}
		b.SetRules(parse(t, limit("algorithm: "+from+", "+algorithms[from])))
		b.wants(from+", settled without a rule", 85)
	}
}

// TestDefaultOfUnits: a reservation without units takes the rule's estimate, or what it learns below max_units, and is an error
// under a rule with neither: the whole limit for a forgotten field would be worse. Documentation and schemas say so in these words.
func TestDefaultOfUnits(t *testing.T) {
	const neither = "neither estimate nor max_units"
	s := newService(t, newNode(t))
	s.SetRules(parse(t, `
domain: meter
descriptors:
  - {key: plain, limits: [1000/1h]}
  - {key: slots, limits: [{algorithm: concurrency, count: 2}], reservation: {ttl: 3s}}
  - {key: most, limits: [1000/1h], reservation: {max_units: 20}}
  - {key: estimate, limits: [1000/1h], reservation: {estimate: 7}}
`))
	for key, units := range map[string]int64{"plain": 0, "slots": 0, "most": 20, "estimate": 7} {
		b := batch(t, all(domain("meter"), entry(key, "x")))
		x, err := s.Reserve(t.Context(), b, ReserveRequest{})
		e := b.Results[0].Err
		if err != nil || x.Units != units || (e != nil) != (units == 0) || e != nil && (e.Field != "units" || !strings.Contains(e.Message, neither)) {
			t.Errorf("%s: %+v, %v, %v; want %d units", key, x, err, e, units)
		}
	}
	for _, file := range []string{
		"docs/use/reservations.md", "docs/use/rules.md", "docs/openapi.yaml", "rules/schema.json", "proto/sluice/v1/sluice.proto", "client/reservation.go",
	} {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil || !strings.Contains(strings.Join(strings.FieldsFunc(string(text), func(c rune) bool { return strings.ContainsRune(" \n\t/`", c) }), " "), neither) {
			t.Errorf("%s does not say that units are required under a rule with %s: %v", file, neither, err)
		}
	}
}
