package envoy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// fault returns why req as a whole is invalid, or nil.
func fault(req *ratelimitv3.RateLimitRequest) *limiter.Error {
	if e := textError("domain", req.GetDomain()); e != nil {
		return e
	}
	return countError("descriptors", len(req.GetDescriptors()), limiter.MaxChecks)
}

func invalid(field, format string, args ...any) *limiter.Error {
	return &limiter.Error{Code: limiter.Invalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// countError returns why a list of n is invalid, or nil.
func countError(field string, n, most int) *limiter.Error {
	switch {
	case n == 0:
		return invalid(field, "empty; want at least one")
	case n > most:
		return invalid(field, "there are %d; want at most %d", n, most)
	}
	return nil
}

// textError returns why a domain or key is invalid, or nil.
func textError(field, s string) *limiter.Error {
	switch {
	case s == "":
		return invalid(field, "empty")
	case len(s) > limiter.MaxText:
		return invalid(field, "%d bytes; want at most %d", len(s), limiter.MaxText)
	}
	return nil
}

// ask fills b with the checks of req, one per descriptor in order. That of an invalid descriptor has an Err.
func (a *API) ask(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, hits hitsOf) {
	b.AllOrNothing = a.config.AllOrNothing
	for i := range req.GetDescriptors() {
		c := add(b, req, i, hits)
		if !a.config.AllOrNothing {
			continue
		}
		c.Drain = false
		switch {
		case c.Verb == bucket.Read && c.Cost == 0: // a check of cost 0: its denial fails the batch
			c.Verb = bucket.Check
		case c.Verb == bucket.Refund: // API.refund charges it afterwards
			c.Verb, c.Cost = bucket.Read, 0
		}
	}
}

// add adds the check of descriptor i, charged by itself.
func add(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, i int, hits hitsOf) *limiter.Check {
	d := req.GetDescriptors()[i]
	c := b.Add()
	c.Domain = req.GetDomain()
	if c.Err = read(d, c); c.Err != nil {
		clear(c.Descriptor)
		c.Descriptor = c.Descriptor[:0]
		return c
	}
	c.Verb, c.Cost = hits(req, i)
	c.NoDelay = true // Envoy does not hold requests back
	// Of several hits some may still have been admitted. Envoy reports hits that have happened already in the same way, so
	// the next request must not get what remains.
	c.Drain = c.Verb == bucket.Check && c.Cost > 1
	return c
}

// read reads the entries and the limit of d into c. The error names the first invalid field.
func read(d *commonv3.RateLimitDescriptor, c *limiter.Check) *limiter.Error {
	if e := countError("entries", len(d.GetEntries()), limiter.MaxEntries); e != nil {
		return e
	}
	for j, e := range d.GetEntries() {
		if key := e.GetKey(); key == "" || len(key) > limiter.MaxText {
			return textError(fmt.Sprintf("entries[%d].key", j), key)
		}
		c.Descriptor = append(c.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	if d.GetLimit() == nil {
		return nil
	}
	l, e := limitOf(d.GetLimit())
	if e == nil {
		c.Limits = append(c.Limits, l)
	}
	return e
}

// hitsOf returns the verb and the cost of descriptor i of req.
type hitsOf func(req *ratelimitv3.RateLimitRequest, i int) (bucket.Verb, int64)

// spends is the hitsOf of ShouldRateLimit.
func spends(req *ratelimitv3.RateLimitRequest, i int) (bucket.Verb, int64) {
	d := req.GetDescriptors()[i]
	hits := uint64(cmp.Or(req.GetHitsAddend(), 1))
	if d.GetHitsAddend() != nil {
		hits = d.GetHitsAddend().GetValue()
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

// unitPeriods are the lengths of units. Overrides and responses number their units alike; overrides have no name for the
// week.
var unitPeriods = [...]time.Duration{
	ratelimitv3.RateLimitResponse_RateLimit_SECOND: time.Second,
	ratelimitv3.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	ratelimitv3.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	ratelimitv3.RateLimitResponse_RateLimit_DAY:    day,
	ratelimitv3.RateLimitResponse_RateLimit_WEEK:   7 * day,
	ratelimitv3.RateLimitResponse_RateLimit_MONTH:  30 * day,
	ratelimitv3.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

// unitOf returns the unit that is exactly d long, else UNKNOWN.
func unitOf(d time.Duration) ratelimitv3.RateLimitResponse_RateLimit_Unit {
	return ratelimitv3.RateLimitResponse_RateLimit_Unit(max(0, slices.Index(unitPeriods[:], d)))
}

// override is the limit of a descriptor.
type override = commonv3.RateLimitDescriptor_RateLimitOverride

// limitOf returns the limit of o: windows aligned to the epoch, as those of rules in envoyproxy/ratelimit.
func limitOf(o *override) (bucket.Limit, *limiter.Error) {
	unit, times := time.Duration(0), int64(1)
	if u := int(o.GetUnit()); u > 0 && u < len(unitPeriods) {
		unit = unitPeriods[u]
	}
	if unit == 0 {
		return bucket.Limit{}, invalid("limit.unit",
			"%d is no unit; want 1 (SECOND), 2 (MINUTE), 3 (HOUR), 4 (DAY), 5 (MONTH), 6 (YEAR) or 7 (week)", o.GetUnit())
	}
	if m := o.GetUnitMultiplier(); m != nil {
		times = int64(m.GetValue())
	}
	if most := int64(bucket.MaxPeriod / unit); times < 1 || times > most {
		return bucket.Limit{}, invalid("limit.unit_multiplier", "%d is out of range; of this unit want 1 to %d", times, most)
	}
	return bucket.Limit{
		Algorithm: bucket.FixedWindow, Count: int64(o.GetRequestsPerUnit()), Period: unit * time.Duration(times),
	}, nil
}

// describe fills in the limit that decided r, which was counted.
func describe(l *ratelimitv3.RateLimitResponse_RateLimit, r *limiter.Result) {
	l.RequestsPerUnit = narrow(r.Limit)
	// The remaining is out of the burst, which does not refill in one period.
	if of := r.Limits.At(int(r.Index)); of.Burst == 0 || of.Burst == of.Count {
		l.Unit = unitOf(r.Period)
	}
	l.Name = limitName(r)
}

// limitName returns the name in the rule file of the limit that decided r, or "": the path, which stands for a missing name
// elsewhere, is not for Envoy's clients.
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

// narrow returns n within 0 and the largest value of Envoy's fields.
func narrow(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
