package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// runsOut waits for the end of a process that is not to run, and wants its exit code and parts of what it printed.
func runsOut(t *testing.T, n *process.Node, code int, want ...string) {
	t.Helper()
	select {
	case <-n.Done:
	case <-time.After(15 * time.Second):
		t.Fatal("it runs on")
	}
	if got := n.Cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	for _, text := range want {
		if !strings.Contains(n.Log.String(), text) {
			t.Errorf("no %q in: %s", text, n.Log.String())
		}
	}
}

// TestWrongStarts wants every wrong start to end at once with an error that names what is wrong.
func TestWrongStarts(t *testing.T) {
	t.Parallel()
	host := process.OwnHost()
	taken, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir, data := t.TempDir(), t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := file("bad.yaml", "domain: x\ndescriptors:\n  - key: a\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n")
	short, none := file("secret", "abc"), filepath.Join(dir, "none")
	process.Start(t, process.Config{Name: "y", Args: []string{"--data-dir", data}})
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"grpc port in use", []string{"--grpc-port", port}, 1, []string{"--grpc-port", port, "in use"}},
		{"http port in use", []string{"--http-port", port}, 1, []string{"--http-port", port, "in use"}},
		{"peer port in use", []string{"--peer-port", port}, 1, []string{"--peer-port", port, "in use"}},
		{"gossip port in use", []string{"--gossip-port", port}, 1, []string{"--gossip-port", port, "in use"}},
		{"metrics port in use", []string{"--metrics-addr", net.JoinHostPort(host, port)}, 1, []string{"--metrics-addr", port, "in use"}},
		{"bad rule", []string{"--rules", bad}, 1, []string{"bad.yaml:4", "fortnight"}},
		{"no rules", []string{"--rules", none}, 1, []string{"--rules", "none"}},
		{"short secret", []string{"--secret-file", short}, 1, []string{"--secret-file", "32"}},
		{"no secret", []string{"--secret-file", none}, 1, []string{"--secret-file", "none"}},
		{"data directory in use", []string{"--data-dir", data}, 1, []string{"--data-dir", data, "another process uses it"}},
		{"data directory a file", []string{"--data-dir", bad}, 1, []string{"--data-dir", bad, "not a directory"}},
		{"negative interval", []string{"--data-dir", dir, "--snapshot-interval", "-1s"}, 2, []string{"--snapshot-interval", "-1s"}},
		{"bad bind", []string{"--bind", "nowhere"}, 2, []string{"--bind", "nowhere"}},
		{"bad flag", []string{"--nonsense"}, 2, []string{"nonsense"}},
		{"bad duration", []string{"--check-timeout", "0s"}, 2, []string{"--check-timeout"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runsOut(t, process.Launch(t, process.Config{Name: "x", Host: host, Args: c.args}), c.code, c.want...)
		})
	}
}

// exhaust asks a node for each of the keys until it is denied or fails, and returns how many units were admitted by an owner.
func exhaust(n *process.Node, keys int) (admitted int) {
	for i := range keys {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			resp, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck(fmt.Sprint("founding-", i))}})
			cancel()
			if err != nil {
				break
			}
			if d := resp.Decisions[0]; d.Error != nil || !d.Allowed || d.Source == sluicev1.Source_SOURCE_SHARE {
				break
			}
			admitted++
		}
	}
	return admitted
}

// TestSeedRestarts is review finding B2: the seed, which has no --join, is restarted. It meets the others before it founds anything,
// and admits nothing of keys that are spent. A second process under the name of one that lives ends, and nobody misses the first.
func TestSeedRestarts(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	const keys = 6
	if exhaust(nodes[0], keys) == 0 {
		t.Fatal("nothing was admitted")
	}
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		nodes[0].Stop(end)
		nodes[0] = nodes[0].Same(process.Config{})
		again := 0
		for status := 0; status != http.StatusOK && nodes[0].Alive(); {
			again += exhaust(nodes[0], keys)
			status, _, _ = nodes[0].Get("/readyz")
		}
		again += exhaust(nodes[0], keys)
		if again > 0 {
			t.Errorf("after %v: %d units of spent keys were admitted again", end, again)
		}
		process.WaitAgreed(t, nodes, 10*time.Second)
		if s := nodes[0].Log.String(); strings.Contains(s, `members="[pod-1]"`) || strings.Contains(s, "members=[pod-1]") {
			t.Errorf("after %v the seed founded a cluster of its own:\n%s", end, s)
		}
	}
	runsOut(t, process.Launch(t, process.Config{Name: "pod-2", Join: []string{nodes[0].Gossip}}), 1, "pod-2", "name")
	process.WaitAgreed(t, nodes, process.Quiet)
	process.Eventually(t, process.Quiet, "nobody is missed", func() error {
		if lost := process.Total(nodes, "sluice_members_lost"); lost > 0 {
			return fmt.Errorf("%v are lost", lost)
		}
		return nil
	})
}

// waits wants a node to be alive and not ready, which is said why in its log and to probes, and to admit nothing.
func waits(t *testing.T, n *process.Node, why string) {
	t.Helper()
	n.WaitLog(why, 20*time.Second)
	if status, _, err := n.Get("/healthz"); err != nil || status != http.StatusOK {
		t.Errorf("%s: /healthz %d %v", n.Name, status, err)
	}
	for reason := range strings.SplitSeq(why, "; ") {
		if status, body, err := n.Get("/readyz"); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, reason) {
			t.Errorf("%s: /readyz %d %s %v", n.Name, status, body, err)
		}
	}
	if admitted := exhaust(n, 1); admitted > 0 {
		t.Errorf("%s admitted %d units before there is a cluster", n.Name, admitted)
	}
}

// TestColdStart starts three nodes whose names resolve to nothing that answers: none founds anything. When the third can be reached
// there is one cluster of three. A node whose only target does not answer waits for it, with others that it does not know.
func TestColdStart(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	alone := process.Launch(t, process.Config{Name: "pod-4", Join: []string{silent.Addr().String()}, Args: []string{"--join-timeout", "1s"}})
	hosts := []string{process.OwnHost(), process.OwnHost(), process.OwnHost()}
	join := []string{}
	for _, h := range hosts {
		join = append(join, h+":17463")
	}
	expect := []string{"--bootstrap-expect", "3", "--gossip-port", "17463", "--join-timeout", "1s"}
	start := func(i int) *process.Node {
		return process.Launch(t, process.Config{Name: "pod-" + strconv.Itoa(i+1), Host: hosts[i], Join: join, Args: expect})
	}
	nodes := []*process.Node{start(0), start(1)}
	for _, n := range nodes {
		const why = "waiting for 1 more node to bootstrap with: --bootstrap-expect is 3, have pod-1, pod-2; targets that do not answer: "
		waits(t, n, why+hosts[2])
	}
	waits(t, alone, "waiting to join a cluster: this node founds none; targets that do not answer: "+silent.Addr().String())
	nodes = append(nodes, start(2))
	for _, n := range nodes {
		n.WaitReady()
	}
	_, m := process.WaitAgreed(t, nodes, 10*time.Second)
	if m.VoterSet.Version != 1 || len(m.VoterSet.Members) != 3 {
		t.Errorf("founded %v", m.VoterSet)
	}
}

// TestPauseIsLogged stops a process for two seconds: it says itself that it did not run.
func TestPauseIsLogged(t *testing.T) {
	t.Parallel()
	n := process.Start(t, process.Config{Name: "paused"})
	n.Signal(syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	n.Signal(syscall.SIGCONT)
	n.WaitLog("this process did not run for ", 10*time.Second)
}
