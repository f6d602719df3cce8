package limit

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/lease"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

// Limiter decides checks: a *sluice.Client, a *local.Limiter or a *sluicetest.Limiter. Methods may be added to it, so a
// wrapper of one should embed it.
type Limiter interface {
	// Check decides one check.
	Check(ctx context.Context, c Check) (Decision, error)
	// CheckAll decides 1 to 10,000 checks as one: all are allowed, or nothing is spent.
	CheckAll(ctx context.Context, checks ...Check) (Batch, error)
	// CheckEach decides 1 to 10,000 checks, each by itself. The error joins those of the checks, whose decisions are zero.
	CheckEach(ctx context.Context, checks ...Check) ([]Decision, error)
}

// Slots is a Limiter of limits with algorithm: concurrency: a *sluice.Client.
type Slots interface {
	Limiter
	// InFlight takes a slot of c.Amount units, and waits for it most at most, or until ctx ends. If the Decision is allowed, held is ctx
	// until the slot ends, and release ends it; otherwise held has ended, and release does nothing.
	InFlight(ctx context.Context, c Check, most time.Duration) (d Decision, held context.Context, release func(), err error)
}

// Key is a counter of a Limiter, or several where its rule has several limits. It is a value that may be copied and used
// by many goroutines.
type Key struct {
	limiter Limiter
	check   Check
	err     error
}

// NewKey returns the Key of a domain and a descriptor, given as keys and values in turns:
// NewKey(l, "auth", "auth_type", "login", "user", id). Its methods return an *Error if a value is missing.
func NewKey(l Limiter, domain string, descriptor ...string) Key {
	k := Key{limiter: l, check: Check{Domain: domain, Descriptor: make([]Entry, 0, (len(descriptor)+1)/2)}}
	if len(descriptor)%2 != 0 {
		k.err = Invalid("descriptor", "a key without a value: "+descriptor[len(descriptor)-1])
		return k
	}
	for i := 0; i < len(descriptor); i += 2 {
		k.check.Descriptor = append(k.check.Descriptor, Entry{descriptor[i], descriptor[i+1]})
	}
	return k
}

// WithCell is for package sluice: k spends units of the cell's leases, and only what these do not have is asked of the Limiter.
func (k Key) WithCell(c *lease.Cell) Key {
	k.check.cell = c
	return k
}

// WithLimits returns k with limits of its own, at most 16: no rule is matched, and its counters are others.
func (k Key) WithLimits(limits ...Limit) Key {
	k.check.Limits, k.check.cell = limits, nil
	return k
}

// OnFailure returns k with a FailurePolicy of its own.
func (k Key) OnFailure(p FailurePolicy) Key {
	k.check.OnFailure = p
	if k.err == nil {
		k.err = p.Validate()
	}
	return k
}

// Once returns k for one charge or refund with that name, which is made once however often it is sent: see
// Check.IdempotencyKey.
func (k Key) Once(idempotencyKey string) Key {
	k.check.IdempotencyKey, k.check.cell = idempotencyKey, nil
	return k
}

// Spend returns the check of amount units, for CheckAll and CheckEach.
func (k Key) Spend(amount int64) Check {
	k.check.Amount = amount
	return k.check
}

// Allow spends 1 unit if every limit admits it, and reports whether it did.
func (k Key) Allow(ctx context.Context) (bool, error) {
	if k.err == nil && k.check.cell.Take(1) {
		return true, nil
	}
	d, err := k.do(ctx, VerbCheck, 1)
	return d.Allowed, err
}

// Check spends amount units if every limit admits them. A retry after a lost answer may spend them twice, and never admits
// them twice.
func (k Key) Check(ctx context.Context, amount int64) (Decision, error) {
	return k.do(ctx, VerbCheck, amount)
}

// Read answers as Check would, and spends nothing.
func (k Key) Read(ctx context.Context, amount int64) (Decision, error) {
	return k.do(ctx, VerbRead, amount)
}

// Charge spends amount units whatever the limits say, after the fact, and may leave a debt. Without a name from Once it is
// not repeated once it may have been done: then the error is ErrUnavailable.
func (k Key) Charge(ctx context.Context, amount int64) (Decision, error) {
	return k.do(ctx, VerbCharge, amount)
}

// Refund gives amount units back, up to the full limit. Errors are as with Charge.
func (k Key) Refund(ctx context.Context, amount int64) (Decision, error) {
	return k.do(ctx, VerbRefund, amount)
}

