package envoy

import (
	"fmt"
	"math"

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
func (d *Door) ask(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) {
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
		case bucket.Refund: // Door.refund makes it afterwards
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
