//go:build flood

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Every check is of a new key, as fast as the nodes take them: resident memory stays within 1.25 × --memory-limit,
// and keys of long standing keep their count. `make flood-test` runs it for FLOOD=5m; FLOOD_LIMIT (MiB) is
// smaller where that is too short to fill 256.

const (
	floodBatch  = 500
	floodHot    = 100 // keys of long standing
	floodQuota  = 50
	floodPause  = 100 * time.Millisecond // between two checks of each
	floodCaller = 4                      // for each node
)

func TestFloodOfUniqueKeys(t *testing.T) {
	limit := 256
	if text := os.Getenv("FLOOD_LIMIT"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil {
			t.Fatalf("FLOOD_LIMIT: %v", err)
		}
	}
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { flood(t, size, limit, setting(t, "FLOOD", 10*time.Second)) })
	}
}

func flood(t *testing.T, size, limit int, length time.Duration) {
	nodes := cluster(t, size, "", "--memory-limit", fmt.Sprintf("%dMiB", limit), "--max-wait", "0")
	ctx, stop := context.WithTimeout(t.Context(), 4*length+time.Minute)
	defer stop()
	var all sync.WaitGroup
	var sent, failed atomic.Int64
	for i, n := range nodes {
		api := n.api()
		for caller := range floodCaller {
			all.Go(func() {
				for round := 0; ctx.Err() == nil; round++ {
					q := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, floodBatch)}
					for j := range q.Checks {
						q.Checks[j] = floodCheck(fmt.Sprintf("%d-%d-%d-%d", i, caller, round, j), 1000)
					}
					if _, err := api.Check(ctx, q); err != nil && ctx.Err() == nil {
						failed.Add(1)
					}
					sent.Add(floodBatch)
				}
			})
		}
	}
	admitted := make([]int64, floodHot)
	asked, byOthers := 0, 0
	all.Go(func() {
		tick := time.NewTicker(floodPause)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			q := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, floodHot)}
			for j := range q.Checks {
				q.Checks[j] = floodCheck(fmt.Sprintf("standing-%d", j), floodQuota)
			}
			r, err := nodes[0].api().Check(ctx, q)
			if err != nil {
				continue
			}
			asked++
			for j, d := range r.Decisions {
				// What a node admits without the holder, which an overloaded machine makes it do, is no count that was lost.
				if d.Allowed && (d.Source == sluicev1.Source_SOURCE_HELD || d.Source == sluicev1.Source_SOURCE_FORWARDED) {
					admitted[j]++
				} else if d.Allowed {
					byOthers++
				}
			}
		}
	})
	most := watchMemory(ctx, t, nodes, length)
	stop()
	all.Wait()
	if err := failed.Load(); err > 5+sent.Load()/floodBatch/50 {
		t.Errorf("%d of %d calls failed", err, sent.Load()/floodBatch)
	}
	if most > 1.25*float64(limit) {
		t.Errorf("%.0f MiB were resident; want at most 1.25 × %d", most, limit)
	}
	var evicted, inserted float64
	for _, n := range nodes {
		v := n.vitals()
		evicted += v["sluice_counters_evicted_live_total"]
		inserted += v["sluice_counters_inserted_total"]
	}
	over := 0
	for _, n := range admitted {
		if n > floodQuota {
			over++
		}
	}
	t.Logf("%d nodes, %d MiB, %v: at most %.0f MiB resident; %d checks of new keys, %.0f counters made, %.0f evicted while they counted; each of %d keys asked %d times, %d over their quota, %d checks admitted without their holder",
		size, limit, length, most, sent.Load(), inserted, evicted, floodHot, asked, over, byOthers)
	if evicted == 0 {
		t.Error("nothing was evicted: the flood was none")
	}
	if asked < floodQuota*3/2 {
		t.Logf("keys of long standing were asked too rarely to be judged")
	} else if over > 0 {
		t.Errorf("%d keys of long standing lost their count: %v", over, admitted)
	}
}

func floodCheck(key string, count int64) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "flood", Descriptor_: entries("key", key),
		Limits: []*sluicev1.Limit{{Count: count, PeriodNs: int64(time.Hour)}},
	}
}

// watchMemory looks at the nodes' memory for that long, on a slow machine until their tables are full, or until ctx ends. It
// returns the most that one had, in MiB.
func watchMemory(ctx context.Context, t *testing.T, nodes []*node, length time.Duration) (most float64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began, shown := time.Now(), time.Now()
	for {
		line, full := "", true
		for _, n := range nodes {
			v, err := n.measure()
			if err != nil {
				full = false
				continue // busy; the next look is soon
			}
			full = full && v["sluice_counters_evicted_live_total"] > 1000
			most = max(most, v.resident())
			line += fmt.Sprintf("  %s %.0f MiB, %.0f counters", n.name, v.resident(), v["sluice_counters"])
		}
		if since := time.Since(shown); since >= 10*time.Second || time.Since(began) < 4*time.Second {
			shown = time.Now()
			t.Logf("%4.0f s%s", time.Since(began).Seconds(), line)
		}
		if full && time.Since(began) >= length {
			return most
		}
		select {
		case <-ctx.Done():
			return most
		case <-tick.C:
		}
	}
}
