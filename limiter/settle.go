package limiter

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// take makes a the result.
func (r *Result) take(a *check.Answer) {
	if a.Err != nil {
		r.Err = errorOf(a.Err)
		return
	}
	if int(a.Index) >= r.Limits.Len() { // no honest node says so
		r.Err = &Error{Code: Unavailable, Message: "node " + a.Holder + " named a limit that there is not"}
		return
	}
	r.Decision, r.Source, r.Holder, r.age = a.Decision, a.Source, a.Holder, a.Age
	r.givenBack = a.GivenBack
	if a.Lost {
		r.Source = check.Lost
	}
	if a.Source == check.Eventual {
		r.Staleness = a.Age
	}
	r.Period = PeriodOf(r.Limits.At(int(a.Index)))
}

// onlyRead makes the questions of an all-or-nothing batch that has failed
// already spend nothing: their answers still say how things stand.
func (b *Batch) onlyRead() {
	for j := range b.asked.Requests {
		b.asked.Requests[j].Verb = bucket.Read
	}
}

// settle applies what the Decider does not know of: shadow mode, and that of an
// all-or-nothing batch which failed, by fault of a check (invalid) or by an
// answer, nothing is allowed.
func (b *Batch) settle(invalid bool) {
	failed := b.AllOrNothing && (invalid || b.denied())
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil {
			continue
		}
		// The Decider leaves shadows out of what it makes of a failed batch, so this
		// is a denial of the rule's own.
		if r.shadow() && !r.Allowed {
			r.Allowed, r.Shadowed = true, true
			r.RetryAfter = 0
		}
		if failed && b.Checks[i].Verb == bucket.Check {
			r.Allowed, r.Soft, r.Elastic, r.Delay = false, false, false, 0
		}
		if !r.Allowed && !b.AllOrNothing && !r.fleeting {
			r.DeniedFor = deniedFor(&b.Checks[i], r)
		}
	}
}

// deniedFor returns how long the denial r of c stands whatever others do.
func deniedFor(c *Check, r *Result) time.Duration {
	if r.Source != check.Held && r.Source != check.Forwarded || r.Rule != nil && r.Rule.Refunds {
		return 0
	}
	asked := bucket.Request{Verb: c.Verb, Drain: c.Drain, NoDelay: c.NoDelay, Limits: r.Limits}
	return max(0, min(check.DeniedFor(&asked, &r.Decision), check.MaxDenied-r.age))
}

// denied reports whether an answer fails an all-or-nothing batch: a check of
// verb Check that has none, or that a rule not in shadow mode denied.
func (b *Batch) denied() bool {
	for i := range b.Results {
		r := &b.Results[i]
		if b.Checks[i].Verb == bucket.Check && (r.Err != nil || !r.Allowed && !r.shadow()) {
			return true
		}
	}
	return false
}

// shadow reports whether the rule only watches.
func (r *Result) shadow() bool { return r.Rule != nil && r.Rule.Shadow }

// overload returns the error of a call whose every check met a full queue, or a node without time.
func (b *Batch) overload() error {
	for i := range b.Results {
		if e := b.Results[i].Err; e == nil || e.Code != Overloaded {
			return nil
		}
	}
	return b.Results[0].Err
}

const day = 24 * time.Hour

// PeriodOf returns the time that l's count is for: of a calendar unit its usual
// length, 30 days for a month and 365 for a year.
func PeriodOf(l bucket.Limit) time.Duration {
	if l.Align != bucket.AlignCalendar {
		return l.Period
	}
	switch l.Unit {
	case bucket.Minute:
		return time.Minute
	case bucket.Hour:
		return time.Hour
	case bucket.Day:
		return day
	case bucket.Week:
		return 7 * day
	case bucket.Month:
		return 30 * day
	case bucket.Year:
		return 365 * day
	}
	return l.Period
}
