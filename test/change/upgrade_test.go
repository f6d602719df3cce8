package change

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// Nodes of two versions are one cluster: the program of an earlier commit, SLUICE_E2E_BASE, and the one
// under test. `go run ./test/scenario upgrade` builds the former and runs these.

func baseBinary(t *testing.T) string {
	t.Helper()
	base := os.Getenv("SLUICE_E2E_BASE")
	if base == "" {
		t.Skip("SLUICE_E2E_BASE names no program of an earlier version; see go run ./test/scenario upgrade")
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
		f.replace(process.Binary)
		f.replace(base)
	}), plannedGap, 0)
}

// The same by rules, whose changes are copied before they are answered, with a crash of a node of each
// version while the cluster is mixed.
func TestUpgradeMixedCrash(t *testing.T) {
	base := baseBinary(t)
	f := newFleetOf(t, base, 3, process.RulesOf(t, changeRules("sync")))
	f.judge(f.watch(func() {
		for _, other := range []string{process.Binary, base} {
			f.binary = other
			f.restart(f.nodes()[0])
			// A node that has just started has no vote: a second loss within its grace would be one too many.
			pass(3 * time.Second)
			lost := f.nodes()[0] // of the version that two of three run; it comes back with the other
			f.crash(lost)
			process.WaitAgreed(t, f.nodes(), 10*time.Second)
			f.enlist(f.launch(lost.Name))
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
	f.replace(process.Binary)
	pass(2 * time.Second) // granting begins
	if granted := process.Total(f.nodes(), "sluice_lease_granted_units_total"); granted == 0 {
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
	f := newKept(t, base)
	f.judge(f.watch(func() {
		for _, other := range []string{process.Binary, base} {
			f.binary = other
			f.wholeRestart()
		}
	}), time.Minute, 0)
}

// TestUpgradeClients: a client of one version and a node of the other understand each other, or the node rejects loudly what it
// does not know.
func TestUpgradeClients(t *testing.T) {
	base := baseBinary(t)
	const rules = "domain: auth\ndescriptors: [{key: user, limits: [{count: 10, period: 1h}]}]\n"
	t.Run("a new client, an old node", func(t *testing.T) {
		c, err := sluice.New(process.ClusterOf(t, 1, process.Config{Rules: process.RulesOf(t, rules), Binary: base})[0].GRPC)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		key := c.Key("auth", "user", "a")
		for _, step := range []struct {
			name string
			call func() (sluice.Decision, error)
			left int64
		}{
			{"check", func() (sluice.Decision, error) { return key.Check(t.Context(), 4) }, 6},
			{"charge", func() (sluice.Decision, error) { return key.Charge(t.Context(), 2) }, 4},
			{"refund", func() (sluice.Decision, error) { return key.Refund(t.Context(), 1) }, 5},
			{"batch", func() (sluice.Decision, error) {
				b, err := c.CheckAll(t.Context(), key.Spend(1), c.Key("auth", "user", "b").Spend(1))
				return b.Decisions[0], err
			}, 4},
			{"read", func() (sluice.Decision, error) { return key.Read(t.Context(), 1) }, 4},
		} {
			if d, err := step.call(); err != nil || !d.Allowed || d.Remaining != step.left || d.Degraded != nil {
				t.Errorf("%s: %+v, %v; want %d left", step.name, d, err, step.left)
			}
		}
		for range 2 {
			if _, err := key.Once("order-4711").Charge(t.Context(), 2); err != nil && !errors.Is(err, limit.ErrUnsupported) {
				t.Errorf("a charge with a name: %v", err)
			} else if t.Logf("a charge with a name: %v", err); err != nil {
				if d, err := key.Read(t.Context(), 1); err != nil || d.Remaining != 4 {
					t.Errorf("a rejected charge was made: %+v, %v", d, err)
				}
			}
		}
	})
	t.Run("an old client, a new node", func(t *testing.T) {
		n := process.Cluster(t, 1, process.RulesOf(t, rules))[0]
		for _, args := range []string{
			"check --domain auth --cost 4 user=a", "check --domain auth --verb charge --cost 2 user=a", "check --domain auth --verb read user=a",
			"bench --api sdk --duration 1s --warmup 0s --domain auth --key user --limits 1000000/1m",
			"bench --api sdk --batch 10 --duration 1s --warmup 0s --domain auth --key user --limits 1000000/1m",
		} {
			out, err := exec.Command(base, append(strings.Fields(args), "--addr", n.GRPC, "-o", "json")...).CombinedOutput()
			if err != nil || strings.HasPrefix(args, "bench") && !strings.Contains(string(out), `"failed_calls":0,`) {
				t.Errorf("%s: %v\n%s", args, err, out)
			}
			t.Logf("%s:\n%s", args, out)
		}
	})
}

// waitCopied waits until every partition has a complete copy.
func waitCopied(t *testing.T, nodes []*process.Node) {
	t.Helper()
	process.Eventually(t, 20*time.Second, "all partitions have copies", func() error {
		if left := process.Total(nodes, "sluice_partitions_unprotected"); left > 0 {
			return fmt.Errorf("%v have none", left)
		}
		return nil
	})
}
