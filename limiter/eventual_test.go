package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestEventual: the rule's consistency reaches the decider, and the age of its knowledge comes back, also
// of a denial, which nobody is to answer from memory.
func TestEventual(t *testing.T) {
	var asked []bool
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		for i := range b.Requests {
			asked = append(asked, b.Requests[i].Eventual)
			b.Answers[i] = check.Answer{Source: check.Forwarded, Age: time.Millisecond}
			if b.Requests[i].Eventual {
				b.Answers[i] = check.Answer{Source: check.Eventual, Owner: "n1", Age: 60 * time.Millisecond, Decision: bucket.Decision{RetryAfter: time.Minute}}
			}
		}
	}))
	s.SetRules(parse(t, `
domain: d
descriptors:
  - key: near
    consistency: eventual
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: nothing
    consistency: eventual
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: exact
    rate_limit: {unit: hour, requests_per_unit: 5}
`))
	one := limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 5, Period: time.Hour})
	in := domain("d")
	rs := mustCheck(t, s, batch(t, all(entry("near", "x"), in), all(entry("nothing", "x"), in), all(entry("exact", "x"), in), all(entry("near", "x"), in, one)))
	for i, want := range []bool{true, false, false, false} {
		if asked[i] != want {
			t.Errorf("check %d: eventual %v, want %v", i, asked[i], want)
		}
	}
	if r := &rs[0]; r.Source != check.Eventual || r.Staleness != 60*time.Millisecond || r.Owner != "n1" || r.DeniedFor != 0 {
		t.Errorf("answered %+v", r)
	}
	if r := &rs[2]; r.Staleness != 0 {
		t.Errorf("a strict answer is %v old", r.Staleness)
	}
}
