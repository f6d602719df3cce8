// Package gate decides the requests of all middleware packages: whose Config has the fields of a Gate.
package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/internal/leaf/loglimit"
)

// Gate decides requests of type R. Domain, Keys, Amount, Skip, MaxWait and Failed are those of the Config.
type Gate[R any, K ~func(R) ([]limit.Entry, bool)] struct {
	// Package is that of the Config, for errors and log lines.
	Package string
	Domain  string
	Keys    []K
	Amount  func(R) int64
	Skip    func(R) bool
	MaxWait time.Duration
	Failed  func(context.Context, error) bool
	// Settles: Settle is called for requests that were admitted.
	Settles bool

	limiter limit.Limiter
	logged  *loglimit.Limiter
}

// Validate returns an error that names the invalid field of the Config, or nil.
func (g *Gate[R, K]) Validate() error {
	switch {
	case g.Domain == "":
		return errors.New(g.Package + ": Domain is required")
	case len(g.Keys) == 0:
		return errors.New(g.Package + ": Keys is empty; want at least one")
	case g.MaxWait < 0:
		return errors.New(g.Package + ": MaxWait is negative")
	}
	for i, k := range g.Keys {
		if k == nil {
			return fmt.Errorf("%s: Keys[%d] is nil", g.Package, i)
		}
	}
	return nil
}

// Open lets g ask l. It panics without one.
func (g *Gate[R, K]) Open(l limit.Limiter) {
	if l == nil {
		panic(g.Package + ": the Limiter is nil")
	}
	g.limiter, g.logged = l, loglimit.New(time.Minute)
}

// singles are slices of one check, which most requests have.
var singles = sync.Pool{New: func() any { return new([1]limit.Check) }}

// Checks returns the checks of r, none if it is to pass without. They are for one call of Admit.
func (g *Gate[R, K]) Checks(r R) []limit.Check {
	if g.Skip != nil && g.Skip(r) {
		return nil
	}
	amount := int64(1)
	if g.Amount != nil {
		if amount = g.Amount(r); amount <= 0 {
			return nil
		}
	}
	var checks []limit.Check
	if len(g.Keys) == 1 {
		checks = singles.Get().(*[1]limit.Check)[:0]
	} else {
		checks = make([]limit.Check, 0, len(g.Keys))
	}
	for _, k := range g.Keys {
		if entries, ok := k(r); ok && len(entries) > 0 {
			checks = append(checks, limit.Check{Domain: g.Domain, Descriptor: entries, Amount: amount})
		}
	}
	return checks
}

// Admit decides checks, as one. It returns what Settle is to be called with, and an error only if ctx has ended.
func (g *Gate[R, K]) Admit(ctx context.Context, checks []limit.Check) (_ limit.Decision, spent []limit.Check, _ error) {
	if len(checks) == 0 {
		return limit.Decision{Allowed: true}, nil, nil
	}
	l, kept := g.limiter, (*recorder)(nil)
	if g.Settles {
		kept = &recorder{Limiter: l}
		l = kept
	}
	d, err := limit.Admit(ctx, l, g.MaxWait, checks...)
	if err == nil && d.Allowed && kept != nil {
		spent = kept.spent(checks)
	}
	if cap(checks) == 1 {
		singles.Put((*[1]limit.Check)(checks)) // a Limiter gets the check, not the slice
	}
	switch {
	case err == nil:
		return d, spent, nil
	case ctx.Err() != nil:
		return d, nil, ctx.Err()
	}
	return g.Fail(ctx, err), nil, nil
}

// Fail returns the decision about a request that the Limiter has not decided.
func (g *Gate[R, K]) Fail(ctx context.Context, err error) limit.Decision {
	switch {
	case g.Failed == nil:
		g.log(ctx, "the check failed, so the limit is not applied", err)
	case !g.Failed(ctx, err):
		return limit.Decision{Verdict: limit.VerdictDenied, Source: limit.SourceFailClosed, Degraded: err, RetryAfter: time.Second}
	}
	return limit.Decision{Allowed: true, Verdict: limit.VerdictAllowed, Source: limit.SourceFailOpen, Degraded: err}
}

// log logs an error once a minute.
func (g *Gate[R, K]) log(ctx context.Context, what string, err error) {
	if g.logged.Allow(time.Now(), err.Error()) {
		slog.WarnContext(ctx, g.Package+": "+what, "domain", g.Domain, "err", err)
	}
}

// settleTime bounds Settle, which outlives its request.
const settleTime = time.Second

// Settle makes the amount that was spent the one that the outcome of the request costs. It sends no idempotency keys, each of which
// nodes would remember for minutes: a refund that is lost leaves the amount spent.
func (g *Gate[R, K]) Settle(ctx context.Context, spent []limit.Check, cost int64) {
	if len(spent) == 0 || max(cost, 0) == spent[0].Amount {
		return
	}
	for i := range spent {
		c := &spent[i]
		c.Verb, c.Amount = limit.VerbCharge, max(cost, 0)-c.Amount
		if c.Amount < 0 {
			c.Verb, c.Amount = limit.VerbRefund, -c.Amount
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if _, err := g.limiter.CheckEach(ctx, spent...); err != nil {
		g.log(ctx, "an outcome was not counted", err)
	}
}

// recorder is a Limiter that keeps the last decisions.
type recorder struct {
	limit.Limiter
	last []limit.Decision
}

func (r *recorder) Check(ctx context.Context, c limit.Check) (limit.Decision, error) {
	d, err := r.Limiter.Check(ctx, c)
	r.last = []limit.Decision{d}
	return d, err
}

func (r *recorder) CheckAll(ctx context.Context, checks ...limit.Check) (limit.Batch, error) {
	b, err := r.Limiter.CheckAll(ctx, checks...)
	r.last = b.Decisions
	return b, err
}

// spent returns those of checks that have spent their amount at a counter: not what a failure policy, a rule in shadow mode or a
// pool has admitted, of which nothing could be given back.
func (r *recorder) spent(checks []limit.Check) []limit.Check {
	spent := make([]limit.Check, 0, len(checks))
	for i, d := range r.last {
		if d.Counted && d.Degraded == nil && (d.Verdict == limit.VerdictAllowed || d.Verdict == limit.VerdictSoft) {
			spent = append(spent, checks[i])
		}
	}
	return spent
}

// Name returns the name of d's limit, as nodes have it.
func Name(d *limit.Decision) string {
	switch {
	case d.LimitName != "":
		return d.LimitName
	case d.LimitIndex > 0:
		return "limit#" + strconv.Itoa(d.LimitIndex+1)
	}
	return "limit"
}
