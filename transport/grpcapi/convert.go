package grpcapi

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/rules"
)

// fill adds checks to b. What the wire can say and a limiter.Check cannot
// becomes the check's Fault.
func fill(b *limiter.Batch, checks []*sluicev1.Check) {
	for _, p := range checks {
		c := b.Add()
		c.Domain = p.GetDomain()
		entries := p.GetDescriptor_()
		// One too many is enough for it to be refused.
		for _, e := range entries[:min(len(entries), limiter.MaxEntries+1)] {
			c.Descriptor = append(c.Descriptor, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if p != nil && p.Cost != nil {
			c.Cost = *p.Cost
		}
		setVerb(c, int32(p.GetVerb()))
		limits := p.GetLimits()
		for i, l := range limits[:min(len(limits), bucket.MaxLimits+1)] {
			addLimit(c, i, l)
		}
	}
}

// resets returns what became of the counters of b, one per check.
func resets(b *limiter.Batch) []*sluicev1.Decision {
	out, list := blank(len(b.Results))
	for i := range b.Results {
		r, d := &b.Results[i], &list[i]
		d.Rule = r.RuleName()
		if r.Err != nil {
			d.Error = errorAt(r.Err, i)
			continue
		}
		d.Source, d.Holder = sluicev1.Source(r.Source), r.Holder
	}
	return out
}

// blank returns n decisions in one piece of memory, and pointers to them.
func blank(n int) ([]*sluicev1.Decision, []sluicev1.Decision) {
	list := make([]sluicev1.Decision, n)
	out := make([]*sluicev1.Decision, n)
	for i := range list {
		out[i] = &list[i]
	}
	return out, list
}
