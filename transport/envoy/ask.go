package envoy

import (
	"fmt"
	"math"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
)

// fault finds what is wrong with req as a whole, or nil.
func fault(req *ratelimitv3.RateLimitRequest) *limiter.Error {
	if e := textFault(req.GetDomain()); e != "" {
		return invalid("domain", e)
	}
	switch n := len(req.GetDescriptors()); {
	case n == 0:
		return invalid("descriptors", "empty; want at least one")
	case n > limiter.MaxChecks:
		return invalid("descriptors", fmt.Sprintf("there are %d; want at most %d", n, limiter.MaxChecks))
	}
	return nil
}

// descriptorFault returns the field of d that is wrong and what is wrong with it, or "".
func descriptorFault(d *commonv3.RateLimitDescriptor) (field, message string) {
	switch n := len(d.GetEntries()); {
	case n == 0:
		return "entries", "empty; want at least one"
	case n > limiter.MaxEntries:
		return "entries", fmt.Sprintf("there are %d; want at most %d", n, limiter.MaxEntries)
	}
	for j, e := range d.GetEntries() {
		if message := textFault(e.GetKey()); message != "" {
			return fmt.Sprintf("entries[%d].key", j), message
		}
	}
	if d.GetLimit() != nil {
		if field, message := limitFault(d.GetLimit()); message != "" {
			return "limit." + field, message
		}
	}
	return "", ""
}

// descriptorPath returns the path of a field of descriptor i, or of the descriptor itself.
func descriptorPath(i int, field string) string {
	if field == "" {
		return fmt.Sprintf("descriptors[%d]", i)
	}
	return fmt.Sprintf("descriptors[%d].%s", i, field)
}

func invalid(field, message string) *limiter.Error {
	return &limiter.Error{Code: limiter.Invalid, Field: field, Message: message}
}

// textFault says what is wrong with a domain or key, or "".
func textFault(s string) string {
	switch {
	case s == "":
		return "empty"
	case len(s) > limiter.MaxText:
		return fmt.Sprintf("%d bytes; want at most %d", len(s), limiter.MaxText)
	}
	return ""
}

// ask fills b with the checks of req: one for each descriptor, in order. The check of a descriptor that is wrong has a Fault.
func (d *API) ask(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) {
	b.OneRequest, b.AllOrNothing = true, d.config.AllOrNothing
	for i := range req.GetDescriptors() {
		c := add(b, req, i)
		if !d.config.AllOrNothing {
			continue
		}
		c.Drain = false
		switch c.Verb {
		case bucket.Read: // a check of nothing: what it finds counts for the whole
			c.Verb = bucket.Check
		case bucket.Refund: // API.refund makes it afterwards
			c.Verb, c.Cost = bucket.Read, 0
		}
	}
}

