package limiter

import (
	"context"
	"errors"
	"testing"

	"github.com/sluicecluster/sluice/internal/check"
)

// places is a Gate with so many places left.
type places struct{ free, entered, left int }

func (p *places) Enter(checks int) bool {
	if p.free < checks {
		return false
	}
	p.free -= checks
	p.entered++
	return true
}

func (p *places) Leave(checks int) { p.free += checks; p.left++ }

func TestCallsThatThereIsNoPlaceFor(t *testing.T) {
	decided := 0
	gate := &places{free: 1}
	s := newService(t, decideFunc(func(_ context.Context, b *check.Batch) {
		decided++
		if gate.free != 0 {
			t.Error("a call in progress has no place")
		}
		for i := range b.Answers {
			b.Answers[i] = check.Answer{Source: check.Owned}
		}
	}), func(c *Config) { c.Gate = gate })
	s.SetRules(parse(t, testRules))
	ask := all(domain("shop"), entry("user", "a"))
	mustCheck(t, s, batch(t, ask))
	if decided != 1 || gate.left != 1 {
		t.Fatalf("decided %d times, %d places given back", decided, gate.left)
	}

	gate.free = 0
	b := batch(t, ask, ask)
	err := s.Check(t.Context(), b)
	if !errors.Is(err, ErrBusy) || decided != 1 || gate.left != 1 {
		t.Fatalf("%v, decided %d times, %d places given back", err, decided, gate.left)
	}
	// APIs that look at the checks alone see it too.
	for i := range b.Checks {
		if b.Results[i].Err != ErrBusy {
			t.Errorf("check %d: %v", i, b.Results[i].Err)
		}
	}
	if n := s.Stats().Errors[Overloaded]; n != 2 {
		t.Errorf("%d checks were counted", n)
	}
}
