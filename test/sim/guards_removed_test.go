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
		removed    guard.Guard
		profile    string
		invariants []string // without the rule one of them is violated
	}{
		{"epoch", guard.EpochCheck, "chaos", []string{"I1", "seal", "epoch"}},
		{"majority", guard.ClaimMajority, "disconnect", []string{"I1"}},
		{"wait", guard.ClaimWait, "disconnect", []string{"I1"}},
		{"promise", guard.Promise, "chaos", []string{"I1"}},
		{"inheritance", guard.Inheritance, "sleepers", []string{"I1"}},
		{"freeze", guard.Freeze, "planned", []string{"seal"}},
		{"checksum", guard.Checksum, "damage", []string{"I5 content"}},
		{"memory", guard.Memory, "forgotten", []string{"I1"}},
		{"second replica", guard.SecondReplica, "two", []string{"I3", "I3 sync"}},
		{"lost state", guard.LostState, "halves", []string{"I3 sync"}},
		{"in-sync replicas", guard.InSync, "linkwise", []string{"I3 sync"}},
		{"the end of a loss", guard.LossEnds, "linkwise", []string{"I7"}},
		{"epochs of one set", guard.OneSet, "meet", []string{"I3 sync"}},
		{"less what no owner has acknowledged", guard.Unacknowledged, "shares", []string{"share", "shares in all"}},
		{"the latest answer", guard.LatestAnswer, "shares", []string{"share", "shares in all"}},
		{"once per window", guard.OncePerWindow, "shares", []string{"share", "shares in all"}},
		{"what was left of a dropped partition", guard.Dropped, "shares", []string{"share", "shares in all"}},
		{"a lost answer counts as charged", guard.LostAnswer, "shares", []string{"deferred"}},
		{"what is on its way is on disk", guard.SentIsSaved, "shares", []string{"deferred"}},
		{"charges expire", guard.Expiry, "shares", []string{"deferred"}},
		{"divergent copy merge", guard.DivergentMerge, "pause", []string{"merge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			violation := func(seed uint64) *Violation { return Run(Options{Seed: seed, Profile: c.profile}).Violation }
			shows(t, removed(c.removed, violation), violation, c.invariants...)
		})
	}
}

// TestLeaseGuardsRemoved shows for each rule of leases in packages bucket and lease what fails without it.
func TestLeaseGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name      string
		removed   guard.Guard
		clients   bool
		invariant string
	}{
		{"held", guard.Held, false, "I2"},
		{"lapse", guard.Lapse, false, "I2"},
		{"settled once", guard.SettleOnce, false, "I4"},
		{"ended stays", guard.EndedStays, false, "I4"},
		{"held by clients", guard.Held, true, "I2"},
		{"lapse of clients", guard.Lapse, true, "I2"},
		{"deadline of clients", guard.LeaseDeadline, true, "I2"},
		{"clocks of clients", guard.LeaseMargin, true, "I2"},
		{"end before the settle", guard.LeaseEnd, true, "I4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(seed uint64) *Violation {
				return runLeases(t, LeaseOptions{Seed: seed, Unaudited: true, ClientsOnly: c.clients}).Violation
			}
			shows(t, removed(c.removed, run), run, c.invariant)
		})
	}
}

// TestRegionGuardsRemoved shows for each rule of leases between regions what fails without it.
func TestRegionGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name    string
		removed guard.Guard
		world   func(seed uint64) *regionWorld
	}{
		{"held", guard.Held, runRegions},
		{"lapse", guard.Lapse, runRegions},
		{"deadline kept", guard.NodeDeadline, runRegions},
		{"since sent", guard.SinceSent, runRegionEdges},
		{"lease out of a lease", guard.SubEnd, runRegionEdges},
		{"lease of which others have a part", guard.SubHeld, runRegionSubs},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(seed uint64) *Violation { return c.world(seed).violation }
			shows(t, removed(c.removed, run), run, "I2")
		})
	}
}

// TestSlotGuardsRemoved shows for each rule of slots in packages bucket and limiter what fails without it.
func TestSlotGuardsRemoved(t *testing.T) {
	for _, c := range []struct {
		name       string
		removed    guard.Guard
		invariants []string
	}{
		{"held", guard.Held, []string{"slots"}},
		{"renewed", guard.Renewed, []string{"slots"}},
		{"fence", guard.FenceRises, []string{"fence"}},
		{"gather", guard.Gather, []string{"order"}},
		{"wake again", guard.WakeAgain, []string{"idle"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(seed uint64) *Violation { return runSlots(t, slotOptions{seed: seed}).violation }
			shows(t, removed(c.removed, run), run, c.invariants...)
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
