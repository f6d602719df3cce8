package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/shed"
)

// A node's heap is mostly counters that live long, so the garbage collector is
// told to let little pile up beside them; but a small heap gets some room all
// the same, or the collector would run all the time for what calls allocate.
const (
	collectRoom    = 48 << 20 // bytes of garbage that are let be beside nothing; a sixteenth of the live heap less beside more
	collectPercent = 30       // of the live heap, less half of that room, are let be if that is more
)

// gcTuner keeps the garbage collector's target in step with the live heap of this process.
// GOGC in the environment wins. GOMEMLIMIT works on top, as ever.
type gcTuner struct {
	sample []metrics.Sample
	target int
}

// newGCTuner returns nil if GOGC is set.
func newGCTuner() *gcTuner {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return &gcTuner{sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
}

// look sets the target anew if the heap has changed enough. c may be nil.
func (c *gcTuner) look() {
	if c == nil {
		return
	}
	metrics.Read(c.sample)
	if target := collectorTarget(int64(c.sample[0].Value.Uint64())); target != c.target {
		debug.SetGCPercent(target)
		c.target = target
	}
}

// during has f run with looks beside it. c may be nil.
func (c *gcTuner) during(f func()) {
	over := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		tick := time.NewTicker(shed.Tick)
		defer tick.Stop()
		for {
			c.look()
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	defer looks.Wait()
	defer close(over)
	f()
}

// collectorTarget returns the GC percentage for a live heap, in steps of a sixteenth
// so that it changes rarely: setting it stops the world for a moment.
func collectorTarget(live int64) int {
	if live < collectRoom/16 {
		return 1600 // this or nothing collected yet
	}
	room := max(collectRoom-live/16, live*collectPercent/100-collectRoom/2)
	percent := int64(1600)
	for next := percent * 15 / 16; live*next/100 >= room; next = percent * 15 / 16 {
		percent = next
	}
	return int(percent)
}
