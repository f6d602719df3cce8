package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// damagedRules have a rule of each kind that denies lost counters.
const damagedRules = `
domain: shop
descriptors:
  - {key: sync, limits: [{algorithm: fixed_window, count: 20, period: 1000d}], replication: sync}
  - {key: closed, limits: [{algorithm: fixed_window, count: 20, period: 1000d}], on_failure: closed, on_partition: closed}
`

// spendKeys asks n for units of each of the keys of a rule at once, and returns of how many keys a
// unit was admitted, and how many answers came from counters that are lost.
func spendKeys(t *testing.T, n *process.Node, rule string, units int64) (admitted, lost int) {
	t.Helper()
	const keys = 40
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req := &sluicev1.CheckRequest{}
	for i := range keys {
		req.Checks = append(req.Checks, &sluicev1.Check{
			Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: rule, Value: fmt.Sprint(i)}}, Cost: &units,
		})
	}
	resp, err := n.API().Check(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range resp.Decisions {
		if d.Error != nil {
			t.Errorf("%s: %v", rule, d)
		}
		if d.Allowed {
			admitted++
		}
		if d.Source == sluicev1.Source_SOURCE_LOST_STATE {
			lost++
		}
	}
	return admitted, lost
}

// TestDamagedSnapshots: all nodes are stopped when keys are spent, and snapshots are damaged
// meanwhile. No spent key is admitted again, the status says why keys are denied, and the denials
// end when the snapshots are put back.
func TestDamagedSnapshots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of, damaged int
		with        string
		lost        bool
	}{
		{3, 1, "garbage", false},
		{3, 2, "garbage", true},
		{3, 3, "", true},
		{1, 1, "garbage", true},
	} {
		t.Run(fmt.Sprintf("%d of %d, %q", c.damaged, c.of, c.with), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			rules := filepath.Join(dir, "rules.yaml")
			if err := os.WriteFile(rules, []byte(damagedRules), 0o600); err != nil {
				t.Fatal(err)
			}
			config := process.Config{Rules: rules, Args: []string{"--data-dir", filepath.Join(dir, "{name}"), "--snapshot-interval", "1s"}}
			nodes := process.ClusterOf(t, c.of, config)
			if c.of > 1 {
				waitReplicated(t, nodes)
			}
			for _, rule := range []string{"sync", "closed"} {
				if admitted, _ := spendKeys(t, nodes[0], rule, 20); admitted != 40 {
					t.Fatalf("%s: %d keys were admitted at first", rule, admitted)
				}
			}
			stopTogether(nodes)
			intact := map[string][]byte{}
			file := func(name string) string { return filepath.Join(dir, name, "counters.snapshot") }
			for _, n := range nodes[:c.damaged] {
				data, err := os.ReadFile(file(n.Name))
				if err != nil {
					t.Fatal(err)
				}
				intact[n.Name] = data
				if err := os.WriteFile(file(n.Name), []byte(c.with), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			again := func(n *process.Node) *process.Node {
				next := config
				for _, other := range nodes {
					if other != n {
						next.Join = append(next.Join, other.Gossip)
					}
				}
				return n.Same(next)
			}
			for i, n := range nodes {
				nodes[i] = again(n)
			}
			for _, n := range nodes {
				n.WaitReady()
			}
			for _, rule := range []string{"sync", "closed"} {
				admitted, lost := spendKeys(t, nodes[0], rule, 1)
				t.Logf("%s: %d spent keys are admitted again, %d denied as lost", rule, admitted, lost)
				if admitted > 0 || lost > 0 != c.lost {
					t.Errorf("%s: %d spent keys are admitted again, %d denied as lost", rule, admitted, lost)
				}
			}
			status := func() string {
				out, _ := exec.Command(process.Binary, "status", "--addr", nodes[0].GRPC).CombinedOutput()
				return string(out)
			}
			t.Logf("lost partitions %v, rejected %v\n%s", process.Total(nodes, "sluice_partitions_lost_state"), process.Total(nodes, "sluice_snapshots_rejected_total"), status())
			if why := "pod-1 started without its snapshot: damaged"; c.lost && !strings.Contains(status(), why) {
				t.Errorf("no %q in:\n%s", why, status())
			}
			if c.lost == (process.Total(nodes, "sluice_partitions_lost_state") == 0) {
				t.Errorf("%v partitions count as lost", process.Total(nodes, "sluice_partitions_lost_state"))
			}
			for i, n := range nodes[:c.damaged] {
				n.Stop(syscall.SIGTERM)
				if err := os.WriteFile(file(n.Name), intact[n.Name], 0o600); err != nil {
					t.Fatal(err)
				}
				nodes[i] = again(n)
				nodes[i].WaitReady()
			}
			process.Eventually(t, 20*time.Second, "nothing is lost any more", func() error {
				if n := process.Total(nodes, "sluice_partitions_lost_state"); n > 0 {
					return fmt.Errorf("%v partitions are", n)
				}
				return nil
			})
			for _, rule := range []string{"sync", "closed"} {
				if admitted, lost := spendKeys(t, nodes[0], rule, 1); admitted > 0 || lost > 0 {
					t.Errorf("snapshots are back, %s: %d spent keys are admitted again, %d denied as lost", rule, admitted, lost)
				}
			}
			if text := status(); !strings.Contains(text, "Healthy") {
				t.Errorf("snapshots are back:\n%s", text)
			}
		})
	}
}

// stopTogether stops all nodes at once, so that none hands over to the others, and waits for them.
func stopTogether(nodes []*process.Node) {
	var all sync.WaitGroup
	for _, n := range nodes {
		n.Signal(syscall.SIGTERM)
	}
	for _, n := range nodes {
		all.Go(func() { <-n.Done })
	}
	all.Wait()
}

// TestMissingSnapshot: a node that was killed before its first snapshot begins anew. One whose
// snapshot is gone, though its voter set is there, has lost its counters.
func TestMissingSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte(damagedRules), 0o600); err != nil {
		t.Fatal(err)
	}
	c := process.Config{Name: "n1", Rules: rules, Args: []string{"--data-dir", dir, "--snapshot-interval", "0"}}
	for _, gone := range []bool{false, true} {
		n := process.Start(t, c)
		if admitted, lost := spendKeys(t, n, "sync", 20); admitted != 40 || lost > 0 {
			t.Fatalf("%d keys are admitted at first, %d denied as lost", admitted, lost)
		}
		n.Kill()
		if gone {
			if err := os.Remove(filepath.Join(dir, "counters.snapshot")); err != nil {
				t.Fatal(err)
			}
		}
		n = process.Start(t, c)
		admitted, lost := spendKeys(t, n, "sync", 1)
		if gone && (admitted > 0 || lost != 40) || !gone && (admitted != 40 || lost > 0) {
			t.Errorf("its snapshot is gone %v: %d keys are admitted, %d denied as lost", gone, admitted, lost)
		}
		if line := logLine(n.Log.String(), "the snapshot is missing"); (line != "") != gone {
			t.Errorf("its snapshot is gone %v: the log says %q", gone, line)
		}
		n.Kill()
	}
}
