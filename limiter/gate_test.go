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
	gate := &places{free: 1}
	s := newScript(t, testRules, func(c *Config) { c.Gate = gate })
	decide := s.config.Decider
	s.config.Decider = decideFunc(func(ctx context.Context, b *check.Batch) {
		if gate.free != 0 {
			t.Error("a call in progress has no place")
		}
		decide.Decide(ctx, b)
	})
	s.play("user=a => allowed 2/3")
	gate.free = 0
	b := s.batch("user=a | user=a")
	if err := s.Check(t.Context(), b); !errors.Is(err, ErrBusy) || s.node.Asked.Load() != 1 || gate.left != 1 {
		t.Fatalf("%v, %d were decided, %d places given back", err, s.node.Asked.Load(), gate.left)
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
