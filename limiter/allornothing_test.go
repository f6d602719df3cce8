package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
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

// TestRemainingAfterTheUndo: the results of a denied batch say what is left once its charges are undone, as a read does.
func TestRemainingAfterTheUndo(t *testing.T) {
	x, spent := entry("user", "x"), all(entry("user", "spent"), cost(3))
	for _, c := range []struct {
		name string
		asks []ask
		want []int64
	}{
		{"one denied", []ask{x, spent}, []int64{3, 0}},
		{"the denied one first", []ask{spent, all(x, cost(2))}, []int64{0, 3}},
		{"one key twice", []ask{all(x, cost(2)), x, spent}, []int64{3, 3, 0}},
		{"denied by its own twin", []ask{all(x, cost(2)), all(x, cost(2))}, []int64{3, 3}},
		{"an observed one", []ask{entry("watched", "w"), spent}, []int64{1, 0}},
		{"inline limits", []ask{all(x, limits(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 7, Period: time.Hour, Cost: 2})), spent}, []int64{7, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newService(t, newNode(t))
			mustCheck(t, s, batch(t, spent))
			b := batch(t, c.asks...)
			b.AllOrNothing = true
			for i, r := range mustCheck(t, s, b) {
				if r.Allowed || r.Remaining != c.want[i] || c.want[i] == r.Limit && r.ResetAfter != 0 {
					t.Errorf("check %d: allowed %v, %d left, reset after %v; want %d left", i, r.Allowed, r.Remaining, r.ResetAfter, c.want[i])
				}
			}
		})
	}
	b := newBudgets(t)
	if _, results, err := b.reserve(ReserveRequest{Units: 90}, "", "user=ann"); err != nil || results[0].Remaining != 10 {
		t.Fatalf("%+v, %v", results, err)
	}
	if _, results, err := b.reserve(ReserveRequest{Units: 20}, "", "team=red", "user=ann"); err != nil || results[0].Remaining != 1000 || results[1].Remaining != 10 {
		t.Errorf("a denied reservation: %d and %d left, %v; want 1000 and 10", results[0].Remaining, results[1].Remaining, err)
	}
}

// TestReadAfterTheUndo: a read in a denied batch says which limit is nearest now, though another was when it was read.
func TestReadAfterTheUndo(t *testing.T) {
	s := newService(t, newNode(t))
	s.SetRules(parse(t, `
domain: shop
descriptors:
  - key: user
    limits:
      - {count: 3, period: 1s}
      - {count: 3, period: 1s, min_interval: 2s, count_denied: true}
`))
	x := entry("user", "x")
	b := batch(t, all(x, cost(0)), all(x, verb(bucket.Read)), all(x, cost(30)))
	b.AllOrNothing = true
	if r := mustCheck(t, s, b)[1]; !r.Allowed || r.Index != 1 || r.Remaining != 0 || r.ResetAfter != 2*time.Second {
		t.Errorf("%+v; want the second limit, whose interval the denied check has begun", r)
	}
}

// TestRemainingOfAShare: without an owner the share says what is left of it after the undo, and nothing is asked again.
func TestRemainingOfAShare(t *testing.T) {
	asked := 0
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		asked++
		b.Answers[0] = check.Answer{Source: check.Share, GivenBack: true, Decision: bucket.Decision{Limit: 3, Remaining: 0, RetryAfter: 1}}
		b.Answers[1] = check.Answer{Source: check.Share, Decision: bucket.Decision{Limit: 3, RetryAfter: 1}}
	}))
	b := batch(t, all(entry("user", "x"), cost(2)), entry("user", "spent"))
	b.AllOrNothing = true
	if r := mustCheck(t, s, b); r[0].Remaining != 2 || r[1].Remaining != 0 || asked != 1 {
		t.Errorf("%d and %d left, want 2 and 0; asked %d times", r[0].Remaining, r[1].Remaining, asked)
	}
}
