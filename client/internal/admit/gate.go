// Package admit checks limits, and waits within a bound until they admit.
package admit

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/leaf/pause"
)

// Checker decides one check.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// AllChecker decides an atomic batch of checks.
type AllChecker interface {
	CheckAll(ctx context.Context, checks []client.Check) ([]client.Decision, error)
}

// Refunder gives back the cost of a check.
type Refunder interface {
	Refund(ctx context.Context, c client.Check) (client.Decision, error)
}

// Gate checks and waits. It is safe for concurrent use if its Checker is.
type Gate struct {
	checker Checker
	most    time.Duration
}

// New returns a Gate that waits for at most the time most; 0 never waits. Several checks at a time need a Checker that is an
// AllChecker. One that is a Refunder is given back the place in a leaky queue of a request that does not wait.
func New(checker Checker, most time.Duration) *Gate { return &Gate{checker, most} }

const (
	// firstPause is the least time between two attempts, doubling: a denial's RetryAfter may be 0.
	firstPause = time.Millisecond
	// maxSpread is the longest random delay, so that waiters for one limit do not all retry at once.
	maxSpread = 100 * time.Millisecond
	// refundTime bounds a refund, which is made even if its request has ended.
	refundTime = time.Second
)

// Check retries until all checks are admitted, and then waits for the Delay of a leaky queue. When that would take longer
// than the Gate's bound or ctx's deadline, it denies at once, with a RetryAfter, and gives a place in a queue back. The
// decision is the most restrictive one of all checks. The error is the Checker's, or that of ctx.
func (g *Gate) Check(ctx context.Context, checks ...client.Check) (client.Decision, error) {
	d, err := g.once(ctx, checks)
	if err != nil || d.Allowed && d.Delay <= 0 || g.most <= 0 && !d.Allowed {
		return d, err
	}
	until := time.Now().Add(g.most)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	for least := firstPause; ; least *= 2 {
		left := max(0, time.Until(until))
		switch {
		case d.Allowed && d.Delay > left:
			g.refund(ctx, checks)
			d.Allowed, d.RetryAfter, d.Delay = false, d.Delay-left, 0
			return d, nil
		case d.Allowed:
			if d.Delay > 0 && !pause.For(ctx, d.Delay) {
				g.refund(ctx, checks)
				return d, ctx.Err()
			}
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
		if d, err = g.once(ctx, checks); err != nil {
			return d, err
		}
	}
}

// once makes one attempt.
func (g *Gate) once(ctx context.Context, checks []client.Check) (client.Decision, error) {
	if len(checks) == 1 {
		return g.checker.Check(ctx, checks[0])
	}
	all, err := g.checker.(AllChecker).CheckAll(ctx, checks)
	if err != nil {
		return client.Decision{}, err
	}
	return foremost(checks, all), nil
}

// refund gives the costs back. If that fails, the queue keeps an unused place until it drains.
func (g *Gate) refund(ctx context.Context, checks []client.Check) {
	refunder, ok := g.checker.(Refunder)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refundTime)
	defer cancel()
	for _, c := range checks {
		_, _ = refunder.Refund(ctx, c)
	}
}

// foremost returns the most restrictive decision: the denial with the longest RetryAfter, and among equals one whose limit
// has too little left, since others may be denied only with the batch; without a denial, the one with the least
// remaining, with the longest delay of all.
func foremost(checks []client.Check, all []client.Decision) client.Decision {
	best := 0
	var delay time.Duration
	for i := range all {
		delay = max(delay, all[i].Delay)
		if i > 0 && before(&all[i], &checks[i], &all[best], &checks[best]) {
			best = i
		}
	}
	d := all[best]
	if d.Allowed {
		d.Delay = delay
	}
	return d
}

// before reports whether a, of the check ac, is more restrictive than b.
func before(a *client.Decision, ac *client.Check, b *client.Decision, bc *client.Check) bool {
	switch {
	case a.Allowed != b.Allowed:
		return !a.Allowed
	case a.Allowed:
		return left(a) < left(b)
	case a.RetryAfter != b.RetryAfter:
		return a.RetryAfter > b.RetryAfter
	}
	return a.Remaining < max(1, ac.Cost) && b.Remaining >= max(1, bc.Cost)
}

// left is Remaining; a decision without a limit has the largest number.
func left(d *client.Decision) int64 {
	if d.Period <= 0 {
		return math.MaxInt64
	}
	return d.Remaining
}
