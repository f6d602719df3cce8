//go:build guards

package sim

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// TestGuardsRemoved shows for each rule of the product what fails without it. guard.Off is of the whole process, so one row runs at a time.
//
// guard.RejectionMemory has no row. Transfer batches are numbered and taken once, and an owner that takes a partition back
// goes on two generations higher, so a rejected close cannot come again; TestRejectionMemoryRemoved of
// cluster/handoff sends one all the same. Nor has the queue behind the close, which is the node's:
// TestBehindTheClose of cluster.
func TestGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name       string
		seed       uint64 // where the search begins: it violates an invariant
		removed    guard.Guard
		profile    string
		invariants []string // without the rule one of them is violated
	}{
		{"epoch", 4, guard.EpochCheck, "chaos", []string{"I1", "seal", "epoch"}},
		{"majority", 43, guard.ClaimMajority, "disconnect", []string{"I1"}},
		{"wait", 4, guard.ClaimWait, "disconnect", []string{"I1"}},
		{"promise", 1, guard.Promise, "chaos", []string{"I1"}},
		{"inheritance", 7, guard.Inheritance, "sleepers", []string{"I1"}},
		{"freeze", 2, guard.Freeze, "planned", []string{"seal"}},
		{"checksum", 3, guard.Checksum, "damage", []string{"I5 content"}},
		{"memory", 1, guard.Memory, "forgotten", []string{"I1"}},
		{"second replica", 15, guard.SecondReplica, "two", []string{"I3", "I3 sync"}},
		{"lost state", 55, guard.LostState, "halves", []string{"I3 sync"}},
		{"in-sync replicas", 11, guard.InSync, "linkwise", []string{"I3 sync"}},
		{"the end of a loss", 10, guard.LossEnds, "linkwise", []string{"I7"}},
		{"epochs of one set", 89, guard.OneSet, "meet", []string{"I3 sync"}},
		{"less what no owner has acknowledged", 0, guard.Unacknowledged, "shares", []string{"share", "shares in all"}},
		{"the latest answer", 0, guard.LatestAnswer, "shares", []string{"share", "shares in all"}},
		{"once per window", 0, guard.OncePerWindow, "shares", []string{"share", "shares in all"}},
		{"what was left of a dropped partition", 4, guard.Dropped, "shares", []string{"share", "shares in all"}},
		{"a lost answer counts as charged", 0, guard.LostAnswer, "shares", []string{"deferred"}},
		{"what is on its way is on disk", 1, guard.SentIsSaved, "shares", []string{"deferred"}},
		{"charges expire", 0, guard.Expiry, "shares", []string{"deferred"}},
		{"divergent copy merge", 99, guard.DivergentMerge, "pause", []string{"merge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			violation := func(seed uint64) *Violation { return Run(Options{Seed: seed, Profile: c.profile}).Violation }
			shows(t, c.seed, removed(c.removed, violation), violation, c.invariants...)
		})
	}
}

// TestLeaseGuardsRemoved shows for each rule of leases in packages bucket and lease what fails without it.
func TestLeaseGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name      string
		seed      uint64 // as above
		removed   guard.Guard
		clients   bool
		invariant string
	}{
		{"held", 0, guard.Held, false, "I2"},
		{"lapse", 0, guard.Lapse, false, "I2"},
		{"settled once", 28, guard.SettleOnce, false, "I4"},
		{"ended stays", 0, guard.EndedStays, false, "I4"},
		{"held by clients", 0, guard.Held, true, "I2"},
		{"lapse of clients", 0, guard.Lapse, true, "I2"},
		{"deadline of clients", 38, guard.LeaseDeadline, true, "I2"},
		{"clocks of clients", 67, guard.LeaseMargin, true, "I2"},
		{"end before the settle", 5, guard.LeaseEnd, true, "I4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(seed uint64) *Violation {
				return runLeases(t, LeaseOptions{Seed: seed, Unaudited: true, ClientsOnly: c.clients}).Violation
			}
			shows(t, c.seed, removed(c.removed, run), run, c.invariant)
		})
	}
}

// TestRegionGuardsRemoved shows for each rule of leases between regions what fails without it.
func TestRegionGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name    string
		seed    uint64 // as above
		removed guard.Guard
		world   func(seed uint64) *regionWorld
	}{
		{"held", 1, guard.Held, runRegions},
		{"lapse", 0, guard.Lapse, runRegions},
		{"deadline kept", 16, guard.NodeDeadline, runRegions},
		{"since sent", 0, guard.SinceSent, runRegionEdges},
		{"lease out of a lease", 153, guard.SubEnd, runRegionEdges},
		{"lease of which others have a part", 69, guard.SubHeld, runRegionSubs},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(seed uint64) *Violation { return c.world(seed).violation }
			shows(t, c.seed, removed(c.removed, run), run, "I2")
		})
	}
}

// TestSlotGuardsRemoved shows for each rule of slots in packages bucket and limiter what fails without it.
func TestSlotGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name       string
		seed       uint64 // where the search begins: it violates an invariant
		removed    guard.Guard
		invariants []string
	}{
		{"held", 0, guard.Held, []string{"slots"}},
		{"renewed", 14, guard.Renewed, []string{"slots"}},
		{"fence", 2, guard.FenceRises, []string{"fence"}},
		{"gather", 7, guard.Gather, []string{"order"}},
		{"wake again", 64, guard.WakeAgain, []string{"idle"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(seed uint64) *Violation { return runSlots(t, slotOptions{seed: seed}).violation }
			shows(t, c.seed, removed(c.removed, run), run, c.invariants...)
		})
	}
}

// removed is run without the rules of g.
func removed(g guard.Guard, run func(seed uint64) *Violation) func(seed uint64) *Violation {
	return func(seed uint64) *Violation {
		guard.Off = g
		defer func() { guard.Off = 0 }()
		return run(seed)
	}
}
