package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/shed"
	"github.com/sluice-project/sluice/transport/forwardauth"
)

// Only checks are ever turned away. What other nodes ask, health, metrics and what operators do are not:
// a node that is busy must neither look dead nor be out of reach.

// isCheck reports whether a request to the HTTP port is about checks.
func isCheck(r *http.Request) bool {
	path := r.URL.Path
	return path == "/v1/check" || path == "/v1/GetRateLimits" || strings.HasPrefix(path, forwardauth.Prefix)
}

const (
	// An idle node, of whose goroutines fewer than few have run since the last look, and at once, and which refuses nothing, looks
	// again after idleTick.
	few      = 1000
	atOnce   = time.Millisecond
	idleTick = 5 * shed.Tick
)

// watchRuntime tells the gate for how long goroutines wait for a processor, and the collector how large the heap is, until
// ctx ends. Nobody else tells the gate.
func (n *node) watchRuntime(ctx context.Context) error {
	every := shed.Tick
	tick := time.NewTicker(every)
	defer tick.Stop()
	n.waits() // what was waited before does not count
	sleep := sleeper{n.clock()}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if slept := sleep.look(n.clock(), every); slept > 0 {
				n.log.Warn(fmt.Sprintf("this process did not run for %.1f s: it was stopped, or the machine slept or had no processor for it", slept.Seconds()))
			}
			l, ran := n.waits()
			refuses := n.gate.Observe(l)
			n.settings.gc.look()
			next := shed.Tick
			if ran < few && l.Wait < atOnce && !refuses {
				next = idleTick
			}
			if next != every {
				every = next
				tick.Reset(every)
			}
		}
	}
}

// waits reads the runtime's account of the goroutines that can run, and of how long they have waited.
type waits struct {
	sample []metrics.Sample
	before []uint64
}

// next returns the load since the last call, and how many goroutines have run.
func (w *waits) next() (l shed.Load, ran uint64) {
	if w.sample == nil {
		w.sample = []metrics.Sample{{Name: "/sched/latencies:seconds"}, {Name: "/sched/goroutines/runnable:goroutines"}}
	}
	metrics.Read(w.sample)
	if w.sample[0].Value.Kind() != metrics.KindFloat64Histogram || w.sample[1].Value.Kind() != metrics.KindUint64 {
		return shed.Load{}, few // a runtime without them
	}
	h := w.sample[0].Value.Float64Histogram()
	if w.before == nil {
		w.before = make([]uint64, len(h.Counts))
	}
	l.Waiting = int(w.sample[1].Value.Uint64())
	l.Wait, ran = waitOf(h, w.before)
	copy(w.before, h.Counts)
	return l, ran
}

// waitOf returns the wait that nine in ten of those counted in h and not in before stay within, by the lower end of its
// bucket, and how many they are.
func waitOf(h *metrics.Float64Histogram, before []uint64) (wait time.Duration, all uint64) {
	var longer uint64
	for i, n := range h.Counts {
		all += n - before[i]
	}
	for i := len(h.Counts) - 1; i >= 0; i-- {
		if longer += h.Counts[i] - before[i]; longer > all/10 {
			return time.Duration(max(0, h.Buckets[i]) * float64(time.Second)), all
		}
	}
	return 0, all
}
