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
func spendKeys(t *testing.T, n *node, rule string, units int64) (admitted, lost int) {
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
	resp, err := n.api().Check(ctx, req)
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
			config := nodeConfig{rules: rules, args: []string{"--data-dir", filepath.Join(dir, "{name}"), "--snapshot-interval", "1s"}}
			nodes := clusterOf(t, c.of, config)
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
				data, err := os.ReadFile(file(n.name))
				if err != nil {
					t.Fatal(err)
				}
				intact[n.name] = data
				if err := os.WriteFile(file(n.name), []byte(c.with), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			again := func(n *node) *node {
				next := config
				for _, other := range nodes {
					if other != n {
						next.join = append(next.join, other.gossip)
					}
				}
				return n.same(next)
			}
			for i, n := range nodes {
				nodes[i] = again(n)
			}
			for _, n := range nodes {
				n.waitReady()
			}
			for _, rule := range []string{"sync", "closed"} {
				admitted, lost := spendKeys(t, nodes[0], rule, 1)
				t.Logf("%s: %d spent keys are admitted again, %d denied as lost", rule, admitted, lost)
				if admitted > 0 || lost > 0 != c.lost {
					t.Errorf("%s: %d spent keys are admitted again, %d denied as lost", rule, admitted, lost)
				}
			}
			status := func() string {
				out, _ := exec.Command(binary, "status", "--addr", nodes[0].grpc).CombinedOutput()
				return string(out)
			}
			t.Logf("lost partitions %v, rejected %v\n%s", total(nodes, "sluice_partitions_lost_state"), total(nodes, "sluice_snapshots_rejected_total"), status())
			if why := "pod-1 started without its snapshot: damaged"; c.lost && !strings.Contains(status(), why) {
				t.Errorf("no %q in:\n%s", why, status())
			}
			if c.lost == (total(nodes, "sluice_partitions_lost_state") == 0) {
				t.Errorf("%v partitions count as lost", total(nodes, "sluice_partitions_lost_state"))
			}
			for i, n := range nodes[:c.damaged] {
				n.stop(syscall.SIGTERM)
				if err := os.WriteFile(file(n.name), intact[n.name], 0o600); err != nil {
					t.Fatal(err)
				}
				nodes[i] = again(n)
				nodes[i].waitReady()
			}
			eventually(t, 20*time.Second, "nothing is lost any more", func() error {
				if n := total(nodes, "sluice_partitions_lost_state"); n > 0 {
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
func stopTogether(nodes []*node) {
	var all sync.WaitGroup
	for _, n := range nodes {
		n.signal(syscall.SIGTERM)
	}
	for _, n := range nodes {
		all.Go(func() { <-n.done })
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
	c := nodeConfig{name: "n1", rules: rules, args: []string{"--data-dir", dir, "--snapshot-interval", "0"}}
	for _, gone := range []bool{false, true} {
		n := start(t, c)
		if admitted, lost := spendKeys(t, n, "sync", 20); admitted != 40 || lost > 0 {
			t.Fatalf("%d keys are admitted at first, %d denied as lost", admitted, lost)
		}
		n.kill()
		if gone {
			if err := os.Remove(filepath.Join(dir, "counters.snapshot")); err != nil {
				t.Fatal(err)
			}
		}
		n = start(t, c)
		admitted, lost := spendKeys(t, n, "sync", 1)
		if gone && (admitted > 0 || lost != 40) || !gone && (admitted != 40 || lost > 0) {
			t.Errorf("its snapshot is gone %v: %d keys are admitted, %d denied as lost", gone, admitted, lost)
		}
		if line := logLine(n.log.String(), "the snapshot is missing"); (line != "") != gone {
			t.Errorf("its snapshot is gone %v: the log says %q", gone, line)
		}
		n.kill()
	}
}
