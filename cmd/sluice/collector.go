package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A node's heap is mostly counters that live long, so the garbage collector is
// told to let little pile up beside them; but a small heap gets some room all
// the same, or the collector would run all the time for what calls allocate.
const (
	collectRoom    = 48 << 20 // bytes of garbage that are always let be
	collectPercent = 30       // of the live heap, less half of that room, are let be if that is more
)

// tuneCollector keeps the collector's target in step with the live heap until
// ctx ends. GOGC in the environment wins. GOMEMLIMIT works on top, as ever.
func tuneCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := 0
	for {
		metrics.Read(live)
		if percent := collectorTarget(live[0].Value.Uint64()); percent != last {
			debug.SetGCPercent(percent)
			last = percent
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collectorTarget returns the GC percentage for a live heap, in steps of a quarter
// so that it changes rarely: setting it stops the world for a moment.
func collectorTarget(live uint64) int {
	if live < collectRoom/16 {
		return 1600 // this or nothing collected yet
	}
	room := max(collectRoom*3/2, live*collectPercent/100) - collectRoom/2
	percent := uint64(1600)
	for next := percent * 4 / 5; live*next/100 >= room; next = percent * 4 / 5 {
		percent = next
	}
	return int(percent)
}
