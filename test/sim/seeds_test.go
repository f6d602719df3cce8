package sim

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds     = flag.Int("seeds", 60, "how many seeds are run; make test-long has more")
	from      = flag.Uint64("from", 0, "the first of them")
	kind      = flag.String("profile", "", "run this profile alone, instead of one by seed")
	seed      = flag.Int64("seed", -1, "the seed that TestSeed runs and tells")
	lines     = flag.Int("lines", 120, "how many lines TestSeed tells at most")
	partition = flag.Int("partition", -1, "tell what concerns this partition only; the violated one if negative")
	noise     = flag.Bool("noise", false, "tell heartbeats and full lists too")
	failures  = flag.Int("failures", 3, "after how many failures TestSeeds stops")
)

// TestSeeds runs schedules, on all cores.
func TestSeeds(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // a run lives on a few MiB, so at 100 a third of the time went to the garbage collector
	var next, failed atomic.Int64
	total := &totals{kinds: map[string]*counts{}}
	var workers sync.WaitGroup
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for failed.Load() < int64(*failures) {
				i := next.Add(1) - 1
				if i >= int64(*seeds) {
					return
				}
				r := Run(Options{Seed: *from + uint64(i), Profile: *kind})
				total.add(r)
				if r.Violation != nil {
					failed.Add(1)
					t.Errorf("seed %d (%s) violates %v\n  go test ./test/sim -run TestSeed$ -v -args -seed %d%s",
						r.Seed, r.Profile, r.Violation, r.Seed, again())
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%v a run and core\n%s", (time.Since(began) * time.Duration(runtime.GOMAXPROCS(0)) / time.Duration(max(1, next.Load()))).Round(time.Millisecond), total)
}

func again() string {
	if *kind == "" {
		return ""
	}
	return " -profile " + *kind
}

// TestSeed replays one seed and tells it.
func TestSeed(t *testing.T) {
	if *seed < 0 {
		t.Skip("give the seed to be told: -args -seed N")
	}
	r := Run(Options{Seed: uint64(*seed), Profile: *kind, Told: true})
	about := *partition
	if about < 0 && r.Violation != nil {
		about = r.Violation.Partition
	}
	t.Logf("\n%s", r.Trace.Last(*lines, about, *noise))
	t.Logf("%s, %d nodes, %d partitions, %v: %+v", r.Profile, r.Nodes, r.Partitions, r.Lasted, r.Counts)
	if r.Violation != nil {
		t.Errorf("violates %v", r.Violation)
	}
}

// TestSameSeedSameRun holds the simulator, and the machines in it, to their promise.
func TestSameSeedSameRun(t *testing.T) {
	for s := range uint64(12) {
		a, b := Run(Options{Seed: s, Told: true}), Run(Options{Seed: s, Told: true})
		for i := range min(len(a.Trace.lines), len(b.Trace.lines)) {
			if a.Trace.lines[i] != b.Trace.lines[i] {
				t.Fatalf("seed %d (%s), line %d:\n%v\n%v", s, a.Profile, i, a.Trace.lines[i], b.Trace.lines[i])
			}
		}
		if a.Counts != b.Counts {
			t.Fatalf("seed %d: %+v, then %+v", s, a.Counts, b.Counts)
		}
	}
}

// counts are what many runs of one kind came to.
type counts struct {
	runs, failed                                           int
	events, decisions, behind, undecided, handoffs, claims int
	excess                                                 int64
	settled, slowest, healthy, gap                         time.Duration
	healthySeed, gapSeed                                   uint64 // those of healthy and gap
	shares, charged, restored                              int
	sharesExcess                                           int64
}

type totals struct {
	mu    sync.Mutex
	kinds map[string]*counts
}

func (t *totals) add(r Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.kinds[r.Profile]
	if k == nil {
		k = new(counts)
		t.kinds[r.Profile] = k
	}
	k.runs++
	if r.Violation != nil {
		k.failed++
	}
	k.events += r.Events
	k.decisions += r.Decisions
	k.behind += r.Behind
	k.undecided += r.Undecided
	k.handoffs += r.Handoffs
	k.claims += r.Claims
	k.excess = max(k.excess, r.Excess)
	k.shares += r.SharesAdmitted
	k.charged += r.ChargesApplied
	k.restored += r.ChargesRestored
	k.sharesExcess = max(k.sharesExcess, r.SharesExcess)
	k.settled = max(k.settled, r.Settled)
	if r.Gap > k.gap {
		k.gap, k.gapSeed = r.Gap, r.Seed
	}
	k.slowest = max(k.slowest, r.Slowest)
	if r.SlowestHealthy > k.healthy {
		k.healthy, k.healthySeed = r.SlowestHealthy, r.Seed
	}
}

func (t *totals) String() string {
	var b strings.Builder
	names := make([]string, 0, len(t.kinds))
	for name := range t.kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(&b, "%-9s %6s %6s %9s %9s %7s %9s %8s %7s %7s %8s %8s %8s %8s %8s %8s\n", "profile", "runs", "failed", "events", "decided", "behind",
		"undecided", "handoffs", "claims", "excess", "settled", "slowest", "in healthy", "of seed", "gap", "of seed")
	for _, name := range names {
		k := t.kinds[name]
		ms := func(d time.Duration) string { return d.Round(time.Millisecond).String() }
		fmt.Fprintf(&b, "%-9s %6d %6d %9d %9d %7d %9d %8d %7d %7d %8s %8s %8s %8d %8s %8d\n", name, k.runs, k.failed, k.events, k.decisions, k.behind,
			k.undecided, k.handoffs, k.claims, k.excess, ms(k.settled), ms(k.slowest), ms(k.healthy), k.healthySeed, ms(k.gap), k.gapSeed)
		if k.shares > 0 {
			fmt.Fprintf(&b, "%-9s admitted %d by shares, at most %d beyond a limit and what owners lost; %d deferred charges were made, %d read from disks\n", name, k.shares,
				k.sharesExcess, k.charged, k.restored)
		}
	}
	return b.String()
}