// add adds the check of descriptor i, charged for itself.
func add(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, i int) *limiter.Check {
	d := req.GetDescriptors()[i]
	c := b.Add()
	c.Domain = req.GetDomain()
	if field, message := descriptorFault(d); message != "" {
		c.Fault = invalid(field, message)
		return c
	}
	for _, e := range d.GetEntries() {
		c.Descriptor = append(c.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	if d.GetLimit() != nil {
		c.Limits = append(c.Limits, limitOf(d.GetLimit()))
	}
	c.Verb, c.Cost = spends(req, i)
	c.NoDelay = true // Envoy does not hold requests back
	// Of several hits some may still have been admitted. Envoy reports hits that have
	// happened already in the same way, so what is left must not stay for the next.
	c.Drain = c.Verb == bucket.Check && c.Cost > 1
	return c
}

// spends returns what descriptor i of req does, and how much of it.
func spends(req *ratelimitv3.RateLimitRequest, i int) (bucket.Verb, int64) {
	d := req.GetDescriptors()[i]
	hits := uint64(1)
	switch {
	case d.GetHitsAddend() != nil:
		hits = d.GetHitsAddend().GetValue()
	case req.GetHitsAddend() != 0:
		hits = uint64(req.GetHitsAddend())
	}
	cost := int64(min(hits, math.MaxInt64))
	switch {
	case cost == 0:
		return bucket.Read, 0
	case d.GetIsNegativeHits():
		return bucket.Refund, cost
	}
	return bucket.Check, cost
}

const day = 24 * time.Hour

// unitPeriod returns the length of a unit, 0 for one that there is not. Overrides and
// answers number their units alike; overrides have no name for the week.
func unitPeriod(u ratelimitv3.RateLimitResponse_RateLimit_Unit) time.Duration {
	switch u {
	case ratelimitv3.RateLimitResponse_RateLimit_SECOND:
		return time.Second
	case ratelimitv3.RateLimitResponse_RateLimit_MINUTE:
		return time.Minute
	case ratelimitv3.RateLimitResponse_RateLimit_HOUR:
		return time.Hour
	case ratelimitv3.RateLimitResponse_RateLimit_DAY:
		return day
	case ratelimitv3.RateLimitResponse_RateLimit_WEEK:
		return 7 * day
	case ratelimitv3.RateLimitResponse_RateLimit_MONTH:
		return 30 * day
	case ratelimitv3.RateLimitResponse_RateLimit_YEAR:
		return 365 * day
	}
	return 0
}

// unitOf returns the unit that is exactly d long, else UNKNOWN.
func unitOf(d time.Duration) ratelimitv3.RateLimitResponse_RateLimit_Unit {
	switch d {
	case time.Second:
		return ratelimitv3.RateLimitResponse_RateLimit_SECOND
	case time.Minute:
		return ratelimitv3.RateLimitResponse_RateLimit_MINUTE
	case time.Hour:
		return ratelimitv3.RateLimitResponse_RateLimit_HOUR
	case day:
		return ratelimitv3.RateLimitResponse_RateLimit_DAY
	case 7 * day:
		return ratelimitv3.RateLimitResponse_RateLimit_WEEK
	case 30 * day:
		return ratelimitv3.RateLimitResponse_RateLimit_MONTH
	case 365 * day:
		return ratelimitv3.RateLimitResponse_RateLimit_YEAR
	}
	return ratelimitv3.RateLimitResponse_RateLimit_UNKNOWN
}

// override is the limit that a descriptor brings.
type override = commonv3.RateLimitDescriptor_RateLimitOverride

func overrideUnit(o *override) time.Duration {
	return unitPeriod(ratelimitv3.RateLimitResponse_RateLimit_Unit(o.GetUnit()))
}

// multiplier returns the number of units that make o's period.
func multiplier(o *override) int64 {
	if o.GetUnitMultiplier() == nil {
		return 1
	}
	return int64(o.GetUnitMultiplier().GetValue())
}

// limitFault returns the field of o that is wrong and what is wrong with it, or "".
func limitFault(o *override) (field, message string) {
	unit := overrideUnit(o)
	if unit == 0 {
		return "unit", fmt.Sprintf("%d is no unit; want 1 (SECOND), 2 (MINUTE), 3 (HOUR), 4 (DAY), 5 (MONTH), 6 (YEAR) or 7 (week)", o.GetUnit())
	}
	if most := int64(bucket.MaxPeriod / unit); multiplier(o) < 1 || multiplier(o) > most {
		return "unit_multiplier", fmt.Sprintf("%d is out of range; of this unit want 1 to %d", multiplier(o), most)
	}
	return "", ""
}

// limitOf returns the limit that o, which has no fault, spells: windows that are aligned to
// the epoch, as those of rules in envoyproxy/ratelimit are.
func limitOf(o *override) bucket.Limit {
	return bucket.Limit{
		Algorithm: bucket.FixedWindow,
		Count:     int64(o.GetRequestsPerUnit()),
		Period:    overrideUnit(o) * time.Duration(multiplier(o)),
	}
}

// describe fills in the limit that decided r, which was counted.
func describe(l *ratelimitv3.RateLimitResponse_RateLimit, r *limiter.Result) {
	l.RequestsPerUnit = narrow(r.Limit)
	// A burst is what the remaining is out of, so that is shown; but it does not come back in
	// one period.
	if of := r.Limits.At(int(r.Index)); of.Burst == 0 || of.Burst == of.Count {
		l.Unit = unitOf(r.Period)
	}
	l.Name = limitName(r)
}

// limitName returns the name that the rule file gives the limit that decided r, or "": the
// path that stands for a missing one elsewhere would be shown to Envoy's clients.
func limitName(r *limiter.Result) string {
	if r.Rule == nil {
		return ""
	}
	name := r.Rule.LimitName(int(r.Index))
	if r.Rule.Name == r.Rule.Path && strings.HasPrefix(name, r.Rule.Path) {
		return ""
	}
	return name
}

// narrow returns n ≥ 0, or the most that Envoy's fields can say.
func narrow(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
