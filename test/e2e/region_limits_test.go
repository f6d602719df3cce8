package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/test/process"
)

// globalRules have one limit each whose counters region eu has. The windows do not end while the test runs.
const globalRules = `domain: shop
descriptors:
  - {key: bucket, scope: global, home: eu, limits: [{algorithm: token_bucket, count: 1000, period: 1s}]}
  - {key: window, scope: global, home: eu, limits: [{algorithm: fixed_window, count: 10_000, period: 24h}]}
  - {key: sliding, scope: global, home: eu, limits: [{algorithm: sliding_counter, count: 10_000, period: 24h}]}
  - {key: eventual, scope: global, home: eu, consistency: eventual, limits: [{algorithm: fixed_window, count: 10_000, period: 24h}]}
`

// TestGlobalLimits: three regions of two nodes, 60 ms apart, in each of which callers want half of a limit or, for windows, more than
// it. Nothing is admitted beyond the limits, under eventual mode no more than the formula says, and, in make test-long, where no other work
// takes the processor, little is left unused, and nearly all checks are answered inside the region: 0.97 and more are used, and 0.5 % of
// the checks leave the region.
func TestGlobalLimits(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(globalRules), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFarRegions(t, path, 30*time.Millisecond, "eu", "us", "ap")
	f.wait(30*time.Second, "all regions are linked", func(string, string) string { return "linked" })
	f.waitDecides(20*time.Second, "eu", "eu")
	const (
		lasts   = 8 * time.Second
		callers = 8
		pause   = 16 * time.Millisecond // so 500 checks a second of each region and key
	)
	keys := []string{"bucket", "window", "sliding", "eventual"}
	admitted, asked := map[string]*atomic.Int64{}, map[string]*atomic.Int64{}
	for _, k := range keys {
		admitted[k], asked[k] = new(atomic.Int64), new(atomic.Int64)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	took := map[string][]time.Duration{} // by region
	began := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), began.Add(lasts))
	defer cancel()
	for region, nodes := range f.nodes {
		targets := nodes[0].GRPC + "," + nodes[1].GRPC
		c, err := sluice.New(targets, sluice.WithFailurePolicy(sluice.FailClosed()), sluice.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for _, k := range keys {
			for range callers {
				all.Go(func() {
					tick := time.NewTicker(pause)
					defer tick.Stop()
					var list []time.Duration
					for ctx.Err() == nil {
						start := time.Now()
						asked[k].Add(1)
						d, err := c.Key("shop", k, "all").Check(t.Context(), 1)
						list = append(list, time.Since(start))
						switch {
						case err != nil:
							t.Errorf("%s in %s: %v", k, region, err)
							return
						case d.Source == limit.SourceClosed:
							t.Errorf("%s in %s: no owner", k, region)
							return
						case d.Allowed:
							admitted[k].Add(1)
						}
						<-tick.C
					}
					mu.Lock()
					took[region] = append(took[region], list...)
					mu.Unlock()
				})
			}
		}
	}
	all.Wait()
	passed := time.Since(began)
	for _, k := range keys {
		most := int64(10_000)
		if k == "bucket" {
			most = 1000 + int64(passed.Seconds()*1000)
		}
		n, over := admitted[k].Load(), int64(0)
		if k == "eventual" { // (n − 1) · λ · (4 T + 3 d), and for packets and machines 10 ms
			over = int64(5 * 250 * (4*50 + 3*30 + 10) / 1000)
		}
		t.Logf("%s: %d of %d admitted, %.1f %%", k, n, most, 100*float64(n)/float64(most))
		if wanted := min(most, asked[k].Load()); n > most+over || process.Long() && float64(n) < 0.9*float64(wanted) {
			t.Errorf("%s: %d admitted; want 90 %% of %d, and no more than %d", k, n, wanted, most+over)
		}
	}
	checks, wide := 0, 0
	for region, nodes := range f.nodes {
		list := took[region]
		slices.Sort(list)
		checks += len(list)
		sent, leased := 0, 0
		for _, n := range nodes {
			_, body, err := n.Get("/metrics")
			if err != nil {
				t.Fatal(err)
			}
			for by, sum := range map[string]*int{"home": &sent, "lease": &leased} {
				_, value, _ := strings.Cut(body, fmt.Sprintf("\nsluice_region_checks_total{by=%q} ", by))
				value, _, _ = strings.Cut(value, "\n")
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				*sum += int(v)
			}
		}
		wide += sent
		t.Logf("%s: %d checks, %d answered from leases of the home, %d sent there; p50 %v, p99 %v", region, len(list), leased, sent, list[len(list)/2], list[len(list)*99/100])
	}
	if t.Logf("%d of %d checks crossed regions, %.2f %%", wide, checks, 100*float64(wide)/float64(checks)); process.Long() && wide*100 > 3*checks {
		t.Errorf("%d of %d checks were sent to another region; want 3 %% at most", wide, checks)
	}
}
