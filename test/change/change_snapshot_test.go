package change

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// newKept is a fleet of three nodes, which run binary, with a data directory for each. Checks wait for as long as a whole
// cluster may take to be back.
func newKept(t *testing.T, binary string, args ...string) *fleet {
	t.Helper()
	f := newFleetOf(t, binary, 3, "", append(args, "--data-dir", filepath.Join(t.TempDir(), "{name}"))...)
	f.answerWithin = time.Minute
	return f
}

// wholeRestart stops all nodes at once while nobody asks them, and starts them again.
func (f *fleet) wholeRestart() {
	f.t.Helper()
	nodes := f.nodes()
	for _, n := range nodes {
		f.discharge(n)
	}
	pass(500 * time.Millisecond) // calls under way end
	for _, n := range nodes {
		n.Signal(syscall.SIGTERM)
	}
	var fresh []*process.Node
	var join []string
	for _, n := range nodes {
		<-n.Done
		if code := n.Cmd.ProcessState.ExitCode(); code != 0 {
			f.t.Errorf("%s ended with %d:\n%s", n.Name, code, n.Log.Tail(3000))
		}
	}
	began := time.Now()
	for _, n := range nodes {
		n := process.Launch(f.t, process.Config{Name: n.Name, Join: join, Rules: f.rule, Args: f.args, Binary: f.binary})
		join = append(join, n.Gossip)
		fresh = append(fresh, n)
	}
	f.enlist(fresh...)
	f.t.Logf("%d nodes are back after %v", len(fresh), time.Since(began).Round(time.Millisecond))
	for _, n := range fresh {
		if restored, fresh := n.Metric("sluice_snapshot_restored_counters"), n.Metric("sluice_takeovers_fresh_total"); restored == 0 || fresh > 0 {
			f.t.Errorf("%s has read %v counters, and %v partitions begin afresh", n.Name, restored, fresh)
		}
	}
}

// All nodes are stopped at once, and started again: nothing is forgotten.
func TestChangeWholeRestart(t *testing.T) {
	f := newKept(t, "")
	f.judge(f.watch(f.wholeRestart), time.Minute, 0)
}
