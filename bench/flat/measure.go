package main

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bucket"
)

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
