package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// TestRotateEverything exchanges the authority, all certificates, the gossip key, the callers' token and the rules of
// three nodes while checks flow, over connections that last and over new ones: none fails, none is admitted above
// its limit, counters outlive the rules' exchange, and nobody loses sight of anybody. Then a node restarts with what is
// new alone.
func TestRotateEverything(t *testing.T) {
	t.Parallel()
	v := process.NewVault(t)
	names := []string{"pod-1", "pod-2", "pod-3"}
	v.Write("ca", string(v.Before.PEM))
	v.Equip(v.Before, 24*time.Hour, names...)
	v.Show(v.Before)
	v.Keys(1)
	one, digestOne := v.Make("one")
	two, digestTwo := v.Make("two")
	_, nobody := v.Make("nobody")
	v.Allow(nobody, digestOne)
	v.Carry(one)
	v.Rules(1_000_001)
	config := process.Config{Args: v.Flags(), TLS: v.Caller(), Token: v.Token()}
	nodes := process.ClusterOf(t, 3, config)

	var fleet sync.Mutex // guards nodes
	targets := func() (list []string) {
		fleet.Lock()
		defer fleet.Unlock()
		for _, n := range nodes {
			list = append(list, n.GRPC)
		}
		return list
	}
	ctx, over := context.WithCancel(context.Background())
	defer over()
	var load sync.WaitGroup
	defer load.Wait()
	var report *audit.Report
	var asked atomic.Uint64
	load.Go(func() {
		var err error
		report, err = audit.Run(ctx, audit.Config{
			Targets: targets, Domain: "rotate", Rules: true, Callers: 8, Rate: 1000, Duration: 5 * time.Minute,
			Specs: []audit.Spec{{Keys: 300, Limit: bucket.Limit{
				Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 20, Period: time.Hour,
			}}},
			DialOptions: append(v.Dial(v.Caller(), v.Token()), countCalls(&asked)),
		})
		if err != nil {
			t.Error(err)
		}
	})
	var fresh, failed atomic.Uint64
	load.Go(func() {
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-tick.C
			fresh.Add(1)
			if _, err := v.Ask(nodes[i%2].GRPC, v.Caller(), v.Token()); err != nil { // these two run throughout
				failed.Add(1)
				t.Errorf("a new connection to %s: %v", nodes[i%2].Name, err)
			}
		}
	})

	inForce := func(n *process.Node) int { return strings.Count(n.Log.String(), ": new contents are in force") }
	step := func(files int, limit int64, change func()) {
		t.Helper()
		var before [3]int
		for i, n := range nodes {
			before[i] = inForce(n)
		}
		change()
		v.Rules(limit)
		for i, n := range nodes {
			process.Eventually(t, 20*time.Second, n.Name+" has put them into force", func() error {
				if got := inForce(n) - before[i]; got < files {
					return fmt.Errorf("%d of %d files", got, files)
				}
				if got, err := v.Ask(n.GRPC, v.Caller(), v.Token()); err != nil || got != limit {
					return fmt.Errorf("a limit of %d instead of %d, %v", got, limit, err)
				}
				return nil
			})
		}
	}
	// Files are those of the APIs, of the peers, the keyring, and the callers.
	step(4, 1_000_002, func() {
		v.Write("ca", string(v.Before.PEM)+string(v.After.PEM))
		v.Keys(1, 2)
		v.Allow(nobody, digestOne, digestTwo)
	})
	step(3, 1_000_003, func() {
		v.Equip(v.After, 30*time.Hour, names...)
		v.Keys(2, 1)
		v.Carry(two)
	})
	<-time.After(1100 * time.Millisecond) // callers read their token again after a second
	old := *v.Shows.Load()
	v.Show(v.After)
	step(4, 1_000_004, func() {
		v.Write("ca", string(v.After.PEM))
		v.Keys(2)
		v.Allow(nobody, digestTwo)
	})

	process.WaitAgreed(t, nodes, 10*time.Second)
	for _, n := range nodes {
		if lines := n.Log.String(); strings.Contains(lines, "member is gone") || strings.Contains(lines, "level=ERROR") {
			t.Errorf("%s has lost sight of a member, or found a fault", n.Name)
		}
		_, body, err := n.Get("/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`sluice_gossip_keys{primary="`, `sluice_secrets_stale{files="peer_tls"} 0`, `sluice_secrets_stale{files="tls"} 0`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: no %s", n.Name, want)
			}
		}
	}
	stale := v.Caller()
	stale.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &old, nil }
	if _, err := v.Ask(nodes[0].GRPC, stale, v.Token()); err == nil {
		t.Error("a certificate of the old authority is let in")
	}
	if _, err := v.Ask(nodes[0].GRPC, v.Caller(), one); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with the old token: %v", err)
	}

	// What is new alone is enough to leave and to join with.
	if took, code := nodes[2].Stop(syscall.SIGTERM); code != 0 || took > 5*time.Second {
		t.Errorf("%s ended with %d after %v", nodes[2].Name, code, took)
	}
	config.Name, config.Join = "pod-3", []string{nodes[0].Gossip}
	again := process.Start(t, config)
	fleet.Lock()
	nodes[2] = again
	fleet.Unlock()
	process.WaitAgreed(t, nodes, 10*time.Second)
	was := asked.Load()
	process.Eventually(t, time.Minute, "the load goes on with it, until it has said something", func() error { // 300 keys of 20
		if now := asked.Load(); now < max(6000, was+500) || fresh.Load() < 60 {
			return fmt.Errorf("%d checks, %d before, %d over new connections", now, was, fresh.Load())
		}
		return nil
	})
	over()
	load.Wait()
	for _, token := range []string{one, two} {
		text, err := os.ReadFile(token)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if strings.Contains(n.Log.String(), strings.TrimSpace(string(text))[10:30]) {
				t.Errorf("%s has logged a token", n.Name)
			}
		}
	}

	t.Logf("%d checks over lasting connections, %d denied, p99 %v, longest gap %v; %d over new ones",
		report.Checks, report.Denied, report.Latency.P99, report.LongestGap().Length, fresh.Load())
	exact(t, report, nodes)
	if report.Checks < 2000 || fresh.Load() < 50 || report.AtLimit == 0 {
		t.Errorf("too little load to say anything")
	}
}

// countCalls counts the calls that have ended.
func countCalls(n *atomic.Uint64) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		defer n.Add(1)
		return call(ctx, method, req, reply, conn, opts...)
	})
}
