package limiter

import (
	"math"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// The first byte of what is hashed into a counter key keeps the key spaces apart.
const (
	spaceRule   = 'r'
	spaceInline = 'i'
)

// match validates what check i asks about and finds what it is held to: nil limits are none.
func (s *Limiter) match(set *rules.Set, b *Batch, i int) {
	c, r := &b.Checks[i], &b.Results[i]
	if r.Err = c.Fault; r.Err == nil {
		r.Err = nameFault(c)
	}
	if r.Err == nil {
		r.Rule, r.Limits, r.Err = s.limitsOf(set, b, i)
		r.unmatched = r.Err == nil && r.Rule == nil && r.Limits == nil
	}
	if r.Rule != nil && len(b.replaced) > 0 && slices.Contains(b.replaced, r.Rule.Name) {
		r.Rule, r.Limits = nil, nil
	}
	if r.Limits != nil && r.Limits.Unlimited() {
		r.Limits = nil
	}
}

// prepare queues check i, or answers it when there is nothing to decide.
func (s *Limiter) prepare(set *rules.Set, b *Batch, i int) {
	s.match(set, b, i)
	c, r := &b.Checks[i], &b.Results[i]
	if r.Err != nil {
		return
	}
	if r.Limits == nil {
		r.unruled()
		return
	}
	limits := r.Limits
	if b.Account != "" && limits.Domain() != b.Account {
		if own, err := s.inline.make(b.Account, limits.List()); err == nil {
			limits = own
		}
	}
	q := check.Request{Request: bucket.Request{Limits: limits, Cost: c.Cost, Verb: c.Verb, Drain: c.Drain, NoDelay: c.NoDelay}}
	var replication rules.Replication
	if r.Rule != nil {
		replication = r.Rule.Replication
		q.OnFailure, q.OnPartition, q.Shadow = r.Rule.OnFailure, r.Rule.OnPartition, r.Rule.Shadow
		q.UnknownShare = r.Rule.UnknownShare
		q.DenyLost = r.Rule.OnLostState == rules.LostDeny
		q.Fresh = r.Rule.Refunds
		q.Eventual = r.Rule.Consistency == rules.Eventual && r.Limits.Windowed()
	} else {
		// on_failure and on_partition are share, on_lost_state is fresh, their zeros.
		replication = rules.DefaultReplication(r.Limits)
	}
	q.Sync, q.Transient = replication == rules.ReplicateSync, replication == rules.ReplicateNone
	q.Key = s.counterKey(b, c, r.Rule)
	b.ask(i, q)
}

// counterKey returns the key of c's counter: under rule, or where that is nil under limits of its own.
func (s *Limiter) counterKey(b *Batch, c *Check, rule *rules.Rule) bucket.Key {
	space := byte(spaceInline)
	if rule != nil {
		space = spaceRule
	}
	b.key = rule.AppendKey(append(b.key[:0], space), c.Domain, c.Descriptor)
	return s.config.Hasher.Key(b.key)
}

// findReplaced notes which rules are left out of a request, because a rule that
// another of its descriptors matches replaces them.
func (b *Batch) findReplaced(set *rules.Set) {
	if set == nil {
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

// limitsOf returns what check i of b is held to: its own limits, else those of the rule it
// matches, if any. Limits are nil where there are none.
func (s *Limiter) limitsOf(set *rules.Set, b *Batch, i int) (*rules.Rule, *bucket.Limits, *Error) {
	c := &b.Checks[i]
	if len(c.Limits) > 0 {
		domain := accountOf(c.Domain)
		if i > 0 { // the checks of a call mostly bring the same limits
			if last := &b.Results[i-1]; last.Rule == nil && last.Limits != nil && last.Limits.Is(domain, c.Limits) {
				return nil, last.Limits, nil
			}
		}
		limits, err := s.inline.limits(domain, c.Limits)
		if err != nil {
			return nil, nil, LimitsFault(err)
		}
		return nil, limits, nil
	}
	var rule *rules.Rule
	known := false
	if set != nil {
		rule, known = set.Match(c.Domain, c.Descriptor)
	}
	switch {
	case !known && s.config.RefuseUnknownDomains:
		return nil, nil, &Error{Code: UnknownDomain, Field: "domain", Message: "no rules for domain " + c.Domain}
	case rule == nil || rule.Unlimited:
		return rule, nil, nil
	}
	return rule, rule.Limits, nil
}

// accountOf returns the account of a domain's counters. Names of accounts that are no domains begin with a parenthesis.
func accountOf(domain string) string {
	if strings.HasPrefix(domain, "(") {
		return ""
	}
	return domain
}

// unruled answers a check that nothing limits.
func (r *Result) unruled() {
	r.Allowed = true
	r.Limit, r.Remaining = math.MaxInt64, math.MaxInt64
	r.Source = check.Unruled
	r.Limits = nil
}
