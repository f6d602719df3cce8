package local

import (
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/rules"
)

// matched is a check, and what decides it: Limits, or without any the Decision.
type matched struct {
	bucket.Request
	bucket.Decision             // Allowed until it is made
	rule            *rules.Rule // nil if none matches, or the check brings its limits
}

// The first byte of what is hashed into a key separates the key spaces.
const (
	spaceRule   = 'r'
	spaceInline = 'i'
	spaceOnce   = 'o'
)

// match finds the limits and the counter of c.
func (l *Limiter) match(set *rules.Set, c *limit.Check, m *matched) (err error) {
	if set == nil {
		return limit.ErrClosed
	}
	if err := c.Validate(); err != nil {
		return err
	}
	var few [8]rules.Entry
	descriptor := few[:0]
	for _, e := range c.Descriptor {
		descriptor = append(descriptor, rules.Entry(e))
	}
	m.Verb, m.Cost, m.Allowed = bucket.Verb(c.Verb), c.Amount, true
	space, known := byte(spaceRule), true
	if len(c.Limits) > 0 {
		space = spaceInline
		m.Limits, err = newLimits(c.Domain, c.Limits)
	} else if m.rule, known = set.Match(c.Domain, descriptor); m.rule != nil {
		m.Limits = m.rule.Limits
	} else if set.Unmatched(c.Domain) == rules.UnmatchedDeny {
		m.Allowed, m.RetryAfter = false, bucket.Never
	}
	switch {
	case err != nil:
		return err
	case !known && l.knownDomains:
		return &limit.Error{Code: limit.CodeUnknownDomain, Field: "domain", Message: "no rules for domain " + c.Domain}
	case m.Limits == nil || m.Limits.Unlimited():
		m.Limits = nil
		return nil
	}
	var short [256]byte
	m.Key = l.key(m.rule.AppendKey(append(short[:0], space), c.Domain, descriptor))
	if c.IdempotencyKey != "" {
		name := append(append(short[:0], spaceOnce, byte(c.Verb)), c.IdempotencyKey...)
		m.Once = max(1, l.key((*rules.Rule)(nil).AppendKey(append(name, 0), c.Domain, descriptor)).Hi)
	}
	return nil
}

func (l *Limiter) key(name []byte) bucket.Key {
	return bucket.Key{Hi: maphash.Bytes(l.seeds[0], name), Lo: maphash.Bytes(l.seeds[1], name)}
}

func (m *matched) shadow() bool { return m.rule != nil && m.rule.Shadow }

// fails reports whether the decision fails a batch.
func (m *matched) fails() bool { return m.Verb == bucket.Check && !m.Allowed && !m.shadow() }

// decided makes d the decision.
func (m *matched) decided(d bucket.Decision) {
	m.Decision = d
	m.Remaining = d.Left(&m.Request)
}

// reread makes the decision of a batch that failed say what is left now, by a read.
func (m *matched) reread(d bucket.Decision) {
	if m.Allowed || m.shadow() || d.Index == m.Index {
		m.Index, m.Limit, m.Remaining, m.ResetAfter = d.Index, d.Limit, d.Left(&m.Request), d.ResetAfter
	}
}

// finish returns the answer, of a check alone or of a batch that has failed or not. retry is the time until what failed it may
// be admitted.
func (m *matched) finish(failed bool, retry time.Duration) (d limit.Decision) {
	d.Source, d.ResetAfter, d.Delay = limit.SourceUnmatched, m.ResetAfter, m.Delay
	if m.rule != nil {
		d.Rule = m.rule.Name
	}
	if m.Limits != nil {
		i := int(m.Index)
		of := m.Limits.At(i)
		d.Source, d.Counted, d.Limit, d.Remaining, d.LimitIndex = limit.SourceLocal, true, m.Limit, m.Remaining, m.Limits.Place(i)
		d.Count, d.Burst, d.Period = of.Count, of.Burst, of.UsualPeriod()
		if m.rule != nil {
			d.LimitName = m.rule.LimitName(i)
		}
	}
	d.Allowed = m.Allowed || m.shadow()
	switch {
	case failed && m.Verb == bucket.Check && d.Allowed:
		d.Allowed, d.Verdict, d.Delay = false, limit.VerdictDeniedByOthers, 0
		if m.Limits != nil && !m.shadow() && retry != bucket.Never {
			d.RetryAfter = retry
		}
	case !m.Allowed && d.Allowed:
		d.Verdict = limit.VerdictShadow
	case m.Soft:
		d.Verdict = limit.VerdictSoft
	case d.Allowed:
		d.Verdict = limit.VerdictAllowed
	case m.RetryAfter == bucket.Never:
		d.Verdict = limit.VerdictNever
	default:
		d.Verdict, d.RetryAfter = limit.VerdictDenied, m.RetryAfter
	}
	if !d.Allowed && m.rule != nil && m.rule.Response != nil {
		d.Response = &limit.Response{Status: m.rule.Response.Status, Body: m.rule.Response.Body}
		for _, h := range m.rule.Response.Headers {
			d.Response.Header = append(d.Response.Header, limit.Header(h))
		}
	}
	return d
}

// maxInlineEntries bounds the logs and sub-windows of limits that come with a check, as nodes do by default.
const maxInlineEntries = 4096

// newLimits returns the limits that came with a check.
func newLimits(domain string, list []limit.Limit) (*bucket.Limits, error) {
	var out []bucket.Limit
	for _, l := range list {
		if l.Algorithm == 0 && !l.Unlimited {
			l.Algorithm = limit.FixedWindow
		}
		out = append(out, bucket.Limit{
			Algorithm: enum[bucket.Algorithm](l.Algorithm), Count: l.Count, Period: l.Period, Unlimited: l.Unlimited,
			Burst: l.Burst, Cost: l.Weight, Refill: enum[bucket.Refill](l.Refill), Align: enum[bucket.Align](l.Align),
			Unit: enum[bucket.Unit](l.Unit), Zone: l.TimeZone, MinInterval: l.MinInterval, BlockFor: l.BlockFor,
			Soft: l.SoftPercent, CountDenied: l.CountDenied, SubWindows: l.SubWindows, LogEntries: l.LogEntries,
		})
	}
	limits, err := bucket.NewLimitsIn(domain, out...)
	if err == nil {
		err = limits.Within(maxInlineEntries)
	}
	if e, ok := errors.AsType[*bucket.FieldError](err); ok {
		return nil, limit.Invalid(fmt.Sprintf("limits[%d].%s", e.Index, e.Field), e.Reason)
	}
	return limits, err
}

// enum returns v in package bucket, which numbers alike. What bucket cannot express stays invalid.
func enum[B ~uint8, L ~int32](v L) B { return B(uint8(min(uint32(v), 255))) }
