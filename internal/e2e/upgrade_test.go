//go:build change

package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/audit"
)

// Nodes of two versions are one cluster: the program of an earlier commit, SLUICE_E2E_BASE, and the one
// under test. `make upgrade-test` builds the former and runs these.

func baseBinary(t *testing.T) string {
	t.Helper()
	base := os.Getenv("SLUICE_E2E_BASE")
	if base == "" {
		t.Skip("SLUICE_E2E_BASE names no program of an earlier version; see make upgrade-test")
	}
	return base
}

// replace restarts all nodes, one after the other, with another program.
func (f *fleet) replace(binary string) {
	f.t.Helper()
	f.binary = binary
	for _, n := range f.nodes() {
		f.restart(n)
	}
}

// A cluster is upgraded node by node under load, and then goes back.
func TestUpgradeRolling(t *testing.T) {
	base := baseBinary(t)
	f := newFleetOf(t, base, 3, "")
	f.judge(f.watch(func() {
		f.replace(binary)
		f.replace(base)
	}), plannedGap, 0)
}

// The same by rules, whose changes are copied before they are answered, with a crash of a node of each
// version while the cluster is mixed.
func TestUpgradeMixedCrash(t *testing.T) {
	base := baseBinary(t)
	f := newFleetOf(t, base, 3, writeRules(t, changeRules("sync")))
	f.judge(f.watch(func() {
		for _, other := range []string{binary, base} {
			f.binary = other
			f.restart(f.nodes()[0])
			// A node that has just started has no vote: a second loss within its grace would be one too many.
			pass(3 * time.Second)
			lost := f.nodes()[0] // of the version that two of three run; it comes back with the other
			f.crash(lost)
			waitAgreed(t, f.nodes(), 10*time.Second)
			f.enlist(f.launch(lost.name))
			pass(3 * time.Second)
			waitCopied(t, f.nodes())
			f.restart(f.nodes()[0])
		}
	}), crashGap, 0)
}

// One key that everybody asks for, of which newer nodes may grant each other, goes from node to node of both versions.
func TestUpgradeHotKey(t *testing.T) {
	base := baseBinary(t)
	f := newFleetOf(t, base, 3, "")
	ctx, enough := context.WithCancel(t.Context())
	audited := make(chan *audit.Report, 1)
	go func() {
		r, err := audit.Run(ctx, audit.Config{
			Targets: f.targets, Domain: "hot", Callers: 16, Duration: 5 * time.Minute, AnswerWithin: f.answerWithin,
			Specs: []audit.Spec{{Keys: 1, Limit: bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1500, Period: time.Second}}},
		})
		if err != nil {
			t.Error(err)
			r = &audit.Report{}
		}
		audited <- r
	}()
	f.replace(binary)
	pass(2 * time.Second) // granting begins
	if granted := total(f.nodes(), "sluice_lease_granted_units_total"); granted == 0 {
		t.Error("nobody has granted of a key that everybody asks for: this tests nothing")
	}
	f.replace(base)
	waitCopied(t, f.nodes())
	enough()
	r := <-audited
	t.Logf("%d checks, admitted %d, sources %v, longest gap %v", r.Checks, r.Admitted, r.Sources, r.LongestGap().Length)
	if r.Over.Units > 0 || r.FinalErrors > 0 {
		t.Errorf("admitted %d above the limit; %d checks had no answer: %+v, %+v", r.Over.Units, r.FinalErrors, r.Violations, r.Errors)
	}
}

// A cluster that is stopped as a whole comes back with its counters under the other version, and goes back so, too.
func TestUpgradeSnapshots(t *testing.T) {
	base := baseBinary(t)
	f := newKeptOf(t, base, 3)
	f.judge(f.watch(func() {
		for _, other := range []string{binary, base} {
			f.binary = other
			f.wholeRestart()
		}
	}), time.Minute, 0)
}

func total(nodes []*node, metric string) (sum float64) {
	for _, n := range nodes {
		sum += n.metric(metric)
	}
	return sum
}

// waitCopied waits until every partition has a complete copy.
func waitCopied(t *testing.T, nodes []*node) {
	t.Helper()
	eventually(t, 20*time.Second, "all partitions have copies", func() error {
		if left := total(nodes, "sluice_partitions_unprotected"); left > 0 {
			return fmt.Errorf("%v have none", left)
		}
		return nil
	})
}
