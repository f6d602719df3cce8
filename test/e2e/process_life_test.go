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
)

// TestSignalsEndQuickly ends nodes under load with both signals.
func TestSignalsEndQuickly(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			nodes := cluster(t, 3, "")
			ctx, cancel := context.WithCancel(context.Background())
			var load sync.WaitGroup
			for i := range 16 {
				api := nodes[i%3].api()
				load.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{inlineCheck(fmt.Sprintf("k%d", n%100))}})
					}
				})
			}
			for _, n := range nodes {
				took, code := n.stop(s)
				t.Logf("%s: exit code %d after %v", n.name, code, took.Round(time.Millisecond))
				if code != 0 || took > 5*time.Second {
					t.Errorf("%s: exit code %d after %v, want 0 within 5 s\n%s", n.name, code, took, n.log.tail(2000))
				}
			}
			cancel()
			load.Wait()
		})
	}
}

// inlineCheck asks for one unit of key, 10 an hour.
func inlineCheck(key string) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "e2e", Descriptor_: []*sluicev1.Entry{{Key: "key", Value: key}},
		Limits: []*sluicev1.Limit{{
			Algorithm: sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET, Count: 10, PeriodNs: int64(time.Hour),
		}},
	}
}

// TestGarbageOnThePorts sends noise to every port and wants the cluster to go on.
func TestGarbageOnThePorts(t *testing.T) {
	t.Parallel()
	nodes := cluster(t, 2, "")
	noise := make([]byte, 64<<10)
	rand.Read(noise)
	for _, addr := range []string{nodes[0].peer, nodes[0].gossip, nodes[0].grpc, nodes[0].http} {
		for _, size := range []int{1, 100, len(noise)} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			conn.Write(noise[:size]) // the other side may close early
			conn.Close()
		}
	}
	udp, err := net.Dial("udp", nodes[0].gossip)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for size := 1; size < 1400; size += 97 {
		udp.Write(noise[:size])
	}
	waitAgreed(t, nodes, quiet)
	nodes[0].waitLog("is not gossip", quiet)
	for _, n := range nodes {
		resp, err := n.api().Check(context.Background(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{inlineCheck("noise")}})
		if err != nil || !resp.Decisions[0].Allowed {
			t.Errorf("%s: %v %v", n.name, resp, err)
		}
	}
}

// TestWrongStarts wants every wrong start to end at once with an error that
// names what is wrong.
func TestWrongStarts(t *testing.T) {
	host := ownHost()
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
			n := launch(t, nodeConfig{name: "x", host: host, args: c.args})
			select {
			case <-n.done:
			case <-time.After(10 * time.Second):
				t.Fatal("it runs on")
			}
			if code := n.cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(n.log.String(), want) {
					t.Errorf("no %q in: %s", want, n.log.String())
				}
			}
		})
	}
}

// TestPauseIsLogged stops a process for two seconds: it says itself that it did not run.
func TestPauseIsLogged(t *testing.T) {
	t.Parallel()
	n := start(t, nodeConfig{name: "paused"})
	n.signal(syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	n.signal(syscall.SIGCONT)
	eventually(t, 10*time.Second, "the log tells of the pause", func() error {
		if !strings.Contains(n.log.String(), "this process did not run for ") {
			return errors.New(n.log.tail(500))
		}
		return nil
	})
}
