package client

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// FailurePolicy answers checks and reads that no node has answered in time.
type FailurePolicy struct {
	kind  Source
	share float64
}

var (
	// FailOpen admits.
	FailOpen = FailurePolicy{kind: SourceFailOpen}
	// FailClosed denies.
	FailClosed = FailurePolicy{kind: SourceFailClosed}
)

// FailLocal admits a share of what a counter's limit admits, above 0 and at most 1, by a token bucket in this
// client: with n clients that ask alike, 1/n admits about what the limit does. The limit is the one that
// nodes have named last; a counter of which nothing is known is admitted.
func FailLocal(share float64) FailurePolicy { return FailurePolicy{SourceFailLocal, share} }

func (p FailurePolicy) local() bool { return p.kind == SourceFailLocal }

func (p FailurePolicy) fault() error {
	switch {
	case p.kind != SourceFailOpen && p.kind != SourceFailClosed && p.kind != SourceFailLocal:
		return fmt.Errorf("WithFailurePolicy: want FailOpen, FailClosed or FailLocal")
	case p.local() && !(p.share > 0 && p.share <= 1):
		return fmt.Errorf("WithFailurePolicy: FailLocal: share %v; want above 0 and at most 1", p.share)
	}
	return nil
}

// closedRetry is the RetryAfter of a denial that nobody decided: about when somebody may again.
const closedRetry = time.Second

// standIn answers a check of cost that no node has answered.
func (c *Client) standIn(key counterKey, cost int64, read bool) Decision {
	d := Decision{Source: c.opts.policy.kind}
	switch d.Source {
	case SourceFailOpen:
		d.Allowed = true
	case SourceFailClosed:
		d.RetryAfter = closedRetry
	default:
		c.standInLocally(key, cost, read, &d)
	}
	return d
}

func (c *Client) standInLocally(key counterKey, cost int64, read bool, d *Decision) {
	h, ok := c.holders.Peek(key)
	if !ok || h.period <= 0 {
		d.Allowed = true
		return
	}
	if h.limit <= 0 {
		d.RetryAfter, d.Period = Never, h.period
		return
	}
	units := max(1, math.Floor(float64(h.limit)*c.opts.policy.share))
	per := rate.Limit(float64(h.limit) * c.opts.policy.share / h.period.Seconds())
	burst := int(min(units, 1<<30))
	l, ok := c.locals.Get(key)
	if !ok {
		l = rate.NewLimiter(per, burst)
		if old, found, _ := c.locals.PeekOrAdd(key, l); found {
			l = old
		}
	} else if l.Limit() != per || l.Burst() != burst {
		l.SetLimit(per)
		l.SetBurst(burst)
	}
	d.Limit, d.Period = int64(burst), h.period
	now := time.Now()
	if cost > int64(burst) {
		d.RetryAfter = Never
	} else if r := l.ReserveN(now, int(cost)); r.DelayFrom(now) > 0 || read {
		d.RetryAfter = r.DelayFrom(now)
		d.Allowed = d.RetryAfter == 0
		r.CancelAt(now)
	} else {
		d.Allowed = true
	}
	d.Remaining = max(0, int64(l.TokensAt(now)))
}
