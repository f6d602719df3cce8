package limiter

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/rules"
)

// TestReservationOfAnotherCluster: an ID of a cluster with another secret is invalid, whatever is asked of it.
func TestReservationOfAnotherCluster(t *testing.T) {
	s := newBudgets(t)
	s.play("reserve x 5 user=ann => 5 for 30s")
	other := newScript(t, reserveRules, func(c *Config) {
		var err error
		if c.Hasher, err = NewHasher([]byte(strings.Repeat("o", MinSecret))); err != nil {
			t.Fatal(err)
		}
	})
	other.made = s.made
	other.play(`
		spend x 1 => invalid reservation
		extend x 1 => invalid reservation
		settle x 1 => invalid reservation
	`)
	if _, err := other.ReservationDomains(s.made["x"].ID); codeOf(err) != Invalid || !strings.Contains(err.Error(), "not with this secret") {
		t.Error(err)
	}
}

// TestReservationOverflow: the largest numbers neither wrap around nor give units back.
func TestReservationOverflow(t *testing.T) {
	newBudgets(t).play(strings.ReplaceAll(`
		reserve x MOST user=ann => invalid units
		reserve x MOST least=1 user=ann => 100 for 30s
		settle x 0 => 0 charged, 100 returned
		reserve x 40 user=ann team=red => 40 for 30s
		spend x MOST => allowed false, 40 left
		extend x MOST => allowed false, 40 for 30s, never
		user=ann read | team=red read => allowed 60/100 | allowed 960/1000
		settle x MOST => MOST charged, 0 returned
		user=ann read | team=red read => denied 0/100, in 1h | denied 0/1000, in 1h
		reserve y 1 user=ann => denied 0/100, in 1h
		settle x MOST => MOST charged, 0 returned, repeated
		user=ann read | team=red read => denied 0/100, in 1h | denied 0/1000, in 1h
	`, "MOST", fmt.Sprint(math.MaxInt64)))
}

// TestMillionReservations: one caller that reserves a million times has max_open reservations of a key, and checks are decided beside them. At
// their deadline all is as before.
func TestMillionReservations(t *testing.T) {
	const open = 100_000 // the default of max_open
	s := newScript(t, `
domain: llm
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2000000}
    reservation: {on_expiry: release}
`)
	made, same := 0, 0
	for i := range open + 1000 { // it denies those that follow too
		b := NewBatch()
		s.add(b, "user=ann")
		x, err := s.Reserve(t.Context(), b, ReserveRequest{Units: 2})
		r := &b.Results[0]
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
		b.Release()
	}
	if made != open || same > 100 {
		t.Errorf("%d were made, want %d; %d had the ID of another one", made, open, same)
	}
	s.play("user=ann read => allowed 1800000/2000000\nafter 1m =>")
	for range open/1024 + 1 { // at most so many end with one decision
		s.do("user=ann read")
	}
	s.play("user=ann read => allowed 2000000/2000000")
}

// TestReservationsOutliveRules: what is reserved under one algorithm is held, spent and settled under another, and where rules let nothing be
// reserved any more or do not match.
func TestReservationsOutliveRules(t *testing.T) {
	limit := func(algorithm string) *rules.Set {
		text := "algorithm: " + algorithm + ", count: 100, period: 1000h"
		if algorithm == "fixed_window" {
			text += ", align: first_hit"
		}
		return parse(t, "domain: llm\ndescriptors:\n  - key: user\n    limits: [{"+text+"}]\n")
	}
	algorithms := []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_log", "sliding_counter", "sliding_window", "leaky_queue", ""}
	for _, from := range algorithms[:6] {
		for _, to := range algorithms {
			s := newBudgets(t)
			has := func(units int64) {
				if got := s.do("user=ann read"); !strings.HasPrefix(got, fmt.Sprintf("allowed %d/100", units)) {
					t.Errorf("%s to %s: %s, want %d", from, to, got, units)
				}
			}
			s.SetRules(limit(from))
			s.play("reserve x 40 user=ann => 40 for 1m")
			if to == "" {
				s.SetRules(parse(t, "domain: llm\ndescriptors:\n  - {key: other, limits: [1/1h]}\n"))
				s.play("settle x 15 => 15 charged, 25 returned")
				s.SetRules(limit(from))
				has(85)
				continue
			}
			s.SetRules(limit(to))
			has(60)
			s.play("spend x 5 => allowed true, 35 left\nextend x 10 1m => allowed true, 45 for 1m")
			has(50)
			if to == "leaky_queue" {
				s.play("reserve y 1 user=ann => invalid descriptor")
			} else {
				s.play("reserve y 1 user=ann => 1 for 1m\nsettle y 0 => 0 charged, 1 returned")
			}
			s.play("settle x 15 => 15 charged, 30 returned")
			has(80)
		}
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
