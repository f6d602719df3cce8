package sim

import (
	"slices"
	"testing"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/share"
)

// TestGuards shows for each guard of the protocol what goes wrong without it: some seed of
// a profile violates an invariant that holds with it.
//
// handoff.RefusalMemory has no row. Transfer batches are numbered and taken once, and whoever takes back
// goes on two generations higher, so a close that was refused cannot come again; TestRefusalMemory of
// cluster/handoff has one come all the same. Nor has the queue behind the close, which is the node's:
// TestBehindTheClose of cluster.
func TestGuards(t *testing.T) {
	for _, c := range []struct {
		name    string
		without Without
		profile string
		// invariants are those of which one goes.
		invariants []string
	}{
		{"founding together", Without{expect: true}, "found", []string{"one set", "start"}},
		{"a set on disk", Without{disk: true}, "found", []string{"one set", "set", "I1"}},
		{"a set's proof", Without{proof: true}, "found", []string{"set", "I7"}},
		{"right", Without{right: true}, "pause", []string{"I1"}},
		{"seal", Without{seal: true}, "planned", []string{"I1"}},
		{"gate", Without{gate: true}, "crash", []string{"gate", "I3"}},
		{"epoch", Without{machine: handoff.EpochCheck}, "chaos", []string{"I1", "seal", "epoch"}},
		{"majority", Without{machine: handoff.ClaimMajority}, "creep", []string{"I1"}},
		{"wait", Without{machine: handoff.ClaimWait}, "creep", []string{"I1"}},
		{"promise", Without{machine: handoff.Promise}, "chaos", []string{"I1"}},
		{"inheritance", Without{machine: handoff.Inheritance}, "sleepers", []string{"I1"}},
		{"freeze", Without{machine: handoff.Freeze}, "planned", []string{"seal"}},
		{"checksum", Without{machine: handoff.Checksum}, "damage", []string{"I5 content"}},
		{"an owner that lacks quorum", Without{proof: true}, "bridge", []string{"gap"}},
		{"memory", Without{machine: handoff.Memory}, "forgotten", []string{"I1"}},
		{"second replica", Without{machine: handoff.SecondReplica}, "two", []string{"I3", "I3 sync"}},
		{"lost state", Without{machine: handoff.LostState}, "halves", []string{"I3 sync"}},
		{"epochs of one set", Without{machine: handoff.OneSet}, "meet", []string{"I3 sync"}},
		{"no share before quorum", Without{early: true}, "shares", []string{"early share"}},
		{"no share just after a pause", Without{grace: true}, "shares", []string{"early share"}},
		{"a share for each voter", Without{voters: true}, "shares", []string{"share", "shares in all"}},
		{"less what no owner has acknowledged", Without{shares: share.Unacknowledged}, "shares", []string{"share", "shares in all"}},
		{"the latest answer", Without{shares: share.LatestAnswer}, "shares", []string{"share", "shares in all"}},
		{"once per window", Without{shares: share.OncePerWindow}, "shares", []string{"share", "shares in all"}},
		{"what was left of a dropped partition", Without{shares: share.Dropped}, "shares", []string{"share", "shares in all"}},
		{"a lost answer counts as charged", Without{shares: share.LostAnswer}, "shares", []string{"deferred"}},
		{"what is on its way is on disk", Without{shares: share.SentIsSaved}, "shares", []string{"deferred"}},
		{"deferred charges on disk", Without{saved: true}, "shares", []string{"deferred"}},
		{"charges expire", Without{shares: share.Expiry}, "shares", []string{"deferred"}},
		{"fork merge", Without{machine: handoff.ForkMerge}, "pause", []string{"merge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for s := range uint64(400) {
				r := Run(Options{Seed: s, Profile: c.profile, Without: c.without})
				if r.Violation == nil || !slices.Contains(c.invariants, r.Violation.Invariant) {
					continue
				}
				if with := Run(Options{Seed: s, Profile: c.profile}); with.Violation != nil {
					t.Fatalf("seed %d violates an invariant with the guard too: %v", s, with.Violation)
				}
				t.Logf("seed %d: %v", s, r.Violation)
				return
			}
			t.Errorf("400 seeds of %s do not miss it", c.profile)
		})
	}
}
