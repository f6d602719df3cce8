// Package gate decides the requests of all middleware packages: whose Config has the fields of a Gate.
package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
)

// Gate decides requests of type R.
type Gate[R any, K ~func(R) ([]limit.Entry, bool)] struct {
	name    string // of the package
	domain  string
	keys    []K
	amount  func(R) int64
	skip    func(R) bool
	maxWait time.Duration
	failed  func(context.Context, error) bool
	settles bool
	limiter limit.Limiter
	logged  *loglimit.Limiter
}

// New returns a Gate of the fields of a Config in the package name. If it settles, Settle is called for requests that were admitted.
func New[R any, K ~func(R) ([]limit.Entry, bool)](
	name, domain string, keys []K, amount func(R) int64, skip func(R) bool, maxWait time.Duration, failed func(context.Context, error) bool, settles bool,
) *Gate[R, K] {
	return &Gate[R, K]{name, domain, keys, amount, skip, maxWait, failed, settles, nil, loglimit.New(time.Minute)}
}

// Validate returns an error that names the invalid field of the Config, or nil.
func (g *Gate[R, K]) Validate() error {
	switch {
	case g.domain == "":
		return errors.New(g.name + ": Domain is required")
	case len(g.keys) == 0:
		return errors.New(g.name + ": Keys is empty; want at least one")
	case g.maxWait < 0:
		return errors.New(g.name + ": MaxWait is negative")
	}
	if i := slices.IndexFunc(g.keys, func(k K) bool { return k == nil }); i >= 0 {
		return fmt.Errorf("%s: Keys[%d] is nil", g.name, i)
	}
	return nil
}

// Open lets g ask l, and wait forever if it waits for no time by default. It panics without a Limiter.
func (g *Gate[R, K]) Open(l limit.Limiter, forever bool) *Gate[R, K] {
	if l == nil {
		panic(g.name + ": the Limiter is nil")
	}
	if g.limiter = l; forever && g.maxWait == 0 {
		g.maxWait = math.MaxInt64
	}
	return g
}

// Checks appends the checks of r to checks, none if it is to pass without.
func (g *Gate[R, K]) Checks(checks []limit.Check, r R) []limit.Check {
	if g.skip != nil && g.skip(r) {
		return checks
	}
	amount := int64(1)
	if g.amount != nil {
		if amount = g.amount(r); amount <= 0 {
			return checks
		}
	}
	for _, k := range g.keys {
		if entries, ok := k(r); ok && len(entries) > 0 {
			checks = append(checks, limit.Check{Domain: g.domain, Descriptor: entries, Amount: amount})
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
	if g.settles {
		kept = &recorder{Limiter: l}
		l = kept
	}
	d, err := limit.Admit(ctx, l, g.maxWait, checks...)
	switch {
	case err != nil && ctx.Err() != nil:
		return d, nil, ctx.Err()
	case err != nil:
		d = g.Fail(ctx, err)
	case d.Allowed && kept != nil:
		spent = kept.spent(checks)
	}
	return d, spent, nil
}

// Hold takes slots of all checks, in their order, or none. release must be called when the request, whose context is held, has ended. The
// error is that of Admit.
func (g *Gate[R, K]) Hold(ctx context.Context, checks []limit.Check) (d limit.Decision, held context.Context, release func(), _ error) {
	var ends []func()
	release = func() {
		for _, end := range ends {
			end()
		}
	}
	d.Allowed, held = true, ctx
	for _, c := range checks {
		one, next, end, err := g.limiter.(limit.Slots).InFlight(held, c, g.maxWait)
		if err != nil && ctx.Err() == nil {
			one, next, end, err = g.Fail(ctx, err), held, func() {}, nil
		}
		if d = one; err != nil || !d.Allowed {
			release()
			return d, ctx, func() {}, err
		}
		held, ends = next, append(ends, end)
	}
	return d, held, release, nil
}

// Fail returns the decision about a request that the Limiter has not decided.
func (g *Gate[R, K]) Fail(ctx context.Context, err error) limit.Decision {
	switch {
	case g.failed == nil:
		g.log(ctx, "the check failed, so the limit is not applied", err)
	case !g.failed(ctx, err):
		return limit.Decision{Verdict: limit.VerdictDenied, Source: limit.SourceFailClosed, Degraded: err, RetryAfter: time.Second}
	}
	return limit.Decision{Allowed: true, Verdict: limit.VerdictAllowed, Source: limit.SourceFailOpen, Degraded: err}
}

// log logs an error once a minute.
func (g *Gate[R, K]) log(ctx context.Context, what string, err error) {
	if g.logged.Allow(time.Now(), err.Error()) {
		slog.WarnContext(ctx, g.name+": "+what, "domain", g.domain, "err", err)
	}
}

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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // the request may have ended
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
