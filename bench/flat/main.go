// Command flat is an experiment, and no part of sluice: would the table be better as flat
// memory, open addressing without a pointer, than as simplelru's list and map? It compares
//
//   - bucket: the table that sluice has,
//   - lru: the same layout, an LRU list and a map per shard, with the toy decision of the others,
//   - clock: flat slots, evicted by the clock algorithm,
//   - sampled: flat slots, of which the longest unused of eight is evicted,
//
// by resident bytes per key, ns per take, the collector's share of CPU, and hits
// under eviction. Every measurement is a process of its own. The slots of the flat
// tables and the counters of lru have the 64 bytes of bucket's counter; what bucket
// keeps behind pointers (logs, further limits) would need a map beside.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bucket"
)

func main() {
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "flat:", err)
		os.Exit(1)
	}
}

func command() error {
	var (
		keys   = flag.String("keys", "1000000,10000000,30000000", "`numbers` of keys, comma separated")
		kinds  = flag.String("kinds", "bucket,lru,clock,sampled", "`tables` to compare")
		window = flag.Duration("window", 5*time.Second, "length of each measurement")
		out    = flag.String("out", "results/flat.json", "JSON `file` for the results")
		child  = flag.Bool("child", false, "measure the one kind and number given, here")
	)
	flag.Parse()
	list := strings.Split(*kinds, ",")
	if *child {
		n, err := strconv.Atoi(*keys)
		if err != nil {
			return err
		}
		r, err := measure(list[0], n, *window)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	var all results
	fmt.Println("| table | keys | resident bytes per key | ns per take, at random | ns, 1000 keys | under load: M takes/s | of CPU the collector |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, n := range strings.Split(*keys, ",") {
		for _, kind := range list {
			r, err := apart(kind, n, *window)
			if err != nil {
				return err
			}
			all.Memory = append(all.Memory, *r)
			fmt.Printf("| %s | %d | %.0f | %.0f | %.0f | %.2f | %.1f %% |\n",
				r.Kind, r.Keys, r.BytesPerKey, r.RandomNs, r.CachedNs, r.LoadPerSecond/1e6, 100*r.GCShare)
		}
	}
	fmt.Printf("\n| hits at %d places for %d keys | %s |\n|---|%s\n", places, universe, strings.Join(list, " | "), strings.Repeat("---|", len(list)))
	for _, s := range []float64{1.01, 1.1, 1.3} {
		trace := newTrace(s)
		row := []string{fmt.Sprintf("Zipf, exponent %v", s)}
		for _, kind := range list {
			h, err := hits(kind, trace)
			if err != nil {
				return err
			}
			all.Hits = append(all.Hits, hitRate{kind, s, h})
			row = append(row, fmt.Sprintf("%.2f %%", 100*h))
		}
		fmt.Printf("| %s |\n", strings.Join(row, " | "))
	}
	return report.Save(*out, &all)
}

// results are what the command saves.
type results struct {
	Memory []measured `json:"memory"`
	Hits   []hitRate  `json:"hits"`
}

type hitRate struct {
	Kind     string  `json:"kind"`
	Exponent float64 `json:"zipf_exponent"`
	Hits     float64 `json:"hits"`
}

// apart measures in a process of its own, so that memory is the table's alone.
func apart(kind, keys string, window time.Duration) (*measured, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-child", "-kinds", kind, "-keys", keys, "-window", window.String())
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s, %s keys: %w", kind, keys, err)
	}
	r := &measured{}
	return r, json.Unmarshal(text, r)
}

// measured is one table at one size.
type measured struct {
	Kind string `json:"kind"`
	Keys int    `json:"keys"`
	// BytesPerKey is the growth of resident memory, after load.
	BytesPerKey float64 `json:"resident_bytes_per_key"`
	// RandomNs and CachedNs are ns per take by one goroutine, over all keys and over
	// a thousand of them.
	RandomNs float64 `json:"random_ns"`
	CachedNs float64 `json:"cached_ns"`
	// LoadPerSecond are takes by a goroutine per core, each of which leaves garbage.
	LoadPerSecond float64 `json:"load_per_second"`
	// GCShare is the collector's share of the CPU time under that load.
	GCShare float64 `json:"gc_share"`
}

