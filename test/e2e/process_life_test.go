package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestSignalsEndQuickly ends nodes under load with both signals.
func TestSignalsEndQuickly(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			nodes := process.Cluster(t, 3, "")
			ctx, cancel := context.WithCancel(context.Background())
			var load sync.WaitGroup
			for i := range 16 {
				api := nodes[i%3].API()
				load.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck(fmt.Sprintf("k%d", n%100))}})
					}
				})
			}
			for _, n := range nodes {
				took, code := n.Stop(s)
				t.Logf("%s: exit code %d after %v", n.Name, code, took.Round(time.Millisecond))
				if code != 0 || took > 5*time.Second {
					t.Errorf("%s: exit code %d after %v, want 0 within 5 s\n%s", n.Name, code, took, n.Log.Tail(2000))
				}
			}
			cancel()
			load.Wait()
		})
	}
}

// TestGarbageOnThePorts sends noise to every port and wants the cluster to go on.
func TestGarbageOnThePorts(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 2, "")
	noise := make([]byte, 64<<10)
	rand.Read(noise)
	for _, addr := range []string{nodes[0].Peer, nodes[0].Gossip, nodes[0].GRPC, nodes[0].HTTP} {
		for _, size := range []int{1, 100, len(noise)} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			conn.Write(noise[:size]) // the other side may close early
			conn.Close()
		}
	}
	udp, err := net.Dial("udp", nodes[0].Gossip)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for size := 1; size < 1400; size += 97 {
		udp.Write(noise[:size])
	}
	process.WaitAgreed(t, nodes, process.Quiet)
	nodes[0].WaitLog("is not gossip", process.Quiet)
	for _, n := range nodes {
		resp, err := n.API().Check(context.Background(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck("noise")}})
		if err != nil || !resp.Decisions[0].Allowed {
			t.Errorf("%s: %v %v", n.Name, resp, err)
		}
	}
}

// TestWrongStarts wants every wrong start to end at once with an error that
// names what is wrong.
func TestWrongStarts(t *testing.T) {
	host := process.OwnHost()
	taken, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("domain: x\ndescriptors:\n  - key: a\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(dir, "secret")
	if err := os.WriteFile(short, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
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
		{"no rules", []string{"--rules", filepath.Join(dir, "none")}, 1, []string{"--rules", "none"}},
		{"short secret", []string{"--secret-file", short}, 1, []string{"--secret-file", "32"}},
		{"no secret", []string{"--secret-file", filepath.Join(dir, "none")}, 1, []string{"--secret-file", "none"}},
		{"bad bind", []string{"--bind", "nowhere"}, 2, []string{"--bind", "nowhere"}},
		{"bad flag", []string{"--nonsense"}, 2, []string{"nonsense"}},
		{"bad duration", []string{"--check-timeout", "0s"}, 2, []string{"--check-timeout"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := process.Launch(t, process.Config{Name: "x", Host: host, Args: c.args})
			select {
			case <-n.Done:
			case <-time.After(10 * time.Second):
				t.Fatal("it runs on")
			}
			if code := n.Cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(n.Log.String(), want) {
					t.Errorf("no %q in: %s", want, n.Log.String())
				}
			}
		})
	}
}

// TestPauseIsLogged stops a process for two seconds: it says itself that it did not run.
func TestPauseIsLogged(t *testing.T) {
	t.Parallel()
	n := process.Start(t, process.Config{Name: "paused"})
	n.Signal(syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	n.Signal(syscall.SIGCONT)
	process.Eventually(t, 10*time.Second, "the log tells of the pause", func() error {
		if !strings.Contains(n.Log.String(), "this process did not run for ") {
			return errors.New(n.Log.Tail(500))
		}
		return nil
	})
}
