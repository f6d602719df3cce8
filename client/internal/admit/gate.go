// Package admit asks whether something may happen now, and waits within a bound until it may.
package admit

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/pause"
)

// Checker decides one check.
type Checker interface {
	Check(ctx context.Context, c client.Check) (client.Decision, error)
}

// AllChecker decides several checks, all or nothing.
type AllChecker interface {
	CheckAll(ctx context.Context, checks []client.Check) ([]client.Decision, error)
}

// Refunder gives back what a check has spent.
type Refunder interface {
	Refund(ctx context.Context, c client.Check) (client.Decision, error)
}

// Gate asks and waits. It is safe for concurrent use if its Checker is.
type Gate struct {
	one  Checker
	all  AllChecker // nil if one is none
	back Refunder   // nil if one is none
	most time.Duration
}

// New returns a Gate that waits at most this long, 0 for not at all. Several checks at a time want a Checker
// that is an AllChecker. One that is a Refunder gets its place in a queue back when nobody waits there.
func New(checker Checker, most time.Duration) *Gate {
	g := &Gate{one: checker, most: most}
	g.all, _ = checker.(AllChecker)
	g.back, _ = checker.(Refunder)
	return g
}

const (
	// firstPause is the least time between two attempts, doubling: a denial may say that it stands for no
	// time at all.
	firstPause = time.Millisecond
	// maxSpread is the most that a waiter comes later than it might, so that those who wait for one limit
	// do not all come at once.
	maxSpread = 100 * time.Millisecond
	// refundTime bounds a refund, which is made whether or not its request has ended.
	refundTime = time.Second
)

// Ask asks until all checks are admitted, and then waits as long as a leaky queue wants it to. What would take longer
// than the Gate's bound or ctx's deadline is denied at once, with the time to come back; a place in a queue is
// then given back, since those behind would wait for nobody. The decision is the one that says most about all.
// The error is the Checker's, or that of ctx.
func (g *Gate) Ask(ctx context.Context, checks ...client.Check) (client.Decision, error) {
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

// once asks once.
func (g *Gate) once(ctx context.Context, checks []client.Check) (client.Decision, error) {
	if len(checks) == 1 {
		return g.one.Check(ctx, checks[0])
	}
	all, err := g.all.CheckAll(ctx, checks)
	if err != nil {
		return client.Decision{}, err
	}
	return foremost(checks, all), nil
}

// refund gives back what was spent. Where that fails, the queue holds a place for nobody until it drains.
func (g *Gate) refund(ctx context.Context, checks []client.Check) {
	if g.back == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refundTime)
	defer cancel()
	for _, c := range checks {
		_, _ = g.back.Refund(ctx, c)
	}
}

// foremost returns the decision that says most of all: of those that are denied, the one that will be for longest, and
// among equals the one whose limit has too little left, since the others were only denied with it; if none
// is, the one with the least remaining, with the longest delay of all.
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

// before reports whether a, of the check ac, says more than b.
func before(a *client.Decision, ac *client.Check, b *client.Decision, bc *client.Check) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if a.Allowed {
		return left(a) < left(b)
	}
	if a.RetryAfter != b.RetryAfter {
		return a.RetryAfter > b.RetryAfter
	}
	aShort, bShort := a.Remaining < max(1, ac.Cost), b.Remaining < max(1, bc.Cost)
	return aShort && !bShort
}

// left is what remains, most where nobody counts.
func left(d *client.Decision) int64 {
	if d.Period <= 0 {
		return math.MaxInt64
	}
	return d.Remaining
}