const (
	// start is when the experiment's time begins (Unix ns).
	start = int64(1_700_000_000_000_000_000)
	// percent is the collector's target in sluice.
	percent = 50
	// garbage is about what a check through gRPC leaves, in bytes.
	garbage = 512
)

// keyOf is key i as a hash would give it (the finisher of SplitMix64), so that
// keys need no memory.
func keyOf(i uint64) bucket.Key { return bucket.Key{Hi: mix(2*i + 1), Lo: mix(2*i + 2)} }

func mix(z uint64) uint64 {
	z *= 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func measure(kind string, keys int, window time.Duration) (*measured, error) {
	debug.SetGCPercent(percent)
	before, err := process.Self()
	if err != nil {
		return nil, err
	}
	// A tenth of room, because shards are not equally full.
	t, err := newTable(kind, keys+keys/10)
	if err != nil {
		return nil, err
	}
	for i := range keys {
		t.take(start, keyOf(uint64(i)))
	}
	m := &measured{Kind: kind, Keys: keys}
	m.RandomNs = each(t, keys, window, 1, nil)
	m.CachedNs = each(t, 1000, window/4, 1, nil)
	gc, cpu := spent()
	var sinks [64][]byte
	m.LoadPerSecond = 1e9 / each(t, keys, window, runtime.GOMAXPROCS(0), sinks[:])
	gcEnd, cpuEnd := spent()
	if cpuEnd > cpu {
		m.GCShare = (gcEnd - gc) / (cpuEnd - cpu)
	}
	after, err := process.Self()
	m.BytesPerKey = float64(after.Resident-before.Resident) / float64(keys)
	runtime.KeepAlive(t)
	return m, err
}

// each returns ns per take while so many goroutines take keys at random. With sinks, each
// take leaves garbage.
func each(t table, keys int, window time.Duration, goroutines int, sinks [][]byte) float64 {
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		sum  int
	)
	begin := time.Now()
	for g := range goroutines {
		work.Go(func() {
			random := rand.NewPCG(uint64(g), 1)
			n := 0
			// The clock is read seldom, and the table's time moves with the takes.
			for time.Since(begin) < window {
				for range 1000 {
					t.take(start+int64(n), keyOf(random.Uint64()>>32*uint64(keys)>>32))
					n++
					if sinks != nil {
						sinks[g%len(sinks)] = make([]byte, garbage)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sum += n
		})
	}
	work.Wait()
	return float64(time.Since(begin)) / float64(sum)
}

// spent returns CPU seconds of the collector, help of idle processors left out,
// and of the whole program, as of the last cycle.
func spent() (gc, all float64) {
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
		{Name: "/cpu/classes/total:cpu-seconds"},
		{Name: "/cpu/classes/idle:cpu-seconds"},
	}
	metrics.Read(s)
	at := func(i int) float64 { return s[i].Value.Float64() }
	return at(0) - at(1), at(2) - at(3) - at(1)
}

// What hits are counted over.
const (
	universe = 4_000_000
	places   = 200_000
	accesses = 8_000_000
)

// newTrace draws the keys of a warm-up and of as long a measurement.
func newTrace(exponent float64) []uint32 {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), exponent, 1, universe-1)
	trace := make([]uint32, 2*accesses)
	for i := range trace {
		trace[i] = uint32(z.Uint64())
	}
	return trace
}

// hits returns the share of accesses that found their key in the trace's second half.
func hits(kind string, trace []uint32) (float64, error) {
	t, err := newTable(kind, places)
	if err != nil {
		return 0, err
	}
	found := 0
	for i, k := range trace {
		if _, known := t.take(start+int64(i), keyOf(uint64(k))); known && i >= accesses {
			found++
		}
	}
	return float64(found) / accesses, nil
}
