package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// Every check is of a new key, as fast as the nodes take them, in many domains, by all algorithms and with ever new sets of up to
// 16 limits: resident memory stays within 1.25 × --memory-limit, and keys that were spent before stay spent. `go run ./test/scenario flood` runs it for FLOOD=5m; FLOOD_LIMIT (MiB) is
// smaller where that is too short to fill 256.

const (
	floodBatch   = 500
	floodDomains = 400
	floodHot     = 100 // keys of long standing, which are spent before
	floodQuota   = 50
	floodPause   = 100 * time.Millisecond // between two checks of each
	floodCaller  = 4                      // for each node
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
		t.Run(fmt.Sprint(size), func(t *testing.T) { flood(t, size, limit, process.Setting(t, "FLOOD", 10*time.Second)) })
	}
}

func flood(t *testing.T, size, limit int, length time.Duration) {
	nodes := process.Cluster(t, size, "", "--memory-limit", fmt.Sprintf("%dMiB", limit), "--max-wait", "0")
	admitted := make([]int64, floodHot)
	asked, byOthers := 0, 0
	// standing asks for the keys of long standing, and reports whether their owners have answered for all.
	standing := func(ctx context.Context) bool {
		q := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, floodHot)}
		for j := range q.Checks {
			q.Checks[j] = floodCheck(fmt.Sprintf("standing-%d", j), floodQuota)
		}
		r, err := nodes[0].API().Check(ctx, q)
		if err != nil {
			return false
		}
		asked++
		all := true
		for j, d := range r.Decisions {
			// What a node admits without the owner, which an overloaded machine makes it do, is no count that was lost.
			owner := d.Source == sluicev1.Source_SOURCE_OWNED || d.Source == sluicev1.Source_SOURCE_FORWARDED
			all = all && owner
			if d.Allowed && owner {
				admitted[j]++
			} else if d.Allowed {
				byOthers++
			}
		}
		return all
	}
	for range floodQuota {
		if !standing(t.Context()) {
			t.Fatal("owners do not answer before the flood")
		}
	}
	fresh := func() (all float64) {
		for _, n := range nodes {
			all += n.Vitals()["sluice_takeovers_fresh_total"]
		}
		return all
	}
	before := fresh()
	ctx, stop := context.WithTimeout(t.Context(), 4*length+time.Minute)
	defer stop()
	var all sync.WaitGroup
	var sent, failed atomic.Int64
	for i, n := range nodes {
		api := n.API()
		for caller := range floodCaller {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), uint64(caller)))
				for round := 0; ctx.Err() == nil; round++ {
					q := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, floodBatch)}
					for j := range q.Checks {
						q.Checks[j] = floodVaried(random, fmt.Sprintf("%d-%d-%d-%d", i, caller, round, j))
					}
					if _, err := api.Check(ctx, q); err != nil && ctx.Err() == nil {
						failed.Add(1)
					}
					sent.Add(floodBatch)
				}
			})
		}
	}
	all.Go(func() {
		tick := time.NewTicker(floodPause)
		defer tick.Stop()
		for ; ctx.Err() == nil; <-tick.C {
			standing(ctx)
		}
	})
	most := watchMemory(ctx, t, nodes, length)
	stop()
	all.Wait()
	process.Eventually(t, time.Minute, "owners answer after the flood", func() error {
		if !standing(t.Context()) {
			return errors.New("not for all keys")
		}
		return nil
	})
	if err := failed.Load(); err > 5+sent.Load()/floodBatch/50 {
		t.Errorf("%d of %d calls failed", err, sent.Load()/floodBatch)
	}
	if most > 1.25*float64(limit) {
		t.Errorf("%.0f MiB were resident; want at most 1.25 × %d", most, limit)
	}
	var evicted, inserted float64
	for _, n := range nodes {
		v := n.Vitals()
		evicted += v["sluice_counters_evicted_live_total"]
		inserted += v["sluice_counters_inserted_total"]
	}
	over := 0
	for _, n := range admitted {
		if n > floodQuota {
			over++
		}
	}
	t.Logf("%d nodes, %d MiB, %v: at most %.0f MiB resident; %d checks of new keys, %.0f counters made, %.0f evicted while they counted; each of %d keys asked %d times, %d over their quota, %d checks admitted without their owner",
		size, limit, length, most, sent.Load(), inserted, evicted, floodHot, asked, over, byOthers)
	if evicted == 0 {
		t.Error("nothing was evicted: the flood was none")
	}
	if taken := fresh() - before; taken > 0 {
		t.Logf("nodes were so overloaded that %.0f partitions were taken over without a replica: %d keys over their quota are not judged", taken, over)
	} else if over > 0 {
		t.Errorf("%d keys of long standing lost their count: %v", over, admitted)
	}
}

func floodCheck(key string, count int64) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "flood", Descriptor_: process.Entries("key", key),
		Limits: []*sluicev1.Limit{{Count: count, PeriodNs: int64(30 * 24 * time.Hour)}}, // no window ends meanwhile
	}
}

// floodVaried is a check of a new key: in three of four cases with one limit that others have too, else with up to 16 that
// mostly no other has.
func floodVaried(random *rand.Rand, key string) *sluicev1.Check {
	c := &sluicev1.Check{
		Domain: fmt.Sprint("flood-", random.IntN(floodDomains)), Descriptor_: process.Entries("key", key), Cost: new(int64(1 + random.IntN(9))),
	}
	n, most := 1, int64(10)
	if random.IntN(4) == 0 {
		n, most = 1+random.IntN(16), 1<<40
	}
	for range n {
		l := &sluicev1.Limit{
			Algorithm: sluicev1.Algorithm(1 + random.IntN(7)), Count: 10 + random.Int64N(most), PeriodNs: int64(time.Hour),
		}
		if l.Algorithm == sluicev1.Algorithm_ALGORITHM_SLIDING_LOG {
			l.LogEntries = 4096
		}
		c.Limits = append(c.Limits, l)
	}
	return c
}

// watchMemory looks at the nodes' memory for that long, on a slow machine until their tables are full, or until ctx ends. It
// returns the most that one had, in MiB.
func watchMemory(ctx context.Context, t *testing.T, nodes []*process.Node, length time.Duration) (most float64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began, shown := time.Now(), time.Now()
	for {
		line, full := "", true
		for _, n := range nodes {
			v, err := n.Measure()
			if err != nil {
				full = false
				continue // busy; the next look is soon
			}
			full = full && v["sluice_counters_evicted_live_total"] > 1000
			most = max(most, v.Resident())
			line += fmt.Sprintf("  %s %.0f MiB, %.0f counters", n.Name, v.Resident(), v["sluice_counters"])
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
