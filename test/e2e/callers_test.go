package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/bucket"
	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/audit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestTokensExchangedUnderLoad exchanges a token of a caller that asks three nodes by streams and by calls, while another
// with a token for another domain tries to reset its counters: no check fails, none is admitted above its limit, and
// every attempt of the other is rejected.
func TestTokensExchangedUnderLoad(t *testing.T) {
	t.Parallel()
	k := process.NewTokens(t)
	_, digestOne := k.Make("one")
	two, digestTwo := k.Make("two")
	thief, digestThief := k.Make("thief")
	k.Allow(digestThief, digestOne)
	one, err := os.ReadFile(filepath.Join(k.Dir, "one"))
	if err != nil {
		t.Fatal(err)
	}
	k.Write("mine", string(one))
	nodes := process.ClusterOf(t, 3, process.Config{
		Rules: process.RulesOf(t, "domain: rotate-sdk\ndescriptors:\n  - key: user\n    rate_limit: {count: 100000000, period: 1h}\n"),
		Args:  []string{"--callers", filepath.Join(k.Dir, "callers.yaml")},
		Token: thief, // which may look at the members
	})
	var targets []string
	for _, n := range nodes {
		targets = append(targets, n.GRPC)
	}
	source := sluice.TokenFile(filepath.Join(k.Dir, "mine"))
	ctx, over := context.WithCancel(context.Background())
	defer over()
	var load sync.WaitGroup
	defer load.Wait()
	var report *audit.Report
	var called atomic.Uint64
	load.Go(func() {
		var err error
		report, err = audit.Run(ctx, audit.Config{
			Targets: func() []string { return targets }, Domain: "rotate", Callers: 4, Rate: 500, Duration: 5 * time.Minute,
			Specs: []audit.Spec{{Keys: 100, Limit: bucket.Limit{
				Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 20, Period: time.Hour,
			}}},
			DialOptions: []grpc.DialOption{grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(source, false)), countCalls(&called)},
		})
		if err != nil {
			t.Error(err)
		}
	})
	sdk, err := sluice.New(strings.Join(targets, ","), sluice.WithToken(source), sluice.WithTimeout(20*time.Second), sluice.WithFailurePolicy(sluice.FailClosed()))
	if err != nil {
		t.Fatal(err)
	}
	defer sdk.Close()
	var asked, rejected atomic.Uint64
	for i := range 4 {
		load.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				<-tick.C
				d, err := sdk.Key("rotate-sdk", "user", fmt.Sprint(i, n%50)).Check(ctx, 1)
				if ctx.Err() == nil && (err != nil || !d.Allowed) {
					t.Errorf("SDK: %v by %v, %v", d, d.Source, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	text, err := os.ReadFile(thief)
	if err != nil {
		t.Fatal(err)
	}
	load.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		api := nodes[0].API()
		for ctx.Err() == nil {
			<-tick.C
			_, err := api.Check(context.Background(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
				Domain: "rotate", Descriptor_: []*sluicev1.Entry{{Key: "key", Value: "x"}}, Verb: sluicev1.Verb_VERB_RESET}}})
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("with a token for another domain: %v", err)
			}
			rejected.Add(1)
		}
	})

	inForce := func(n *process.Node) int { return strings.Count(n.Log.String(), ": new contents are in force") }
	step := func(change func()) {
		t.Helper()
		var before [3]int
		for i, n := range nodes {
			before[i] = inForce(n)
		}
		change()
		for i, n := range nodes {
			process.Eventually(t, 20*time.Second, n.Name+" has put it into force", func() error {
				if inForce(n) == before[i] {
					return fmt.Errorf("not yet")
				}
				return nil
			})
		}
	}
	was := asked.Load()
	wait := func() {
		t.Helper()
		process.Eventually(t, 10*time.Second, "asked on", func() error {
			if now := asked.Load(); now < was+200 {
				return fmt.Errorf("%d checks", now-was)
			}
			was = asked.Load()
			return nil
		})
	}
	wait()
	step(func() { k.Allow(digestThief, digestOne, digestTwo) })
	fresh, err := os.ReadFile(two)
	if err != nil {
		t.Fatal(err)
	}
	k.Write("mine", string(fresh))
	<-time.After(1100 * time.Millisecond) // a token is read again after a second
	wait()
	step(func() { k.Allow(digestThief, digestTwo) })
	wait()
	out, err := exec.Command(process.Binary, "members", "--addr", nodes[1].GRPC, "--token-file", filepath.Join(k.Dir, "one")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "does not know the token") {
		t.Errorf("with the token that was taken away: %v, %s", err, out)
	}
	process.Eventually(t, time.Minute, "enough has happened to say something", func() error { // 100 keys of 20
		if called.Load() < 2000 || rejected.Load() < 30 {
			return fmt.Errorf("%d calls, %d attempts rejected", called.Load(), rejected.Load())
		}
		return nil
	})
	over()
	load.Wait()
	t.Logf("%d checks by calls, %d by streams, %d attempts rejected; %d streams ended", report.Checks, asked.Load(), rejected.Load(), sdk.Stats().StreamsLost)
	exact(t, report, nodes)
	if report.Checks < 500 || report.AtLimit == 0 || rejected.Load() < 20 || sdk.Stats().StreamsLost == 0 {
		t.Errorf("too little has happened to say anything")
	}
	for _, n := range nodes {
		log := n.Log.String()
		for _, secret := range []string{string(one), string(text), string(fresh)} {
			if strings.Contains(log, strings.TrimSpace(secret)[10:30]) {
				t.Errorf("%s has logged a token", n.Name)
			}
		}
	}
	_, body, err := nodes[0].Get("/metrics")
	if err != nil || !strings.Contains(body, fmt.Sprintf(`sluice_callers_rejected_total{api="grpc",reason="not_granted"} %d`, rejected.Load())) {
		t.Errorf("%d rejections are not counted (%v)", rejected.Load(), err)
	}
}
