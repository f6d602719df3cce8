package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// asks asks a node each 10 ms until ctx ends, and returns what was admitted and the longest time without a decision.
func asks(ctx context.Context, n *process.Node, key string) (admitted int64, silent time.Duration) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return admitted, max(silent, time.Since(last))
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		r, err := n.API().Check(asking, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
			Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: key, Value: "all"}}, Cost: new(int64(1)),
		}}})
		cancel()
		if err != nil || len(r.GetDecisions()) != 1 || r.Decisions[0].Source == sluicev1.Source_SOURCE_CLOSED {
			continue
		}
		silent, last = max(silent, time.Since(last)), time.Now()
		if r.Decisions[0].Allowed {
			admitted++
		}
	}
}

// TestRegionTakeover: the home of keys is cut off for 20 s. Another region decides them within 10 s, the home does not beyond its leases, and
// both together admit at most twice the limit. When the cut heals, nothing is decided twice. By hand the home gets its keys back.
func TestRegionTakeover(t *testing.T) {
	process.OnlyLong(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(globalRules), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFarRegions(t, path, 30*time.Millisecond, "eu", "us", "ap")
	f.waitStarted()
	type result struct {
		admitted int64
		silent   time.Duration
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	results := map[string]chan result{}
	for r, nodes := range f.nodes {
		results[r] = make(chan result, 1)
		go func() {
			admitted, silent := asks(ctx, nodes[0], "window")
			results[r] <- result{admitted, silent}
		}()
	}
	f.cut("eu", true)
	began, by := time.Now(), ""
	process.Eventually(t, 12*time.Second, "another region decides the keys of eu", func() error {
		for _, r := range []string{"us", "ap"} {
			if decides, err := decidesOf(f.nodes[r][1]); err == nil && strings.Contains(strings.Join(decides, " "), "eu") {
				by = r
				return nil
			}
		}
		return context.DeadlineExceeded
	})
	t.Logf("%s decides the keys of eu %v after the cut", by, time.Since(began).Round(100*time.Millisecond))
	if decides, err := decidesOf(f.nodes["eu"][0]); err != nil || len(decides) > 0 {
		t.Errorf("eu, which is cut off, decides the keys of %v: %v", decides, err)
	}
	<-time.After(20*time.Second - time.Since(began))
	f.cut("eu", false)
	f.wait(15*time.Second, "the region is linked again", func(string, string) string { return "linked" })
	f.waitDecides(5*time.Second, by, "eu")
	process.Eventually(t, 5*time.Second, "the region is in the set again", func() error {
		out, err := exec.Command(process.Binary, "regions", "promote", "eu", "--home", "eu", "--addr", f.nodes["eu"][0].GRPC).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "this region does not decide the keys of that region") {
			return fmt.Errorf("%s, %v", out, err)
		}
		return nil
	})
	process.Eventually(t, 5*time.Second, "the region that decides has it in the set too, and passes the keys on", func() error {
		out, err := exec.Command(process.Binary, "regions", "promote", "eu", "--home", "eu", "--addr", f.nodes[by][1].GRPC).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "no such region is in the set") {
			t.Fatalf("%s, %v", out, err)
		}
		return err
	})
	f.waitDecides(12*time.Second, "eu", "eu")
	out, _ := exec.Command(process.Binary, "regions", "--addr", f.nodes[by][0].GRPC).CombinedOutput()
	t.Logf("\n%s", out)
	stop()
	sum := int64(0)
	for r, c := range results {
		got := <-c
		sum += got.admitted
		t.Logf("%s: %d admitted, no decision for %v at most", r, got.admitted, got.silent.Round(10*time.Millisecond))
		if limit := 10 * time.Second; r != "eu" && got.silent > limit {
			t.Errorf("%s: no decision for %v; want %v at most", r, got.silent, limit)
		}
	}
	if sum > 3*10_000 {
		t.Errorf("%d admitted; want at most a limit for each of three regions that decided", sum)
	}
}
