package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestScaleOutAndIn grows a cluster from 3 to 7 and on to 12 nodes and shrinks
// it to 3 again: after each change all agree on members and ring.
func TestScaleOutAndIn(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	grow := func(to int) {
		var added []*process.Node
		for i := len(nodes) + 1; i <= to; i++ {
			added = append(added, process.Launch(t, process.Config{
				Name: fmt.Sprintf("pod-%d", i), Join: []string{nodes[0].Gossip, nodes[1].Gossip},
			}))
		}
		for _, n := range added {
			n.WaitReady()
		}
		nodes = append(nodes, added...)
		took, m := process.WaitAgreed(t, nodes, process.Quiet)
		t.Logf("%d nodes agree %v after the last is ready", to, took.Round(time.Millisecond))
		logSpread(t, m)
	}
	grow(7)
	_, m := process.WaitAgreed(t, nodes, process.Quiet)
	mean := float64(m.Partitions) / 7
	for _, member := range m.Members {
		if off := float64(member.Partitions)/mean - 1; off > 0.15 || off < -0.15 {
			t.Errorf("%s owns %d partitions, %.0f %% off even", member.Name, member.Partitions, 100*off)
		}
	}
	grow(12)
	for len(nodes) > 3 {
		last, before := nodes[len(nodes)-1], process.Pauses(nodes)
		took, code := last.Stop(syscall.SIGTERM)
		ran := process.Pauses(nodes) == before
		nodes = nodes[:len(nodes)-1]
		if code != 0 || took > 5*time.Second && ran {
			t.Errorf("%s: exit code %d after %v", last.Name, code, took)
		}
	}
	took, m := process.WaitAgreed(t, nodes, process.Quiet)
	t.Logf("3 nodes agree %v after the last has left", took.Round(time.Millisecond))
	logSpread(t, m)
}

func logSpread(t *testing.T, m *adminv1alpha1.MembersResponse) {
	t.Helper()
	var b strings.Builder
	serving := 0
	for _, member := range m.Members {
		if member.State == "serving" {
			serving++
		}
	}
	mean := float64(m.Partitions) / float64(serving)
	for _, member := range m.Members {
		fmt.Fprintf(&b, "\n%8s %4d %.2f", member.Name, member.Partitions, float64(member.Partitions)/mean)
	}
	t.Logf("partitions per node, and as a ratio to even:%s", b.String())
}

// TestCrashAndReturn kills a node and starts it again under its name at another
// address, once at once and once after the others have noticed.
func TestCrashAndReturn(t *testing.T) {
	t.Parallel()
	for _, noticed := range []bool{false, true} {
		t.Run(fmt.Sprintf("noticed=%v", noticed), func(t *testing.T) {
			nodes := process.Cluster(t, 3, "")
			old := nodes[2]
			old.Kill()
			if noticed {
				took, _ := process.WaitAgreed(t, nodes[:2], process.Quiet)
				t.Logf("the others agree %v after the kill", took.Round(time.Millisecond))
			}
			// On another address too, where loopback is a whole network.
			nodes[2] = process.Start(t, process.Config{Name: old.Name, Join: []string{nodes[0].Gossip}})
			took, _ := process.WaitAgreed(t, nodes, process.Quiet)
			t.Logf("all agree %v after it is ready again", took.Round(time.Millisecond))
		})
	}
}

// TestPausedNodeReturns stops a process for longer than the others wait for it.
func TestPausedNodeReturns(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	nodes[2].Signal(syscall.SIGSTOP)
	process.WaitAgreed(t, nodes[:2], 2*process.Quiet)
	nodes[2].Signal(syscall.SIGCONT)
	took, _ := process.WaitAgreed(t, nodes, 2*process.Quiet)
	t.Logf("all agree %v after the node goes on", took.Round(time.Millisecond))
}

// TestSilentJoinTarget starts a node whose only target does not answer: it is alive, says so, and is never ready, for it may be one
// of a cluster that it does not reach.
func TestSilentJoinTarget(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	n := process.Launch(t, process.Config{Name: "pod-1", Join: []string{silent.Addr().String()}, Args: []string{"--join-timeout", "1s"}})
	n.WaitLog("waiting to join a cluster: this node founds none; targets that do not answer: "+silent.Addr().String(), 20*time.Second)
	if status, body, err := n.Get("/readyz"); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, silent.Addr().String()) {
		t.Errorf("/readyz: %d %s %v", status, body, err)
	}
	if status, _, err := n.Get("/healthz"); err != nil || status != http.StatusOK {
		t.Errorf("/healthz: %d %v", status, err)
	}
}

// TestAloneSoon wants a node without targets to serve when it has given members that may know it time to meet it, which is some two seconds.
func TestAloneSoon(t *testing.T) {
	t.Parallel()
	// A machine that does other things may be slow to start a process now and then; a node that waits for others waits each time.
	var took []time.Duration
	for range 5 {
		began := time.Now()
		process.Start(t, process.Config{Name: "pod-1"}).Kill()
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	if took[0] < 2*time.Second || took[2] > 3500*time.Millisecond {
		t.Errorf("ready after %v, want 2 s at least and under 3.5 s for most", took)
	}
}

// TestDuplicateName wants the second living node of a name to end with an error
// that says so, and the first to go on.
func TestDuplicateName(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 2, "")
	twin := process.Launch(t, process.Config{Name: "pod-2", Join: []string{nodes[0].Gossip}})
	select {
	case <-twin.Done:
	case <-time.After(15 * time.Second):
		t.Fatal("the second pod-2 runs on")
	}
	if code := twin.Cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if log := twin.Log.String(); !strings.Contains(log, "pod-2") || !strings.Contains(log, "name") {
		t.Errorf("its log does not name the trouble:\n%s", log)
	}
	process.WaitAgreed(t, nodes, process.Quiet)
	for _, n := range nodes {
		process.Eventually(t, process.Quiet, n.Name+" misses nobody", func() error {
			_, metrics, err := process.Get("http://" + n.HTTP + "/metrics")
			if err == nil && !strings.Contains(metrics, "\nsluice_members_lost 0\n") {
				err = errors.New("sluice_members_lost is not 0")
			}
			return err
		})
	}
}
