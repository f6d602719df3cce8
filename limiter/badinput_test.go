package limiter

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// Every check that is not well formed is answered with an error that names the
// field, charges nothing, and does not keep its neighbours from being decided.
func TestBadChecks(t *testing.T) {
	long := strings.Repeat("x", MaxText+1)
	fits := strings.Repeat("x", MaxText)
	limit := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Second}
	with := func(f func(*bucket.Limit)) ask {
		l := limit
		f(&l)
		return all(entry("user", "x"), limits(limit, l))
	}
	many := make([]ask, MaxEntries+1)
	for i := range many {
		many[i] = entry("k", "v")
	}
	for _, c := range []struct {
		name, field string
		ask         ask
	}{
		{"empty domain", "domain", all(domain(""), entry("user", "x"))},
		{"long domain", "domain", all(domain(long), entry("user", "x"))},
		{"no descriptor", "descriptor", all()},
		{"too many entries", "descriptor", all(many...)},
		{"empty key", "descriptor[1].key", all(entry("user", "x"), entry("", "x"))},
		{"long key", "descriptor[0].key", entry(long, "x")},
		{"negative cost", "cost", all(entry("user", "x"), cost(-1))},
		{"unknown verb", "verb", all(entry("user", "x"), verb(bucket.Reset+1))},
		{"fault found by the API", "limits[7].unit", all(entry("user", "x"), func(c *Check) {
			c.Err = &Error{Code: Invalid, Field: "limits[7].unit", Message: "unknown"}
		})},
		{"negative limit", "limits[1].count", with(func(l *bucket.Limit) { l.Count = -1 })},
		{"zero period", "limits[1].period", with(func(l *bucket.Limit) { l.Period = 0 })},
		{"unknown zone", "limits[1].timezone", with(func(l *bucket.Limit) {
			l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Day, "Mars/Olympus"
		})},
		{"too many limits", "limits", all(entry("user", "x"), limits(make([]bucket.Limit, bucket.MaxLimits+1)...))},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := newNode(t)
			rs := mustCheck(t, newService(t, node), batch(t, entry("user", "before"), c.ask, entry("user", "after")))
			if got, want := answers(rs), "allowed 2/3 | invalid "+c.field+" | allowed 2/3"; got != want {
				t.Fatalf("%s, want %s", got, want)
			}
			if e := rs[1].Err; e.Message == "" || e.Path(1) != "checks[1]."+c.field || rs[1].Allowed || rs[1].Limit != 0 {
				t.Errorf("%+v", rs[1])
			}
			if n := node.Asked.Load(); n != 2 {
				t.Errorf("%d checks were decided, want 2", n)
			}
		})
	}
	s := newService(t, newNode(t))
	for _, r := range mustCheck(t, s, batch(t, all(domain(fits), entry(fits, fits)), entry("user", ""))) {
		if r.Err != nil {
			t.Errorf("text of just the length allowed, or none: %v", r.Err)
		}
	}
}

func TestBadCalls(t *testing.T) {
	s := newScript(t, testRules)
	call := func(n int) (*Batch, error) {
		b := batch(t)
		for range n {
			s.add(b, "nobody=x")
		}
		return b, s.Check(t.Context(), b)
	}
	for _, n := range []int{0, MaxChecks + 1} {
		if _, err := call(n); told(err, "") != "invalid checks" {
			t.Errorf("%d checks: %v", n, err)
		}
	}
	if b, err := call(MaxChecks); err != nil || len(b.Results) != MaxChecks || !b.Results[MaxChecks-1].Allowed {
		t.Errorf("10,000 checks are not answered: %v", err)
	}
}
