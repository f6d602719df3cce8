package limiter

import (
	"context"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestAllOrNothing: one denial or error denies all checks, and the results say what is left once their charges are undone, as a read
// does. Reads and rules in shadow mode fail nothing.
func TestAllOrNothing(t *testing.T) {
	for _, c := range []struct{ name, call, want, left string }{
		{"all admitted", "user=x | user=y", "allowed 2/3 | allowed 2/3", "allowed 2/3"},
		{"one denied", "user=x | user=spent", "denied_by_others 3/3, in 1m | denied 0/3, in 1m", "allowed 3/3"},
		{
			"one denied, unmatched too", "user=spent | nobody=z | user=x *2",
			"denied 0/3, in 1m | unmatched denied_by_others | denied_by_others 3/3, in 1m", "allowed 3/3",
		},
		{
			"one key twice", "user=x *2 | user=x | user=spent",
			"denied_by_others 3/3, in 1m | denied_by_others 3/3, in 1m | denied 0/3, in 1m", "allowed 3/3",
		},
		{"denied by its own twin", "user=x *2 | user=x *2", "denied_by_others 3/3, in 1m | denied 3/3, in 1m", "allowed 3/3"},
		{"one invalid", "user=x | user=y *-1", "denied_by_others 3/3 | invalid cost", "allowed 3/3"},
		{"invalid, and one denied", "user=y *-1 | user=spent | user=x", "invalid cost | denied 0/3, in 1m | denied_by_others 3/3", "allowed 3/3"},
		{"charge", "user=x | user=y charge", "denied_by_others 3/3 | invalid verb", "allowed 3/3"},
		{"refund", "user=x | user=y refund", "denied_by_others 3/3 | invalid verb", "allowed 3/3"},
		{"reset", "user=x | user=y reset", "denied_by_others 3/3 | invalid verb", "allowed 3/3"},
		{"drain", "user=x | user=y drain", "denied_by_others 3/3 | invalid drain", "allowed 3/3"},
		{"a denied read fails nothing", "user=x | user=spent *3 read", "allowed 2/3 | denied 0/3, in 1m", "allowed 2/3"},
		{"a shadow denial fails nothing", "user=x | watched=w *2", "allowed 2/3 | allowed_shadow 1/1", "allowed 2/3"},
		{
			"shadows of a failed batch", "user=spent | watched=v | watched=w *2",
			"denied 0/3, in 1m | denied_by_others 1/1 | denied_by_others 1/1", "allowed 3/3",
		},
		{
			"inline limits", "user=x [{algorithm: token_bucket, count: 7, period: 1h, weight: 2}] | user=spent",
			"denied_by_others 7/7, in 1m | denied 0/3, in 1m", "allowed 3/3",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, testRules, "user=spent *3 => allowed 0/3\nwhole: "+c.call+" => "+c.want+"\nuser=x read => "+c.left)
		})
	}
	newScript(t, reserveRules).play(`
		reserve a 90 user=ann => 90 for 30s
		user=ann read => allowed 10/100
		reserve b 20 team=red user=ann => denied_by_others 1000/1000 | denied 10/100, in 1h
	`)
}

// In a failed batch a shadow's own denial is told from the batch's, and what is back has no time to a reset.
func TestAllOrNothingShadows(t *testing.T) {
	s := newService(t, newNode(t))
	b := batch(t, all(entry("user", "x"), cost(4)), entry("watched", "v"), all(entry("watched", "w"), cost(2)))
	b.AllOrNothing = true
	rs := mustCheck(t, s, b)
	if rs[1].Shadowed || !rs[2].Shadowed || rs[0].ResetAfter != 0 {
		t.Errorf("shadowed: %v, %v; want only the second; reset after %v", rs[1].Shadowed, rs[2].Shadowed, rs[0].ResetAfter)
	}
}

// Once a check is known to be invalid, nothing may be charged, not even to be
// given back.
func TestAllOrNothingInvalidOnlyReads(t *testing.T) {
	asked := 0
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		asked++
		if b.AllOrNothing || b.Requests[0].Verb != bucket.Read {
			t.Errorf("all or nothing %v, verb %v", b.AllOrNothing, b.Requests[0].Verb)
		}
	}))
	b := batch(t, entry("user", "x"), entry("", "x"))
	b.AllOrNothing = true
	mustCheck(t, s, b)
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestReadAfterTheUndo: a read in a denied batch says which limit is nearest now, though another was when it was read: here the second
// one, whose interval the denied check has begun.
func TestReadAfterTheUndo(t *testing.T) {
	s := newScript(t, `
domain: shop
descriptors:
  - key: user
    limits:
      - {count: 3, period: 1s}
      - {count: 3, period: 1s, min_interval: 2s, count_denied: true}
`)
	b := NewBatch()
	defer b.Release()
	for _, text := range []string{"user=x *0", "user=x read", "user=x *30"} {
		s.add(b, text)
	}
	b.AllOrNothing = true
	if r := mustCheck(t, s.Limiter, b)[1]; !r.Allowed || r.Index != 1 || r.Remaining != 0 || r.ResetAfter.String() != "2s" {
		t.Errorf("%+v", r)
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
