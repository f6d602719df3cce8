package quorum_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

var (
	firstSeed = flag.Uint64("first", 1, "first seed of TestRandomSchedules")
	seeds     = flag.Uint64("seeds", 150, "number of seeds; make test-long has more")
)

// TestRandomSchedules runs small clusters through some seconds of faults, one seed each, under the law; then all must recover.
func TestRandomSchedules(t *testing.T) {
	const lots = 8
	for lot := range uint64(lots) {
		t.Run(fmt.Sprint("lot ", lot), func(t *testing.T) {
			t.Parallel()
			for seed := *firstSeed + lot; seed < *firstSeed+*seeds; seed += lots {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { schedule(t, seed) })
			}
		})
	}
}

func schedule(t *testing.T, seed uint64) {
	w := newTestCluster(t, seed)
	w.slow, w.late, w.delay = 0.03, 1500*ms, 1+w.rng.Int64N(10*ms)
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	began := 3 + w.rng.IntN(3)
	w.config.Expect = began
	for _, name := range names[:began] {
		w.boot(name, w.rng.Int64N(500*ms), message.Set{})
	}
	w.run(time.Duration(w.rng.Int64N(2500 * ms)))
	w.loss, w.double = w.rng.Float64()*0.15, w.rng.Float64()*0.2
	var restarted int64
	for end := w.now + 5000*ms; w.now < end; {
		w.run(time.Duration(50*ms + w.rng.Int64N(500*ms)))
		pick := func() *process { ps := w.running(); return ps[w.rng.IntN(len(ps))] }
		p := pick()
		for _, p := range w.running() {
			if p.leaving && !p.m.In() && !p.m.Set().Zero() {
				p.down = true
				delete(w.all, p.id.Name)
			}
		}
		if len(w.running()) < 2 || p.down {
			continue
		}
		switch w.rng.IntN(12) {
		case 0, 1:
			w.cut(p.id.Name, pick().id.Name)
		case 2, 3:
			// Each goes to one of two sides.
			var side [2]string
			for _, p := range w.running() {
				i := w.rng.IntN(2)
				side[i] += " " + p.id.Name
			}
			w.heal()
			w.split(side[0], side[1])
		case 4, 5:
			w.heal()
		case 6:
			p.asleep = w.now + w.rng.Int64N(3000*ms)
		case 7:
			// One at a time, with some time to learn what it may have forgotten.
			if w.now-restarted < 4000*ms && restarted > 0 {
				continue
			}
			restarted = w.now
			var snapshot message.Set
			// The state that only it knew cannot be learned from others.
			if w.rng.IntN(2) == 0 || len(p.m.Set().Members) < 3 {
				snapshot = p.m.Set()
			}
			w.crash(p.id.Name)
			w.run(time.Duration(1 + w.rng.Int64N(1000*ms)))
			w.boot(p.id.Name, w.rng.Int64N(1000*ms), snapshot)
		case 8:
			// A process that is not a voter yet may become one, by a pending wish to join.
			p.leaving = p.m.In() && w.rng.IntN(3) > 0
		case 9, 10:
			if began < len(names) {
				w.boot(names[began], w.rng.Int64N(1000*ms), message.Set{})
				began++
			}
		case 11:
			p.pendingGrants++
			p.m.AwaitSeen(p.pendingGrants)
		}
	}
	for _, p := range w.running() {
		p.leaving = false
		w.run(time.Duration(max(p.asleep-w.now, 0)))
	}
	w.heal()
	w.loss, w.double, w.late = 0, 0, 1
	w.until(5*time.Second, "all agree and have quorum", func() bool { return w.agreed() && w.withQuorum()() })

	// If no process is missing, all become voters soon.
	names = nil
	for _, p := range w.running() {
		names = append(names, p.id.Name)
	}
	for _, name := range w.all[names[0]].m.Set().Members {
		if !slices.Contains(names, name) {
			return
		}
	}
	w.until(5*time.Second, "all are counted", w.counted(strings.Join(names, " ")))
}
