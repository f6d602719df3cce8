package limiter

import (
	"slices"
	"testing"
	"time"
)

func TestStats(t *testing.T) {
	var now time.Duration
	s := newScript(t, testRules, func(c *Config) {
		c.Clock = func() time.Duration { now += 2 * time.Millisecond; return now }
	})
	s.do("user=x | user=y | user=x *3 | watched=x | watched=x | nobody=x | =")
	if err := s.Check(t.Context(), batch(t)); err == nil {
		t.Fatal("an empty call is accepted")
	}
	st := s.Stats()
	if st.Calls != 2 || st.Results != (Results{ResultAllowed: 4, ResultDenied: 1, ResultShadowed: 1, ResultError: 1}) || st.Errors[Invalid] != 2 || st.Errors[Overloaded] != 0 {
		t.Errorf("%+v", st)
	}
	one := func(list []RuleStats, name string) RuleStats {
		i := slices.IndexFunc(list, func(r RuleStats) bool { return r.Name == name })
		if i < 0 {
			t.Fatalf("no rule %s in %+v", name, list)
		}
		return list[i]
	}
	if r := one(st.Rules, "shop/user"); r != (RuleStats{"shop", "shop/user", Results{ResultAllowed: 2, ResultDenied: 1}}) {
		t.Errorf("%+v", r)
	}
	if r := one(st.Rules, "watch"); r.Results[ResultAllowed] != 1 || r.Results[ResultShadowed] != 1 {
		t.Errorf("%+v", r)
	}
	if n := len(s.Rules().Rules()); st.InForce != n || len(st.Rules) != 2 {
		t.Errorf("%d rules, %d of them counted, want the %d in force and 2 that were matched", st.InForce, len(st.Rules), n)
	}
	if st.Latency.Count() != 1 || st.Latency.Sum != 2*time.Millisecond {
		t.Errorf("latency %+v", st.Latency)
	}

	// A reload that keeps the name keeps the counts; what has gone is forgotten.
	s.SetRules(parse(t, "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]"))
	s.do("user=z")
	if got := s.Stats().Unmatched["shop"]; got != 1 {
		t.Errorf("after a reload %d are unmatched", got)
	}
	if got := s.Stats().Rules; len(got) != 1 || got[0].Results[ResultAllowed] != 3 || got[0].Results[ResultDenied] != 1 {
		t.Errorf("after a reload: %+v", got)
	}
}
