package limiter

import (
	"errors"
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
			s := newService(t, node)
			rs := mustCheck(t, s, batch(t, entry("user", "before"), c.ask, entry("user", "after")))
			e := rs[1].Err
			if e == nil || e.Code != Invalid || e.Field != c.field || e.Message == "" {
				t.Fatalf("error %#v, want one about %s", e, c.field)
			}
			if got := e.Path(1); got != "checks[1]."+c.field {
				t.Errorf("path %q", got)
			}
			if rs[1].Allowed || rs[1].Limit != 0 {
				t.Errorf("it has a decision too: %+v", rs[1])
			}
			for _, i := range []int{0, 2} {
				if rs[i].Err != nil || !rs[i].Allowed {
					t.Errorf("check %d is not decided: %+v", i, rs[i])
				}
			}
			if n := node.Asked.Load(); n != 2 {
				t.Errorf("%d checks were decided, want 2", n)
			}
		})
	}
	s := newService(t, newNode(t))
	if r := mustCheck(t, s, batch(t, all(domain(fits), entry(fits, fits))))[0]; r.Err != nil {
		t.Errorf("text of just the length allowed: %v", r.Err)
	}
	if r := mustCheck(t, s, batch(t, entry("user", "")))[0]; r.Err != nil {
		t.Errorf("an empty value: %v", r.Err)
	}
}

func TestBadCalls(t *testing.T) {
	node := newNode(t)
	s := newService(t, node)
	for _, n := range []int{0, MaxChecks + 1} {
		b := batch(t)
		for range n {
			c := b.Add()
			c.Domain = "shop"
			entry("user", "x")(c)
		}
		if e, ok := errors.AsType[*Error](s.Check(t.Context(), b)); !ok || e.Code != Invalid || e.Field != "checks" {
			t.Errorf("%d checks: error %#v", n, e)
		}
	}
	if n := node.Asked.Load(); n != 0 {
		t.Errorf("%d checks were decided", n)
	}
	b := batch(t)
	for range MaxChecks {
		c := b.Add()
		c.Domain = "shop"
		entry("nobody", "x")(c)
	}
	if rs := mustCheck(t, s, b); len(rs) != MaxChecks || !rs[MaxChecks-1].Allowed {
		t.Error("10,000 checks are not answered")
	}
}
