package main

import (
	"strings"
	"testing"
)

// TestBootstrapCommand: a node that waits in vain founds a cluster when it is told to, after a warning and a yes.
func TestBootstrapCommand(t *testing.T) {
	s := testConfig(t)
	s.BootstrapExpect = 3
	n := startNodeUnready(t, s)
	addr := n.grpc
	await(t, "waiting", func() bool {
		_, reasons := n.Ready()
		return strings.Contains(strings.Join(reasons, "; "), "waiting for 2 more nodes to bootstrap with: --bootstrap-expect is 3, have n1")
	})
	if code, out, errs := cliWith("no\n", "members", "bootstrap", "--addr", addr); code != exitUsage || out != "" || !strings.Contains(errs, "there are two clusters") ||
		!strings.Contains(errs, "nothing was done") {
		t.Errorf("without a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cliWith("yes\n", "members", "bootstrap", "--addr", addr); code != 0 || !strings.Contains(out, "founded a new cluster\nvoter set: n1 (version 1") {
		t.Errorf("with a yes: %d %s %s", code, out, errs)
	}
	await(t, "ready", func() bool { ok, _ := n.Ready(); return ok })
	if code, _, errs := cli("members", "bootstrap", "--yes", "--addr", addr); code != exitDenied || !strings.Contains(errs, "this node has quorum") {
		t.Errorf("with quorum: %d %s", code, errs)
	}
}
