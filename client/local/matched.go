package local

import (
	"hash/maphash"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/rules"
)

// matched is a check, the limits that apply to it, and what they decide. It has no Limits where nothing limits the check.
type matched struct {
	bucket.Request
	bucket.Decision
	rule      *rules.Rule
	unmatched rules.Unmatched // 0 if a rule matches, or the check has limits of its own
	// pooled: Request is to the rule's pool, as its own limits have denied. elastic: the pool has admitted.
	pooled, elastic bool
	priority        int
	shadowed        bool // the rule would have denied
	givenBack       bool // it would have been admitted, and another check of the batch is denied
}

// The first byte of what is hashed into a counter key separates the key spaces.
const (
	spaceRule   = 'r'
	spaceInline = 'i'
	spacePool   = 'p'
)

// match finds the limits and the counter of c.
func (l *Limiter) match(set *rules.Set, c *limit.Check, m *matched) error {
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
	m.Verb, m.Cost = bucket.Verb(c.Verb), c.Amount
	space := byte(spaceInline)
	if len(c.Limits) > 0 {
		limits, err := l.inline.of(c.Domain, c.Limits)
		if err != nil {
			return err
		}
		m.Limits = limits
	} else {
		space = spaceRule
		rule, known := set.Match(c.Domain, descriptor)
		switch {
		case !known && l.knownDomains:
			return &limit.Error{Code: limit.CodeUnknownDomain, Field: "domain", Message: "no rules for domain " + c.Domain}
		case rule == nil:
			m.unmatched = set.Unmatched(c.Domain)
		default:
			m.rule, m.Limits = rule, rule.Limits
			if rule.Elastic != nil {
				m.priority = rule.Elastic.Priority(descriptor)
			}
		}
	}
	if m.Limits == nil || m.Limits.Unlimited() {
		m.Limits = nil
		m.Allowed = m.unmatched != rules.UnmatchedDeny
		if !m.Allowed {
			m.RetryAfter = bucket.Never
		}
		return nil
	}
	var short [256]byte
	name := m.rule.AppendKey(append(short[:0], space), c.Domain, descriptor)
	m.Key = l.key(name)
	if c.IdempotencyKey != "" && l.named.repeats(l.key(append(append(name, byte(c.Verb)), c.IdempotencyKey...))) {
		m.Cost = 0 // it only tells what is left
	}
	return nil
}

// key returns the counter key of a name.
func (l *Limiter) key(name []byte) bucket.Key {
	return bucket.Key{Hi: maphash.Bytes(l.seeds[0], name), Lo: maphash.Bytes(l.seeds[1], name)}
}

// decide decides m by its limits, and then by the rule's pool.
func (l *Limiter) decide(now int64, m *matched) {
	if m.Limits != nil {
		m.Decision = l.table.Do(now, &m.Request)
		l.askPool(now, m)
	}
}

// askPool has the rule's pool decide m if the rule's limits have denied it.
func (l *Limiter) askPool(now int64, m *matched) {
	if m.Allowed || !m.hasPool() {
		return
	}
	r := l.poolRequest(m)
	d := l.table.Do(now, &r)
	m.grant(&d)
}

func (m *matched) hasPool() bool { return m.rule != nil && m.rule.Elastic != nil }

func (m *matched) shadow() bool { return m.rule != nil && m.rule.Shadow }

// poolRequest returns the request of m to its rule's pool.
func (l *Limiter) poolRequest(m *matched) bucket.Request {
	p := m.rule.Elastic.Pool
	step := rules.StepOf(p.Unreported)
	r := bucket.Request{
		Key: l.key(p.AppendKey([]byte{spacePool})), Limits: p.Limits(step), Cost: m.Cost, Verb: m.Verb, Reserve: p.Reserve(m.priority, step),
	}
	if m.shadow() {
		r.Verb = bucket.Read
	}
	return r
}

// grant takes d, the decision of the rule's pool. All else stays that of the rule's limits.
func (m *matched) grant(d *bucket.Decision) {
	if !d.Allowed {
		m.RetryAfter = min(m.RetryAfter, d.RetryAfter)
		return
	}
	m.Allowed, m.elastic = true, true
	m.Soft, m.RetryAfter, m.Delay = false, 0, 0
}

// finish applies shadow mode, and denies the checks of a batch that has failed.
func (m *matched) finish(failed bool) {
	if !m.Allowed && m.shadow() {
		m.Allowed, m.shadowed, m.RetryAfter = true, true, 0
	}
	if failed && m.Verb == bucket.Check {
		m.givenBack = m.givenBack || m.Allowed
		m.Allowed, m.Soft, m.elastic, m.Delay = false, false, false, 0
	}
}

// decision returns the answer, when m is finished.
func (m *matched) decision() (d limit.Decision) {
	d.Allowed, d.Verdict, d.Source = m.Allowed, m.verdict(), limit.SourceLocal
	d.ResetAfter, d.Delay = m.ResetAfter, m.Delay
	if !m.Allowed && m.RetryAfter != bucket.Never {
		d.RetryAfter = m.RetryAfter
	}
	limits := m.Limits
	if m.rule != nil {
		d.Rule, limits = m.rule.Name, m.rule.Limits // Limits may be the pool's
		if !m.Allowed {
			d.Response = responseOf(m.rule.Response)
		}
	}
	if m.Limits == nil {
		d.Source = limit.SourceUnmatched
		return d
	}
	if m.rule != nil {
		d.LimitName = m.rule.LimitName(int(m.Index))
	}
	of := limits.At(int(m.Index))
	d.Counted, d.Limit, d.Remaining, d.LimitIndex = true, m.Limit, m.Remaining, limits.Place(int(m.Index))
	d.Count, d.Burst, d.Period = of.Count, of.Burst, of.UsualPeriod()
	return d
}

func (m *matched) verdict() limit.Verdict {
	switch {
	case m.shadowed && m.Allowed:
		return limit.VerdictShadow
	case m.elastic:
		return limit.VerdictElastic
	case m.Allowed && m.Soft:
		return limit.VerdictSoft
	case m.Allowed:
		return limit.VerdictAllowed
	case m.givenBack:
		return limit.VerdictDeniedByOthers
	case m.RetryAfter == bucket.Never:
		return limit.VerdictNever
	}
	return limit.VerdictDenied
}

func responseOf(r *rules.Response) *limit.Response {
	if r == nil {
		return nil
	}
	out := &limit.Response{Status: r.Status, Body: r.Body}
	for _, h := range r.Headers {
		out.Header = append(out.Header, limit.Header(h))
	}
	return out
}
