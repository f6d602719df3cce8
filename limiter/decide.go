package limiter

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// The first byte of the text that is hashed into a counter key separates the key spaces.
const (
	spaceRule   = 'r'
	spaceInline = 'i'
	spacePool   = 'p'
	spaceOnce   = 'o'
	spaceCaller = 'h'
	spaceSeal   = 's'
)

// match validates the name of check i and finds the rule and the limits that apply; nil limits are none.
func (l *Limiter) match(set *rules.Set, b *Batch, i int) {
	c, r := &b.Checks[i], &b.Results[i]
	if r.Err = c.Err; r.Err == nil {
		r.Err = nameError(c)
	}
	if r.Err == nil {
		r.Rule, r.Limits, r.Err = l.limitsOf(set, b, i)
		if r.Err == nil && r.Rule == nil && r.Limits == nil {
			r.unmatched = set.Unmatched(c.Domain)
		}
	}
	if r.Rule != nil && len(b.replaced) > 0 && slices.Contains(b.replaced, r.Rule.Name) {
		r.Rule, r.Limits = nil, nil
	}
	if r.Limits != nil && r.Limits.Unlimited() {
		r.Limits = nil
	}
}

// prepare queues the checks of b that the Decider has to decide, and decides the rest. It reports whether an all-or-nothing
// batch has failed by that: a check is invalid, or denied without a rule.
func (l *Limiter) prepare(set *rules.Set, b *Batch) (failed bool) {
	b.findReplaced(set)
	for i := range b.Checks {
		r := &b.Results[i]
		if b.reserving == nil {
			r.Err = costError(&b.Checks[i], b.AllOrNothing)
		}
		if r.Err == nil {
			l.queue(set, b, i)
		}
		failed = failed || r.Err != nil || r.DeniedUnmatched() && conditional(b.Checks[i].Verb)
	}
	b.queued.AllOrNothing = b.AllOrNothing && !failed && b.reserving == nil
	if b.AllOrNothing && failed { // the batch has failed, and its results still show the counters
		for j := range b.queued.Requests {
			b.queued.Requests[j].Verb = bucket.Read
		}
	}
	return failed
}

// queue queues check i for the Decider, or decides it where no limit applies.
func (l *Limiter) queue(set *rules.Set, b *Batch, i int) {
	l.match(set, b, i)
	c, r := &b.Checks[i], &b.Results[i]
	if r.Err != nil {
		return
	}
	if r.Limits == nil {
		r.setUnmatched()
		return
	}
	limits := r.Limits
	if b.Account != "" && limits.Domain() != b.Account {
		if own, err := l.inlineLimits(b.Account, limits.Home(), limits.List(), nil); err == nil {
			limits = own
		}
	}
	q := check.Request{Request: bucket.Request{Limits: limits, Cost: c.Cost, Verb: c.Verb, Drain: c.Drain, NoDelay: c.NoDelay}}
	var replication rules.Replication
	if rule := r.Rule; rule != nil {
		replication = rule.Replication
		q.OnFailure, q.OnPartition, q.UnknownShare = rule.OnFailure, rule.OnPartition, rule.UnknownShare
		q.Shadow, q.NoDenialCache, q.DenyLost = rule.Shadow, rule.NoDenialCache, rule.OnLostState == rules.LostDeny
		q.Eventual = rule.Consistency == rules.Eventual && r.Limits.Windowed()
	} else { // the other defaults are zeros
		replication = rules.DefaultReplication(r.Limits)
	}
	q.Sync, q.Unreplicated = replication == rules.ReplicateSync, replication == rules.ReplicateNone
	q.Key = l.counterKey(b, c, r.Rule)
	if b.IdempotencyKey != "" && b.reserving == nil {
		q.Once, q.Eventual = l.once(b, i), false
	}
	b.enqueue(i, q)
}

// once returns what names check i of b among those of its counter: a hash of the caller, the idempotency key, and the check's place,
// verb, domain and descriptor.
func (l *Limiter) once(b *Batch, i int) uint64 {
	c := &b.Checks[i]
	b.key = binary.AppendUvarint(append(b.key[:0], spaceOnce, byte(c.Verb)), uint64(i))
	for _, text := range [...]string{b.Caller, b.IdempotencyKey} {
		b.key = append(binary.AppendUvarint(b.key, uint64(len(text))), text...)
	}
	b.key = (*rules.Rule)(nil).AppendKey(b.key, c.Domain, c.Descriptor)
	return max(1, l.config.Hasher.Key(b.key).Hi)
}

// counterKey returns the key of c's counter: of rule, or where that is nil of limits of its own.
func (l *Limiter) counterKey(b *Batch, c *Check, rule *rules.Rule) bucket.Key {
	space := byte(spaceInline)
	if rule != nil {
		space = spaceRule
	}
	b.key = rule.AppendKey(append(b.key[:0], space), c.Domain, c.Descriptor)
	return l.config.Hasher.Key(b.key)
}

// findReplaced notes the rules of a request that the rule of another of its descriptors replaces.
func (b *Batch) findReplaced(set *rules.Set) {
	if set == nil || !b.OneRequest || len(b.Checks) < 2 {
		return
	}
	for i := range b.Checks {
		c := &b.Checks[i]
		if len(c.Limits) > 0 {
			continue
		}
		if rule, _ := set.Match(c.Domain, c.Descriptor); rule != nil {
			b.replaced = append(b.replaced, rule.Replaces...)
		}
	}
}

