package limiter

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestEventual: the age of what the decider knows comes back, also of a denial, which nobody is to answer from memory.
func TestEventual(t *testing.T) {
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		b.Answers[0] = check.Answer{Source: check.Eventual, Owner: "n1", Age: 60 * time.Millisecond, Decision: bucket.Decision{RetryAfter: time.Minute}}
		b.Answers[1] = check.Answer{Source: check.Forwarded, Age: time.Millisecond}
	}))
	s.SetRules(parse(t, "domain: d\ndescriptors:\n  - {key: near, limits: [5/1h], consistency: eventual}\n  - {key: exact, limits: [5/1h]}\n"))
	rs := mustCheck(t, s, batch(t, all(entry("near", "x"), domain("d")), all(entry("exact", "x"), domain("d"))))
	if r := &rs[0]; r.Source != check.Eventual || r.Staleness != 60*time.Millisecond || r.Owner != "n1" || r.DeniedFor != 0 {
		t.Errorf("answered %+v", r)
	}
	if r := &rs[1]; r.Staleness != 0 {
		t.Errorf("a strict answer is %v old", r.Staleness)
	}
}
