// Package sluicetest has a rate limiter for tests: it decides by rules in the test's process, denies and fails when told to, and
// remembers what it was asked.
//
// It works under testing/synctest. A Limiter that is made in a bubble counts by the bubble's time, so a test sleeps through a
// window at once:
//
//	synctest.Test(t, func(t *testing.T) {
//		limiter := sluicetest.New(t, rules)
//		shop := newShop(limiter) // it takes a limit.Limiter
//		…
//		time.Sleep(time.Minute)
//		…
//	})
package sluicetest

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/limiter/local"
)

// Limiter is a local.Limiter that a test controls. It is safe for concurrent use.
type Limiter struct {
	*local.Limiter
	mu struct {
		sync.Mutex
		calls  []limit.Check
		denied []*limit.Check // domains and descriptors
		err    error
	}
}

var _ limit.Limiter = (*Limiter)(nil)

// New returns a Limiter by a rule file. If it is wrong, the test fails.
func New(t testing.TB, yaml string) *Limiter {
	l, err := local.New(local.Text(yaml))
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
	return &Limiter{Limiter: l}
}

// Key returns the counter of a domain and a descriptor, given as keys and values in turns.
func (l *Limiter) Key(domain string, descriptor ...string) limit.Key {
	return limit.NewKey(l, domain, descriptor...)
}

// Deny denies all checks and reads of exactly this domain and descriptor, or without a descriptor of the domain, from now on until
// undo is called. Such a denial is that of the rule, if one matches, with its response. It may be retried after the limit's period,
// or after a second if there is none.
func (l *Limiter) Deny(domain string, descriptor ...string) (undo func()) {
	c := limit.NewKey(l, domain, descriptor...).Spend(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.denied = append(l.mu.denied, &c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.denied = slices.DeleteFunc(l.mu.denied, func(d *limit.Check) bool { return d == &c })
	}
}

// Fail makes all calls return err from now on, for example limit.ErrUnavailable, and spend nothing. Fail(nil) ends it.
func (l *Limiter) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.err = err
}

// Calls returns all checks so far in order, with those that were denied or have failed. Those of a batch stand one by one.
func (l *Limiter) Calls() []limit.Check {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.calls)
}

// record remembers checks. It returns the error of Fail, or which of them Deny denies; nil if it denies none.
func (l *Limiter) record(checks []limit.Check) (denied []bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range checks {
		c.Descriptor, c.Limits = slices.Clone(c.Descriptor), slices.Clone(c.Limits) // the caller may reuse them
		l.mu.calls = append(l.mu.calls, c)
		if c.Verb <= limit.VerbRead && slices.ContainsFunc(l.mu.denied, func(d *limit.Check) bool {
			return d.Domain == c.Domain && (len(d.Descriptor) == 0 || slices.Equal(d.Descriptor, c.Descriptor))
		}) {
			if denied == nil {
				denied = make([]bool, len(checks))
			}
			denied[i] = true
		}
	}
	return denied, l.mu.err
}

// Check decides one check.
func (l *Limiter) Check(ctx context.Context, c limit.Check) (limit.Decision, error) {
	denied, err := l.record([]limit.Check{c})
	if err != nil {
		return limit.Decision{}, err
	}
	if denied != nil {
		b, err := l.deny(ctx, denied, c)
		return b.Strictest(), err
	}
	return l.Limiter.Check(ctx, c)
}

// CheckEach decides checks, each by itself.
func (l *Limiter) CheckEach(ctx context.Context, checks ...limit.Check) ([]limit.Decision, error) {
	decisions, errs := make([]limit.Decision, len(checks)), make([]error, len(checks))
	for i, c := range checks {
		decisions[i], errs[i] = l.Check(ctx, c)
	}
	return decisions, errors.Join(errs...)
}

// CheckAll decides checks as one.
func (l *Limiter) CheckAll(ctx context.Context, checks ...limit.Check) (limit.Batch, error) {
	denied, err := l.record(checks)
	if err != nil {
		return limit.Batch{}, err
	}
	if denied != nil {
		return l.deny(ctx, denied, checks...)
	}
	return l.Limiter.CheckAll(ctx, checks...)
}

// deny answers a batch of which some are denied: it reads, and spends nothing.
func (l *Limiter) deny(ctx context.Context, denied []bool, checks ...limit.Check) (limit.Batch, error) {
	reads := slices.Clone(checks)
	for i := range reads {
		if reads[i].Verb == limit.VerbCheck {
			reads[i].Verb = limit.VerbRead
		}
		if denied[i] {
			reads[i].Amount = math.MaxInt64 // so that the rule denies, with its response
		}
	}
	b, err := l.Limiter.CheckAll(ctx, reads...)
	for i := range b.Decisions {
		switch d := &b.Decisions[i]; {
		case denied[i]:
			d.Allowed, d.Verdict, d.Remaining, d.RetryAfter = false, limit.VerdictDenied, 0, cmp.Or(d.Period, time.Second)
		case d.Allowed && checks[i].Verb == limit.VerbCheck:
			d.Allowed, d.Verdict = false, limit.VerdictDeniedByOthers
		}
	}
	return limit.NewBatch(b.Decisions), err
}
