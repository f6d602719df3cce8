package main

import (
	"strings"
	"testing"
)

// TestAcceptLossCommand: it says what it does, asks before, and tells how many partitions it was about.
func TestAcceptLossCommand(t *testing.T) {
	n := startNode(t, testConfig(t))
	addr := n.grpc
	if code, out, errs := cliWith("no\n", "members", "accept-loss", "--addr", addr); code != exitUsage || out != "" ||
		!strings.Contains(errs, "every limit may be admitted once more") || !strings.Contains(errs, "nothing was done") {
		t.Errorf("without a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cliWith("yes\n", "members", "accept-loss", "--addr", addr); code != 0 || out != "accepted the loss of 0 partitions; told -\n" {
		t.Errorf("with a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cli("members", "accept-loss", "--yes", "-o", "json", "--addr", addr); code != 0 || out != "{\"partitions\":0,\"told\":[]}\n" {
		t.Errorf("as JSON: %d %s %s", code, out, errs)
	}
}
