package limiter

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/sluicecluster/sluice/bucket"
)

func TestInternerIsBounded(t *testing.T) {
	s := newService(t, newNode(t), func(c *Config) { c.InlineLimits = 2 })
	n := s.inline
	get := func(count int64) *bucket.Limits {
		t.Helper()
		list := []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: count, Period: time.Second}}
		l, err := s.inlineLimits("d", "", list, s.config.SetsFull)
		if err != nil || l.At(0).Count != count {
			t.Fatal(l, err)
		}
		list[0].Count = -1 // the caller's slice is its own
		return l
	}
	one := get(1)
	if get(1) != one {
		t.Error("equal limits are not one pointer")
	}
	if other, err := s.inlineLimits("other", "", []bucket.Limit{one.At(0)}, s.config.SetsFull); err != nil || other == one || other.Domain() != "other" {
		t.Errorf("limits of two domains are one set: %v, %v", other, err)
	}
	get(2)
	get(3)
	if n.sets.Len() != 2 {
		t.Errorf("%d sets are kept, want 2", n.sets.Len())
	}
	if again := get(1); again == one || !again.Equal(one) {
		t.Error("a set that was forgotten is not made anew")
	}
	runtime.KeepAlive(one)
}

// What nothing refers to is not kept, and what is new is rejected while there are too many.
func TestInternerKeepsNothingAlive(t *testing.T) {
	full := false
	s := newService(t, newNode(t), func(c *Config) { c.SetsFull = func(domain string) bool { return full && domain == "d" } })
	list := []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: 7, Period: time.Second}}
	l, err := s.inlineLimits("d", "", list, s.config.SetsFull)
	if err != nil {
		t.Fatal(err)
	}
	full = true
	if again, err := s.inlineLimits("d", "", list, s.config.SetsFull); err != nil || again != l {
		t.Errorf("a set that is known was rejected: %v", err)
	}
	runtime.KeepAlive(l)
	gone := weak.Make(l)
	l = nil
	runtime.GC()
	if gone.Value() != nil {
		t.Error("a set that nothing refers to is kept")
	}
	_, err = s.inlineLimits("d", "", list, s.config.SetsFull)
	if e, ok := err.(*Error); !ok || e.Code != Overloaded || !strings.Contains(e.Error(), "limits: this node keeps as many different sets") {
		t.Errorf("a new set was not rejected as overloaded: %v", err)
	}
	if _, err := s.inlineLimits("e", "", list, s.config.SetsFull); err != nil {
		t.Error(err)
	}
}

// The checks of a call look for limits only where they differ from those of the check before.
func TestSameLimitsInOneCall(t *testing.T) {
	looked := 0
	s := newService(t, decideFunc(allow), func(c *Config) {
		c.SetsFull = func(string) bool { looked++; return false }
	})
	of := func(name string, count ...int64) ask {
		parts := []ask{domain(name), entry("k", "")}
		for _, n := range count {
			parts = append(parts, limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: n, Period: time.Second}))
		}
		return all(parts...)
	}
	b := batch(t, of("a", 1), of("a", 1), of("a", 1), of("b", 1), of("b", 1), of("b", 2), of("b"), of("b", 3))
	for i, r := range mustCheck(t, s, b) {
		c := &b.Checks[i]
		if len(c.Limits) == 0 && r.Limits != nil || len(c.Limits) > 0 && !r.Limits.Is(c.Domain, "", c.Limits) {
			t.Errorf("check %d is held to %v", i, r.Limits)
		}
	}
	if looked != 4 {
		t.Errorf("looked for limits %d times, want 4", looked)
	}
}

// The hash only finds an entry; which limits it is about is compared.
func TestInternerCollision(t *testing.T) {
	s := newService(t, newNode(t))
	n := s.inline
	list := func(count int64) []bucket.Limit {
		return []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: count, Period: time.Second}}
	}
	one, err := s.inlineLimits("d", "", list(1), s.config.SetsFull)
	if err != nil {
		t.Fatal(err)
	}
	// Put the entry of 1 where that of 2 belongs.
	if _, err := s.inlineLimits("d", "", list(2), s.config.SetsFull); err != nil {
		t.Fatal(err)
	}
	for _, k := range n.sets.Keys() {
		n.sets.Add(k, weak.Make(one))
	}
	if l, err := s.inlineLimits("d", "", list(2), s.config.SetsFull); err != nil || l.At(0).Count != 2 {
		t.Errorf("limits %+v, error %v", l, err)
	}
}

// TestDomainsOfOneAccountShareLimits: the account is the domain of a check's limits, and says
// whether there may be more of them.
func TestDomainsOfOneAccountShareLimits(t *testing.T) {
	var asked []string
	s := newService(t, decideFunc(allow), func(c *Config) {
		c.Account = func(domain string) string { return map[string]string{"own": "own"}[domain] + "shared" }
		c.SetsFull = func(account string) bool { asked = append(asked, account); return false }
	})
	five := all(entry("k", ""), limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 5, Period: time.Second}))
	of := func(name string) ask { return all(five, domain(name)) }
	r := mustCheck(t, s, batch(t, of("a"), of("b"), of("own"), of("a"), of("(odd")))
	if r[0].Limits != r[1].Limits || r[0].Limits != r[3].Limits || r[0].Limits == r[2].Limits {
		t.Errorf("limits %p %p %p %p", r[0].Limits, r[1].Limits, r[2].Limits, r[3].Limits)
	}
	if want := []string{"shared", "ownshared", ""}; !slices.Equal(asked, want) {
		t.Errorf("asked about %q, want %q", asked, want)
	}
}
