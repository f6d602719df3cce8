package sluice

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

func TestBudget(t *testing.T) {
	var b budget
	now := time.Unix(1000, 0)
	taken := func(answered uint64) (n int) {
		for b.take(now, answered) {
			n++
		}
		return n
	}
	for _, step := range []struct {
		name     string
		pass     time.Duration
		answered uint64
		want     int
	}{
		{"at the start", 0, 0, budgetAtOnce},
		{"nothing comes of nothing", 0, 0, 0},
		{"a tenth of what was answered", 0, 300, 30},
		{"some with time", 500 * time.Millisecond, 300, 5},
		{"not more than so many", time.Hour, 1_000_000, budgetMost},
		{"a clock that steps back", -time.Hour, 1_000_000, 0},
	} {
		now = now.Add(step.pass)
		if got := taken(step.answered); got != step.want {
			t.Errorf("%s: %d repeats, want %d", step.name, got, step.want)
		}
	}
}

// Nodes that are too busy are not asked again and again: most checks are answered by the policy at once.
func TestBusyNodesAreNotStormed(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		f.decide = func(*fakeNode, *sluicev1.Check) *sluicev1.Decision {
			return &sluicev1.Decision{Error: &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_OVERLOADED}}
		}
		// So long that a slow machine makes no node seem to hang: those checks are sent again, whatever the budget.
		c := f.dial(WithFailurePolicy(FailClosed()), WithTimeout(time.Minute))
		const checks = 200
		began := time.Now()
		var all sync.WaitGroup
		for range checks {
			all.Go(func() {
				d, err := c.Check(t.Context(), Check{Domain: "d", Descriptor: []Entry{{Key: "k", Value: "v"}}, Amount: 1})
				if err != nil || d.Allowed || d.Source != limit.SourceFailClosed {
					t.Errorf("%+v, %v; want what the policy says", d, err)
				}
			})
		}
		all.Wait()
		// The policy's answers are none of a node's, and earn nothing.
		most := budgetAtOnce + uint64(budgetRate*time.Since(began).Seconds()) + 1
		if n := c.Stats().Retries; n == 0 || n > most {
			t.Errorf("%d repeats of %d checks; want some, and at most %d", n, checks, most)
		}
		if _, err := c.Key("d", "k", "v").Charge(t.Context(), 1); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a charge: %v", err)
		}
	})
}
