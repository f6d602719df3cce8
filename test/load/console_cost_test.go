package load

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

// TestConsoleCost measures what a watcher on each of three nodes costs: throughput with them over that without, in
// pairs of runs of which each time the other comes first. ROUNDS is the number of pairs (10), LOAD what `sluice bench` is told
// besides. It fails where the median is below 0.97: a machine's noise can hide 1 %, not 3.
func TestConsoleCost(t *testing.T) {
	rounds := 10
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil && n > 0 {
		rounds = n
	}
	nodes := process.Cluster(t, 3, process.RulesOf(t, "domain: bench\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 100000}\n"))
	bench := func() float64 {
		args := []string{"bench", "--addr", process.Target(nodes), "--limits", "rules", "--duration", "5s", "-o", "json"}
		out, err := exec.Command(process.Binary, append(args, strings.Fields(os.Getenv("LOAD"))...)...).Output()
		if err != nil {
			t.Fatalf("bench: %v", err)
		}
		var report struct {
			ChecksPerSecond float64 `json:"checks_per_second"`
		}
		if err := json.Unmarshal(out, &report); err != nil || report.ChecksPerSecond == 0 {
			t.Fatalf("bench: %v: %s", err, out)
		}
		return report.ChecksPerSecond
	}
	watched := func() float64 {
		ctx, cancel := context.WithCancel(t.Context())
		var watchers sync.WaitGroup
		defer watchers.Wait()
		defer cancel()
		var bytes [3]int64
		for i, n := range nodes {
			req, err := http.NewRequestWithContext(ctx, "GET", "http://localhost/console/api/watch", nil)
			if err != nil {
				t.Fatal(err)
			}
			way := n.Way()
			socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return way.Dial(ctx) }}
			defer socket.CloseIdleConnections()
			res, err := socket.RoundTrip(req)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("watch %s: %v %v", n.Name, res, err)
			}
			watchers.Go(func() {
				defer res.Body.Close()
				bytes[i], _ = io.Copy(io.Discard, res.Body) // until cancel
			})
		}
		rate := bench()
		cancel()
		watchers.Wait()
		for i, n := range bytes {
			if n < 1000 {
				t.Errorf("the watcher of n%d got %d bytes", i+1, n)
			}
		}
		return rate
	}
	bench() // the machine and the table warm up
	var ratios []float64
	for round := range rounds {
		var with, without float64
		if round%2 == 0 {
			without, with = bench(), watched()
		} else {
			with, without = watched(), bench()
		}
		ratios = append(ratios, with/without)
		t.Logf("%2d: without %.0f checks a second, with three watchers %.0f: %.4f", round+1, without, with, with/without)
	}
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	t.Logf("median %.4f, from %.4f to %.4f", median, ratios[0], ratios[len(ratios)-1])
	if median < 0.97 {
		t.Errorf("three watchers cost %.1f %%", 100*(1-median))
	}
}
