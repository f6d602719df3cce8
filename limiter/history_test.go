package limiter

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
)

// TestHistory: each slot has what was counted in it, also over a reload, a gap and a clock that is set.
func TestHistory(t *testing.T) {
	s := newService(t, newNode(t))
	at := time.Unix(1_700_000_000, 0)
	calls := []uint64{10, 0}
	s.history.setSize(3)
	turn := func(slots int) {
		at = at.Add(time.Duration(slots) * facts.SlotTime)
		s.history.advance(at, s.rules.Load(), &s.results, calls)
	}
	told := func() (facts.Node, facts.Rule) {
		n := s.FactsHere(t.Context(), facts.Slots)
		for _, r := range n.ByRule {
			if r.Name == "shop/user" {
				return n, r
			}
		}
		t.Fatalf("no rule shop/user in %+v", n.ByRule)
		return n, facts.Rule{}
	}
	mustCheck(t, s, batch(t, entry("user", "before")))
	turn(0) // begins: what was counted before is in no slot
	for range 5 {
		mustCheck(t, s, batch(t, entry("user", "a")))
	}
	calls = []uint64{14, 1}
	turn(1)
	s.history.setSize(2)
	s.SetRules(parse(t, "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]"))
	mustCheck(t, s, batch(t, entry("user", "b")))
	turn(1)
	n, r := told()
	last := len(r.History) - 1
	if n.Slot != at.UnixNano()/int64(facts.SlotTime)-1 || r.History[last] != (facts.Counts{Allowed: 1}) || r.History[last-1] != (facts.Counts{Allowed: 3, Denied: 2}) || r.History[last-2] != (facts.Counts{}) {
		t.Errorf("slot %d: %+v", n.Slot, r.History[last-2:])
	}
	if !slices.Equal(n.Members[last-2:], []int{0, 3, 2}) || !slices.Equal(n.Calls[last-1], []uint64{4, 1}) || !slices.Equal(n.Calls[last], []uint64{0, 0}) {
		t.Errorf("members %v, calls %v", n.Members[last-2:], n.Calls[last-1:])
	}
	if n.History[last] != (facts.Counts{Allowed: 1}) || n.All != (facts.Counts{Allowed: 5, Denied: 2}) || r.Counts != n.All {
		t.Errorf("all: %+v, %+v; the rule %+v", n.History[last], n.All, r.Counts)
	}
	mustCheck(t, s, batch(t, entry("user", "c")))
	turn(3) // the process did not run for three slots
	if n, r = told(); r.History[last].Sum()+r.History[last-1].Sum()+r.History[last-2].Sum() != 0 || r.History[last-4].Denied != 2 || !slices.Equal(n.Members[last-4:], []int{3, 2, 0, 0, 0}) {
		t.Errorf("after a gap: %+v of %v", r.History[last-4:], n.Members[last-4:])
	}
	if n := s.FactsHere(t.Context(), 2); len(n.History) != 2 || len(n.Members) != 2 || len(n.ByRule[0].History) != 2 || n.Slot != at.UnixNano()/int64(facts.SlotTime)-1 {
		t.Errorf("two slots: %+v", n)
	}
	turn(2 * facts.Slots)
	if _, r = told(); r.History[0] != (facts.Counts{}) || r.History[last] != (facts.Counts{}) {
		t.Errorf("long after: %+v", r.History)
	}
	turn(-10)
	mustCheck(t, s, batch(t, entry("user", "d")))
	turn(1)
	if _, r = told(); r.History[last] != (facts.Counts{Allowed: 1}) {
		t.Errorf("after the clock was set back: %+v", r.History[last-2:])
	}
	if n := testing.AllocsPerRun(100, func() { turn(1) }); n != 0 {
		t.Errorf("%v allocations a slot", n)
	}
	if n := s.FactsHere(t.Context(), 0); n.Slot != 0 || n.ByRule[0].History != nil {
		t.Errorf("history that was not asked for: %+v", n)
	}
}

func TestRulesHash(t *testing.T) {
	const one, two = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]", "# the same\n\ndomain: d\ndescriptors:\n  - key: a\n    rate_limit: {count: 1, period: 24h}"
	if a, b := RulesHash(parse(t, one)), RulesHash(parse(t, two)); a != b || len(a) != 16 {
		t.Errorf("the same rules: %q and %q", a, b)
	}
	if a, b := RulesHash(unmatchedRules(t, "warn")), RulesHash(unmatchedRules(t, "deny")); a == b || a != RulesHash(parse(t, testRules)) {
		t.Errorf("unmatched: %s and %s", a, b)
	}
	for _, reservation := range []string{"max_units: 5", "max_open: 5", "ttl: 5s", "max_ttl: 5m", "on_expiry: release", "estimate: 1"} {
		changed := parse(t, "domain: d\ndescriptors: [{key: a, limits: [1/1d], reservation: {"+reservation+"}}]")
		if a, b := RulesHash(parse(t, one)), RulesHash(changed); a == b {
			t.Errorf("reservation with %s: %s", reservation, a)
		}
	}
	if a, b := RulesHash(parse(t, one)), RulesHash(parse(t, testRules)); a == b || RulesHash(nil) != "" {
		t.Errorf("other rules: %q and %q", a, b)
	}
}