// Reset deletes the counters. It may be repeated.
func (k Key) Reset(ctx context.Context) error {
	_, err := k.do(ctx, VerbReset, 0)
	return err
}

func (k Key) do(ctx context.Context, verb Verb, amount int64) (Decision, error) {
	if k.err != nil {
		return Decision{}, k.err
	}
	if k.limiter == nil {
		return Decision{}, ErrClosed
	}
	k.check.Verb, k.check.Amount = verb, amount
	return k.limiter.Check(ctx, k.check)
}

// Wait waits until 1 unit is admitted, as WaitN.
func (k Key) Wait(ctx context.Context) error { return k.WaitN(ctx, 1) }

// WaitN waits until amount units are admitted, and then for the Delay of a leaky queue. It fails at once if they are
// admitted only after the context's deadline (ErrWouldExceedDeadline) or never (ErrNever). If ctx ends before a node answers, the
// error is that of ctx, whatever the failure policy allows. On an error no place in a queue is kept, and nothing stays spent that
// is known to have been: a check whose answer was lost may have been charged, and its refund may be lost too.
func (k Key) WaitN(ctx context.Context, amount int64) error {
	if k.err != nil {
		return k.err
	}
	if k.limiter == nil {
		return ErrClosed
	}
	d, err := Admit(ctx, k.limiter, math.MaxInt64, k.Spend(amount))
	switch {
	case err != nil:
		return err
	case d.Degraded != nil && ctx.Err() != nil:
		return ctx.Err()
	case d.Allowed:
		return nil
	case d.Verdict == VerdictNever:
		return ErrNever
	}
	return ErrWouldExceedDeadline
}

const (
	// firstPause is the least time between two attempts, doubling up to lastPause: a denial may not say when to come back.
	firstPause, lastPause = time.Millisecond, time.Second
	// maxSpread is the longest random delay, so that waiters for one limit do not all retry at once.
	maxSpread = 100 * time.Millisecond
	// refundTime bounds a refund, which is made even if its request has ended.
	refundTime = time.Second
)

// Admit retries checks, as one, until they are admitted, and then waits for the Delay of a leaky queue. When that would take
// longer than most, or last beyond ctx's deadline, it denies at once; a place in a queue is given back then, and when ctx
// ends. The decision is the strictest one. The error is the Limiter's, or that of ctx.
func Admit(ctx context.Context, l Limiter, most time.Duration, checks ...Check) (Decision, error) {
	d, err := once(ctx, l, checks)
	if err != nil || d.Allowed && d.Delay <= 0 || d.Verdict == VerdictNever || most <= 0 && !d.Allowed {
		return d, err
	}
	began := time.Now()
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, deadline.Sub(began))
	}
	for least := firstPause; ; least = min(2*least, lastPause) {
		left := max(0, most-time.Since(began))
		switch {
		case d.Allowed && d.Delay > left:
			refund(ctx, l, &d, checks)
			d.Allowed, d.Verdict, d.RetryAfter, d.Delay = false, VerdictDenied, d.Delay-left, 0
			return d, nil
		case d.Allowed:
			if d.Delay > 0 && !pause.For(ctx, d.Delay) {
				refund(ctx, l, &d, checks)
				return Decision{}, ctx.Err()
			}
			return d, nil
		case d.Verdict == VerdictNever:
			return d, nil
		}
		wait := max(d.RetryAfter, least)
		if wait > left {
			return d, nil
		}
		wait += rand.N(min(wait/10, maxSpread, left-wait) + 1) // #nosec G404 -- a pause
		if !pause.For(ctx, wait) {
			return d, ctx.Err()
		}
		if d, err = once(ctx, l, checks); err != nil {
			return d, err
		}
	}
}

// once makes one attempt.
func once(ctx context.Context, l Limiter, checks []Check) (Decision, error) {
	if len(checks) == 1 {
		return l.Check(ctx, checks[0])
	}
	b, err := l.CheckAll(ctx, slices.Clone(checks)...) // so that one check alone need not be on the heap
	return b.Strictest(), err
}

// refund gives the amounts back of checks that d has admitted, but not if a failure policy did: it may be that no node has charged
// them. If the refund fails, the queue keeps an unused place until it drains.
func refund(ctx context.Context, l Limiter, d *Decision, checks []Check) {
	if d.Degraded != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refundTime)
	defer cancel()
	for _, c := range checks {
		c.Verb = VerbRefund
		_, _ = l.Check(ctx, c)
	}
}
