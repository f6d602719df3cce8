package limiter

import (
	"context"
	"testing"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

func TestAllOrNothing(t *testing.T) {
	const (
		yes = 'y' // allowed
		no  = 'n' // not allowed, by itself or because of others
		err = 'e'
	)
	spent := all(entry("user", "spent"), cost(3))
	for _, c := range []struct {
		name string
		asks []ask
		want string
		// left of user "x", of 3, afterwards.
		left int64
	}{
		{"all admitted", []ask{entry("user", "x"), entry("user", "y")}, "yy", 2},
		{"one denied", []ask{entry("user", "x"), spent}, "nn", 3},
		{"one denied, unmatched too", []ask{spent, entry("nobody", "z"), entry("user", "x")}, "nnn", 3},
		{"one invalid", []ask{entry("user", "x"), all(entry("user", "y"), cost(-1))}, "ne", 3},
		{"invalid, and one denied", []ask{all(entry("user", "y"), cost(-1)), spent, entry("user", "x")}, "enn", 3},
		{"charge", []ask{entry("user", "x"), all(entry("user", "y"), verb(bucket.Charge))}, "ne", 3},
		{"refund", []ask{entry("user", "x"), all(entry("user", "y"), verb(bucket.Refund))}, "ne", 3},
		{"a denied read fails nothing", []ask{entry("user", "x"), all(spent, verb(bucket.Read))}, "yn", 2},
		{"a shadow denial fails nothing", []ask{entry("user", "x"), all(entry("watched", "w"), cost(2))}, "yy", 2},
		{"shadows of a failed batch", []ask{spent, entry("watched", "v"), all(entry("watched", "w"), cost(2))}, "nnn", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, newNode(t))
			mustCheck(t, s, batch(t, spent))
			b := batch(t, c.asks...)
			b.AllOrNothing = true
			got := ""
			for _, r := range mustCheck(t, s, b) {
				switch {
				case r.Err != nil:
					got += string(err)
				case r.Allowed:
					got += string(yes)
				default:
					got += string(no)
				}
			}
			if got != c.want {
				t.Errorf("answers %q, want %q", got, c.want)
			}
			left := mustCheck(t, s, batch(t, all(entry("user", "x"), verb(bucket.Read))))[0].Remaining
			if left != c.left {
				t.Errorf("%d left, want %d", left, c.left)
			}
		})
	}
}

// In a failed batch a shadow's own denial is told from the batch's.
func TestAllOrNothingShadows(t *testing.T) {
	s := newService(t, newNode(t))
	b := batch(t, all(entry("user", "x"), cost(4)), entry("watched", "v"), all(entry("watched", "w"), cost(2)))
	b.AllOrNothing = true
	rs := mustCheck(t, s, b)
	if rs[1].Shadowed || !rs[2].Shadowed {
		t.Errorf("shadowed: %v, %v; want only the second", rs[1].Shadowed, rs[2].Shadowed)
	}
}

// Once a check is known to be invalid, nothing may be charged, not even to be
// given back.
func TestAllOrNothingInvalidOnlyReads(t *testing.T) {
	asked := 0
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		asked++
		if b.AllOrNothing {
			t.Error("asked all or nothing")
		}
		for _, q := range b.Requests {
			if q.Verb != bucket.Read {
				t.Errorf("asked with verb %d", q.Verb)
			}
		}
	}))
	b := batch(t, entry("user", "x"), entry("", "x"))
	b.AllOrNothing = true
	mustCheck(t, s, b)
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}