// limitsOf returns the limits of check i of b, else the rule that it matches and its limits. Limits are nil where none apply.
func (l *Limiter) limitsOf(set *rules.Set, b *Batch, i int) (*rules.Rule, *bucket.Limits, *Error) {
	c := &b.Checks[i]
	if len(c.Limits) > 0 {
		if i > 0 && b.Checks[i-1].Domain == c.Domain { // most checks of a call bring the same limits
			last := &b.Results[i-1]
			if last.Rule == nil && last.Limits != nil && last.Limits.Is(last.Limits.Domain(), "", c.Limits) {
				return nil, last.Limits, nil
			}
		}
		limits, err := l.inlineLimits(l.accountOf(c.Domain), "", c.Limits, l.config.SetsFull)
		if err != nil {
			return nil, nil, LimitsError(err)
		}
		return nil, limits, nil
	}
	var rule *rules.Rule
	known := false
	if set != nil {
		rule, known = set.Match(c.Domain, c.Descriptor)
	}
	switch {
	case !known && l.config.RejectUnknownDomains:
		return nil, nil, &Error{Code: UnknownDomain, Field: "domain", Message: "no rules for domain " + c.Domain}
	case rule == nil || rule.Unlimited:
		return rule, nil, nil
	}
	return rule, rule.Limits, nil
}

// accountOf returns the account of a domain's counters. Names of accounts that are no domains begin with a parenthesis.
func (l *Limiter) accountOf(domain string) string {
	if strings.HasPrefix(domain, "(") {
		return ""
	}
	if l.config.Account == nil {
		return domain
	}
	return l.config.Account(domain)
}

// setUnmatched decides a check to which no limit applies: it is allowed unless its domain denies checks without a rule.
func (r *Result) setUnmatched() {
	r.Source = check.Unmatched
	r.Limits = nil
	if r.DeniedUnmatched() {
		r.RetryAfter = bucket.Never
		return
	}
	r.Allowed = true
	r.Limit, r.Remaining = math.MaxInt64, math.MaxInt64
}

// take makes a, the answer to q, the result.
func (r *Result) take(q *check.Request, a *check.Answer) {
	if a.Err != nil {
		r.Err = errorOf(a.Err)
		return
	}
	if int(a.Index) >= r.Limits.Len() { // a node with an error
		r.Err = &Error{Code: Unavailable, Message: "node " + a.Owner + " named an unknown limit"}
		return
	}
	r.Decision, r.Source, r.Owner, r.age = a.Decision, a.Source, a.Owner, a.Age
	r.Remaining = r.Left(&q.Request)
	r.givenBack = a.GivenBack
	if a.Lost {
		r.Source = check.Lost
	}
	if a.Source == check.Eventual {
		r.Staleness = a.Age
	}
	r.Period = r.Limits.At(int(a.Index)).UsualPeriod()
}

// finish applies shadow mode, and denies all checks of an all-or-nothing batch that has failed, in prepare or by a result. It reports
// whether one has.
func (b *Batch) finish(failed bool) bool {
	failed = b.AllOrNothing && (failed || b.denied())
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil {
			r.Allowed = false // a reservation that the rule rejects has a decision too
			continue
		}
		// The Decider does not deny shadows for a failed batch, so this is the rule's own denial.
		if r.shadow() && !r.Allowed {
			r.Allowed, r.Shadowed = true, true
			r.RetryAfter = 0
		}
		if failed && conditional(b.Checks[i].Verb) {
			r.givenBack = r.givenBack || r.Allowed
			r.Allowed, r.Soft, r.Elastic, r.Delay = false, false, false, 0
		}
		if !r.Allowed && !b.AllOrNothing && !r.uncacheable {
			r.DeniedFor = deniedFor(&b.Checks[i], r)
		}
	}
	return failed
}

// deniedFor returns how long denial r of c may be cached.
func deniedFor(c *Check, r *Result) time.Duration {
	if r.Source != check.Owned && r.Source != check.Forwarded || r.Rule != nil && r.Rule.NoDenialCache {
		return 0
	}
	asked := bucket.Request{Verb: c.Verb, Drain: c.Drain, NoDelay: c.NoDelay, Limits: r.Limits}
	return max(0, min(check.DeniedFor(&asked, &r.Decision), check.MaxDenied-r.age))
}

// denied reports whether a result fails an all-or-nothing batch: an error of a check of verb Check, or a denial by a rule
// that is not in shadow mode.
func (b *Batch) denied() bool {
	for i := range b.Results {
		r := &b.Results[i]
		if conditional(b.Checks[i].Verb) && (r.Err != nil || !r.Allowed && !r.shadow()) {
			return true
		}
	}
	return false
}

// conditional reports whether a check of verb v spends or reserves only what the limits admit.
func conditional(v bucket.Verb) bool { return v == bucket.Check || v == bucket.Reserve }

// shadow reports whether the rule is in shadow mode.
func (r *Result) shadow() bool { return r.Rule != nil && r.Rule.Shadow }

// overload returns the error of a call all of whose checks were overloaded.
func (b *Batch) overload() error {
	for i := range b.Results {
		if e := b.Results[i].Err; e == nil || e.Code != Overloaded {
			return nil
		}
	}
	return b.Results[0].Err
}
