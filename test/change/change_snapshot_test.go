package change

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// newKept is newFleet with a data directory for each node. Checks wait for as long as a whole
// cluster may take to be back.
func newKept(t *testing.T, size int, args ...string) *fleet {
	t.Helper()
	return newKeptOf(t, "", size, args...)
}

// newKeptOf is newKept of nodes that run binary, the program under test if it is empty.
func newKeptOf(t *testing.T, binary string, size int, args ...string) *fleet {
	t.Helper()
	f := newFleetOf(t, binary, size, "", append(args, "--data-dir", filepath.Join(t.TempDir(), "{name}"))...)
	f.answerWithin = time.Minute
	return f
}

// end ends all nodes at once, and waits for them. Nobody is asked from then on.
func (f *fleet) end(s syscall.Signal) (names []string) {
	f.t.Helper()
	var all sync.WaitGroup
	for _, n := range f.nodes() {
		names = append(names, n.Name)
		all.Go(func() {
			n.Signal(s)
			f.discharge(n)
			<-n.Done
			if code := n.Cmd.ProcessState.ExitCode(); s == syscall.SIGTERM && code != 0 {
				f.t.Errorf("%s ended with %d:\n%s", n.Name, code, n.Log.Tail(3000))
			}
		})
	}
	all.Wait()
	return names
}

// revive starts nodes of these names at once, and has them asked when all are ready.
func (f *fleet) revive(names []string) {
	f.t.Helper()
	var fresh []*process.Node
	var join []string
	began := time.Now()
	for _, name := range names {
		n := process.Launch(f.t, process.Config{Name: name, Join: join, Rules: f.rule, Args: f.args, Binary: f.binary})
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
	f := newKept(t, 3)
	f.judge(f.watch(f.wholeRestart), time.Minute, 0)
}

// wholeRestart stops all nodes while nobody asks them, and starts them again.
func (f *fleet) wholeRestart() {
	f.t.Helper()
	nodes := f.nodes()
	for _, n := range nodes {
		f.discharge(n)
	}
	pass(500 * time.Millisecond) // calls under way end
	f.mu.Lock()
	f.mu.alive = nodes
	f.mu.Unlock()
	f.revive(f.end(syscall.SIGTERM))
}

// All nodes are stopped while they are asked: what owners admitted before stays admitted.
func TestChangeWholeRestartUnderLoad(t *testing.T) {
	f := newKept(t, 3)
	found := f.watch(func() { f.revive(f.end(syscall.SIGTERM)) })
	if found.small.OverByOwners.Units > 0 {
		t.Errorf("owners admitted %d above the limits of %d keys: %+v", found.small.OverByOwners.Units, found.small.OverByOwners.Keys, found.small.Violations)
	}
	// Who is asked last may answer by itself, when the owner has gone.
	f.judge(found, time.Minute, found.small.Over.Units)
}

// All nodes are killed at once: what was admitted after the last snapshots is forgotten.
func TestChangeWholeCrash(t *testing.T) {
	const interval = time.Second
	f := newKept(t, 3, "--snapshot-interval", interval.String())
	var at time.Time
	found := f.watch(func() {
		at = time.Now()
		f.revive(f.end(syscall.SIGKILL))
	})
	// A snapshot is whole some time after it was begun.
	lost := admittedIn(t, found.log, at.Add(-interval-100*time.Millisecond), at)
	t.Logf("admitted in the %v before: %d", interval+100*time.Millisecond, lost)
	f.judge(found, time.Minute, lost)
}

// Nodes are restarted one after the other: what one hands over does not come back with its
// snapshot.
func TestChangeRollingRestartKept(t *testing.T) {
	f := newKept(t, 3, "--snapshot-interval", "1s")
	f.judge(f.watch(func() {
		for _, n := range f.nodes() {
			f.restart(n)
		}
	}), plannedGap, 0)
}

// admittedIn counts what was admitted between two times, or answered later.
func admittedIn(t *testing.T, log string, from, to time.Time) (units int64) {
	t.Helper()
	file, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	err = audit.ReadLog(file, func(c audit.Check) error {
		if c.Decision == "allowed" && c.Answered > from.UnixNano() && c.Sent < to.UnixNano() {
			units++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return units
}
