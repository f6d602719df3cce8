package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// exact fails t unless r has no errors and no limit was exceeded, and each was used up but for checks that nodes sent to each other
// and whose response was lost: these may have been charged twice (docs/internals/consistency.md).
func exact(t *testing.T, r *audit.Report, nodes []*process.Node) {
	t.Helper()
	twice := int64(process.Total(nodes, "sluice_forward_ambiguous_total"))
	if r.FinalErrors > 0 || r.Over.Units > 0 || r.Under.Units > twice {
		t.Errorf("%d errors %v, over quota %+v, under %+v, of which %d may have been charged twice: %+v",
			r.FinalErrors, r.Errors, r.Over, r.Under, twice, r.Violations)
	}
}

// TestSnapshotOfOne restarts a node that is alone, twice: its counters are there, as old as they are. Then its disk fails: it
// goes on, counts that and says so.
func TestSnapshotOfOne(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	c := process.Config{Name: "n1", Args: []string{"--data-dir", dir}}
	n := process.Start(t, c)
	// The time of the first and of the last charge, each between two readings of the clock.
	first := time.Now()
	for range 90 {
		if d := n.Spend(sluicev1.Verb_VERB_CHECK, "k"); !d.Allowed {
			t.Fatalf("denied: %v", d)
		}
	}
	last := time.Now()
	for range 2 {
		if took, code := n.Stop(syscall.SIGTERM); code != 0 || took > 5*time.Second {
			t.Fatalf("exit code %d after %v", code, took)
		}
		c.Args = []string{"--data-dir", dir, "--snapshot-interval", "100ms"}
		n = process.Start(t, c)
		before := time.Now()
		d := n.Spend(sluicev1.Verb_VERB_READ, "k")
		least, most := 10+int64(before.Sub(last)/time.Second), 11+int64(time.Since(first)/time.Second)
		if d.GetRemaining() < least || d.GetRemaining() > most {
			t.Errorf("%d remain, want %d to %d", d.GetRemaining(), least, most)
		}
		restored, fresh := n.Metric("sluice_snapshot_restored_counters"), n.Metric("sluice_takeovers_fresh_total")
		if restored != 1 || fresh != 0 {
			t.Errorf("%v counters were read, %v partitions begin afresh", restored, fresh)
		}
	}
	// A directory with something in it, where the next one is to be put. The node may be faster with another file.
	process.Eventually(t, 5*time.Second, "a directory is in its place", func() error {
		file := filepath.Join(dir, "counters.snapshot")
		return errors.Join(os.RemoveAll(file), os.MkdirAll(filepath.Join(file, "x"), 0o700))
	})
	n.WaitLog("no snapshot was written", 5*time.Second)
	if n.Metric("sluice_snapshots_failed_total") == 0 {
		t.Error("it is not counted")
	}
	if d := n.Spend(sluicev1.Verb_VERB_CHECK, "k"); !d.Allowed {
		t.Errorf("%v", d)
	}
	if _, code := n.Stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// damagedRules have a rule of each kind that denies lost counters.
const damagedRules = `
domain: shop
descriptors:
  - {key: sync, limits: [{algorithm: fixed_window, count: 20, period: 1000d}], replication: sync}
  - {key: closed, limits: [{algorithm: fixed_window, count: 20, period: 1000d}], on_failure: closed, on_partition: closed}
`

// spendKeys asks n for units of each of the keys of both rules at once, and returns of how many keys a
// unit was admitted, and how many answers came from counters that are lost.
func spendKeys(t *testing.T, n *process.Node, units int64) (admitted, lost int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req := &sluicev1.CheckRequest{}
	for i := range damagedKeys {
		key := []string{"sync", "closed"}[i%2]
		req.Checks = append(req.Checks, &sluicev1.Check{Domain: "shop", Descriptor_: process.Entries(key, fmt.Sprint(i)), Cost: &units})
	}
	resp, err := n.API().Check(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range resp.Decisions {
		if d.Error != nil {
			t.Error(d)
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

const damagedKeys = 80

// TestDamagedSnapshots: all nodes are killed when keys are spent, and the snapshots of two of three are damaged meanwhile. These are
// set aside, no spent key is admitted again, the status says why keys are denied, and the denials end when the snapshots are put back.
func TestDamagedSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := process.Config{
		Rules: process.RulesOf(t, damagedRules), Args: []string{"--data-dir", filepath.Join(dir, "{name}"), "--snapshot-interval", "1s"},
	}
	nodes := process.ClusterOf(t, 3, config)
	process.Eventually(t, 10*time.Second, "each partition has a replica", func() error {
		if n := process.Total(nodes, "sluice_partitions_unprotected"); n > 0 {
			return fmt.Errorf("%v have none", n)
		}
		return nil
	})
	if admitted, _ := spendKeys(t, nodes[0], 20); admitted != damagedKeys {
		t.Fatalf("%d keys were admitted at first", admitted)
	}
	for _, n := range nodes {
		before := n.Metric("sluice_snapshots_total")
		process.Eventually(t, 10*time.Second, n.Name+" has written a snapshot that was begun since", func() error {
			if now := n.Metric("sluice_snapshots_total"); now < before+2 {
				return fmt.Errorf("%v snapshots, %v before", now, before)
			}
			return nil
		})
	}
	for _, n := range nodes {
		n.Kill() // so that none hands over to the others
	}
	file := func(i int) string { return filepath.Join(dir, nodes[i].Name, "counters.snapshot") }
	put := func(i int, data []byte) {
		if err := os.WriteFile(file(i), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again := func(i int) {
		next := config
		for j, other := range nodes {
			if j != i {
				next.Join = append(next.Join, other.Gossip)
			}
		}
		nodes[i] = nodes[i].Same(next)
	}
	var intact [2][]byte
	for i := range intact {
		data, err := os.ReadFile(file(i))
		if err != nil {
			t.Fatal(err)
		}
		intact[i] = data
		put(i, []byte("garbage"))
	}
	for i := range nodes {
		again(i)
	}
	status := func() string {
		_, out := command("status", "--addr", nodes[0].GRPC)
		return out
	}
	for i, n := range nodes {
		n.WaitReady()
		aside, err := filepath.Glob(file(i) + ".rejected-*")
		if err != nil || len(aside) != []int{1, 1, 0}[i] {
			t.Fatalf("%s has set aside %v, %v", n.Name, aside, err)
		}
		if log := n.Log.String(); i < 2 && !(strings.Contains(log, "reason=damaged") && strings.Contains(log, aside[0])) {
			t.Errorf("%s does not say that it has set aside %v:\n%s", n.Name, aside, log)
		}
	}
	if admitted, lost := spendKeys(t, nodes[0], 1); admitted > 0 || lost == 0 {
		t.Errorf("%d spent keys are admitted again, %d denied as lost", admitted, lost)
	}
	if why := "pod-1 started without its snapshot: damaged"; !strings.Contains(status(), why) {
		t.Errorf("no %q in:\n%s", why, status())
	}
	for i, data := range intact {
		nodes[i].Stop(syscall.SIGTERM)
		put(i, data)
		again(i)
		nodes[i].WaitReady()
	}
	process.Eventually(t, 20*time.Second, "nothing is lost any more", func() error {
		if n := process.Total(nodes, "sluice_partitions_lost_state"); n > 0 {
			return fmt.Errorf("%v partitions are", n)
		}
		return nil
	})
	if admitted, lost := spendKeys(t, nodes[0], 1); admitted > 0 || lost > 0 {
		t.Errorf("snapshots are back: %d spent keys are admitted again, %d denied as lost", admitted, lost)
	}
	if text := status(); !strings.Contains(text, "Healthy") {
		t.Errorf("snapshots are back:\n%s", text)
	}
}
