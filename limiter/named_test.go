package limiter

import (
	"fmt"
	"testing"
)

// TestResultsByVerb: only checks and reservations that are admitted are allowed; reads, charges, refunds and resets have results of
// their own.
func TestResultsByVerb(t *testing.T) {
	s := newScript(t, testRules)
	s.do("user=x *0 | user=x read | user=x *2 | user=x charge | user=x *0 | user=x read *2 | user=x | user=x refund | user=x reset")
	s.do("user=x *-1 | watched=w | watched=w read")
	want := Results{ResultAllowed: 1, ResultDenied: 3, ResultRead: 2, ResultCharged: 1, ResultRefunded: 1, ResultReset: 1}
	st := s.Stats()
	if got := st.Rules[0]; got.Name != "shop/user" || got.Results != want {
		t.Errorf("the rule has %v, want %v", got, want)
	}
	if got := st.Rules[1].Results; got != (Results{ResultAllowed: 1, ResultShadowed: 1}) {
		t.Errorf("the rule in shadow mode has %v", got)
	}
	want[ResultAllowed], want[ResultShadowed], want[ResultError] = 2, 1, 1
	if st.Results != want {
		t.Errorf("in all %v, want %v", st.Results, want)
	}
}

// TestManyRulesCounted: rules have counts from their first match on, a thousand of them of their own, and no count shrinks when rules
// are read again.
func TestManyRulesCounted(t *testing.T) {
	file := func(from, to int) string {
		text := "domain: many\ndescriptors:\n  - {key: other, limits: [{unlimited: true}]}\n"
		for i := from; i < to; i++ {
			text += fmt.Sprintf("  - {key: user, value: u%d, limits: [9/1h]}\n", i)
		}
		return text
	}
	s := newScript(t, file(0, 3000))
	match := func(from, to int) {
		for i := from; i < to; i++ {
			s.do(fmt.Sprint("user=u", i))
		}
	}
	wants := func(what string, names int, others uint64) {
		t.Helper()
		var sum uint64
		st := s.Stats()
		for _, r := range st.Rules {
			if r.Name == OtherNames {
				sum = r.Results[ResultAllowed]
			}
		}
		if len(st.Rules) != names || sum != others {
			t.Errorf("%s: %d names, %d of others; want %d, %d", what, len(st.Rules), sum, names, others)
		}
	}
	wants("nothing matched", 0, 0)
	match(7, 8)
	wants("one matched", 1, 0)
	match(0, 1500)
	wants("many matched", MaxNames+1, 500)
	match(0, 1500)
	wants("the same again", MaxNames+1, 1000)
	if n := s.Stats().InForce; n != 3001 {
		t.Errorf("%d rules in force", n)
	}
	s.SetRules(parse(t, file(990, 3000)))
	wants("most are gone", 11, 1000) // u990 to u999, and the others
	match(990, 1500)
	wants("old others stay, with the rest", 11, 1500)
	match(1500, 1600)
	wants("new ones have names again", 111, 1500)
	s.SetRules(parse(t, testRules))
	wants("the domain is gone", 0, 0)
}
