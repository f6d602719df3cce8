package e2e

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/test/process"
)

// TestKeysMove: three regions of two nodes, 60 ms apart. A key that is asked in one region only leaves no request to another region 3 s
// later, and follows the demand when that flips. Nothing is admitted beyond the limit, and nearly all of it is.
func TestKeysMove(t *testing.T) {
	process.OnlyLong(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	const text = "domain: shop\ndescriptors:\n  - {key: window, scope: global, home: auto, limits: [{algorithm: fixed_window, count: 8000, period: 12h}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFarRegions(t, path, 30*time.Millisecond, "eu", "us", "ap")
	f.waitStarted()
	var admitted, stop atomic.Int64
	clients := map[string]*sluice.Client{}
	for region, nodes := range f.nodes {
		c, err := sluice.New(nodes[0].GRPC+","+nodes[1].GRPC, sluice.WithFailurePolicy(sluice.FailClosed()), sluice.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[region] = c
	}
	ask := func(region string, pause time.Duration) {
		for ticker := time.NewTicker(pause); stop.Load() == 0; <-ticker.C {
			d, err := clients[region].Key("shop", "window", "all").Check(t.Context(), 1)
			if err != nil {
				t.Errorf("%s: %v", region, err)
				return
			}
			if d.Allowed {
				admitted.Add(1)
			}
		}
	}
	// requests are checks and requests for leases that the region has sent to others.
	requests := func(region string) (sum float64) {
		for _, n := range f.nodes[region] {
			for _, name := range []string{`sluice_region_checks_total{by="home"}`, "sluice_region_lease_requests_total"} {
				sum += n.Metric(name)
			}
		}
		return sum
	}
	phase := func(d time.Duration, every map[string]time.Duration) {
		stop.Store(0)
		var all sync.WaitGroup
		for region, pause := range every {
			for range 4 {
				all.Go(func() { ask(region, pause) })
			}
		}
		<-time.After(d)
		stop.Store(1)
		all.Wait()
	}
	for _, region := range []string{"eu", "us", "ap"} {
		only := map[string]time.Duration{region: 20 * time.Millisecond}
		phase(12*time.Second, only) // a key stays for 10 s after a move
		before := requests(region)
		phase(3*time.Second, only)
		t.Logf("%s: %d admitted, %v requests to other regions", region, admitted.Load(), requests(region)-before)
		if n := requests(region) - before; n != 0 {
			t.Errorf("%v requests left region %s, which alone asks for the key", n, region)
		}
	}
	for _, often := range []string{"us", "eu"} {
		every := map[string]time.Duration{"eu": 200 * time.Millisecond, "us": 200 * time.Millisecond, "ap": 200 * time.Millisecond}
		every[often] = 10 * time.Millisecond
		phase(12*time.Second, every)
		t.Logf("mostly %s: %d admitted", often, admitted.Load())
	}
	if n := admitted.Load(); n > 8000 || n < 7600 {
		t.Errorf("%d admitted, want 95 to 100 %% of 8000", n)
	}
}
