package sim

import (
	"slices"
	"testing"
)

// TestGuards shows for each rule that the simulator can remove what fails without it. TestGuardsRemoved does so for the rules of the product.
func TestGuards(t *testing.T) {
	for _, c := range []struct {
		name       string
		seed       uint64 // where the search begins: it violates an invariant
		without    Without
		profile    string
		invariants []string // without the rule one of them is violated
	}{
		{"founding together", 0, Without{expect: true}, "found", []string{"one set", "start"}},
		{"a set on disk", 10, Without{disk: true}, "found", []string{"one set", "set", "I1"}},
		{"a set's proof", 2, Without{proof: true}, "found", []string{"set", "I7"}},
		{"quorum", 8, Without{quorum: true}, "pause", []string{"I1"}},
		{"seal", 0, Without{seal: true}, "planned", []string{"I1"}},
		{"gate", 0, Without{gate: true}, "crash", []string{"gate", "I3"}},
		{"an owner that lacks quorum", 0, Without{proof: true}, "bridge", []string{"gap"}},
		{"no share before quorum", 4, Without{early: true}, "shares", []string{"early share"}},
		{"no share just after a pause", 3, Without{grace: true}, "shares", []string{"early share"}},
		{"a share for each voter", 0, Without{voters: true}, "shares", []string{"share", "shares in all"}},
		{"deferred charges on disk", 10, Without{saved: true}, "shares", []string{"deferred"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			shows(t, c.seed, func(seed uint64) *Violation {
				return Run(Options{Seed: seed, Profile: c.profile, Without: c.without}).Violation
			}, func(seed uint64) *Violation {
				return Run(Options{Seed: seed, Profile: c.profile}).Violation
			}, c.invariants...)
		})
	}
}

// shows looks for a seed that violates one of the invariants without a rule, and none with it. It begins with first.
func shows(t *testing.T, first uint64, without, with func(seed uint64) *Violation, invariants ...string) {
	t.Helper()
	for seed := first; seed < first+400; seed++ {
		v := without(seed)
		if v == nil || !slices.Contains(invariants, v.Invariant) {
			continue
		}
		if v := with(seed); v != nil {
			t.Fatalf("seed %d violates an invariant with the rule too: %v", seed, v)
		}
		t.Logf("seed %d: %v", seed, v)
		return
	}
	t.Error("no seed of 400 violates an invariant without the rule")
}
