package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// TestRegionPromote: keys are passed on to another region and back by hand, while callers want more than their limits. The counters go along:
// what is admitted in all is the limit, not more, nor much less, and no region is without decisions for long.
func TestRegionPromote(t *testing.T) {
	process.OnlyLong(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	const rules = `domain: shop
descriptors:
  - {key: a, scope: global, home: eu, limits: [{algorithm: fixed_window, count: 2_500, period: 24h}]}
  - {key: b, scope: global, home: eu, limits: [{algorithm: sliding_counter, count: 2_500, period: 24h}]}
  - {key: c, scope: global, home: eu, limits: [{algorithm: token_bucket, count: 1, burst: 2_500, period: 24h}]}
`
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFarRegions(t, path, 30*time.Millisecond, "eu", "us", "ap")
	f.waitStarted()
	type result struct {
		key      string
		admitted int64
		silent   time.Duration
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	results := make(chan result)
	callers := 0
	for _, nodes := range f.nodes {
		for _, n := range nodes {
			for _, key := range []string{"a", "b", "c"} {
				callers++
				go func() {
					admitted, silent := asks(ctx, n, key)
					results <- result{key, admitted, silent}
				}()
			}
		}
	}
	at := "eu"
	for _, to := range []string{"us", "eu"} {
		<-time.After(2 * time.Second)
		began := time.Now()
		if out, err := exec.Command(process.Binary, "regions", "promote", to, "--home", "eu", "--addr", f.nodes[at][0].GRPC).CombinedOutput(); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		f.waitDecides(12*time.Second, to, "eu")
		t.Logf("%s decides after %v", to, time.Since(began).Round(100*time.Millisecond))
		at = to
	}
	<-time.After(8 * time.Second)
	stop()
	sums, silent := map[string]int64{}, time.Duration(0)
	for range callers {
		r := <-results
		sums[r.key] += r.admitted
		silent = max(silent, r.silent)
	}
	t.Logf("%v admitted of 2500 each, no decision for %v at most", sums, silent.Round(10*time.Millisecond))
	for key, sum := range sums {
		if sum > 2500 || sum < 2300 {
			t.Errorf("%d admitted of %s; want 2500, or little less", sum, key)
		}
	}
	if silent > 10*time.Second {
		t.Errorf("no decision for %v", silent)
	}
}
