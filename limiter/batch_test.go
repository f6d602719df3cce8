package limiter

import (
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// A batch that is used again shows nothing of its use before.
func TestBatchForgets(t *testing.T) {
	s := newService(t, decideFunc(allow))
	b := new(Batch)
	for range 3 {
		c := b.Add()
		*c = Check{
			Domain: "shop", Cost: 9, Verb: bucket.Read, Err: &Error{Code: Invalid},
			Descriptor: append(c.Descriptor, rules.Entry{Key: "user", Value: "secret"}),
			Limits:     append(c.Limits, bucket.Limit{Count: 1}),
		}
	}
	b.Checks[2].Err, b.Checks[2].Limits = nil, nil
	b.AllOrNothing = true
	mustCheck(t, s, b)
	descriptor := b.Checks[2].Descriptor
	b.forget()

	if len(b.Checks)+len(b.Results)+len(b.queued.Requests)+len(b.queued.Answers)+len(b.places) > 0 || b.AllOrNothing || b.queued.AllOrNothing {
		t.Errorf("it is not empty: %+v", b)
	}
	if descriptor[0] != (rules.Entry{}) {
		t.Errorf("it holds on to %+v", descriptor[0])
	}
	for _, r := range b.Results[:cap(b.Results)] {
		if r != (Result{}) {
			t.Errorf("it holds on to %+v", r)
		}
	}
	for _, a := range b.queued.Answers[:cap(b.queued.Answers)] {
		if a != (check.Answer{}) {
			t.Errorf("it holds on to %+v", a)
		}
	}
	c := b.Add()
	if c.Domain != "" || c.Cost != 1 || c.Verb != bucket.Check || c.Err != nil || len(c.Descriptor) > 0 || len(c.Limits) > 0 {
		t.Errorf("a new check is %+v", c)
	}
	if cap(c.Descriptor) == 0 {
		t.Error("the memory of small descriptors is not kept")
	}
	for range keepEntries + 1 {
		c.Descriptor = append(c.Descriptor, rules.Entry{})
	}
	b.forget()
	if c := b.Add(); cap(c.Descriptor) != 0 {
		t.Error("the memory of large descriptors is kept")
	}
}
