package bucket_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

const (
	// partitions is the number of shards in a cluster.
	partitions = 1021
	million    = 1_000_000
)

// benchTable returns a table of the size that a daemon has.
func benchTable(tb testing.TB) *bucket.Table { return mustTable(tb, bucket.Config{Shards: partitions}) }

// benchLimits returns a limit of the algorithm that about half of the checks of a benchmark pass.
func benchLimits(tb testing.TB, a bucket.Algorithm) *bucket.Limits {
	return mustLimits(tb, per(a, 100, time.Minute))
}

// benchKeys returns n keys as a hash would give them.
func benchKeys(n int) []bucket.Key {
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([]bucket.Key, n)
	for i := range keys {
		keys[i] = bucket.Key{Hi: r.Uint64(), Lo: r.Uint64()}
	}
	return keys
}

// BenchmarkTake measures one warm check, on a handful of keys and on a million in random order, and one that is recorded in a journal
// that is drained every 1,000 checks.
func BenchmarkTake(b *testing.B) {
	for _, keys := range []struct {
		name string
		n    int
	}{{"cached", 16}, {"random", million}} {
		for _, c := range algorithms {
			b.Run(keys.name+"/"+c.name, func(b *testing.B) {
				benchTake(b, benchLimits(b, c.algorithm), benchKeys(keys.n), bucket.RecordNothing)
			})
		}
		b.Run(keys.name+"/recorded", func(b *testing.B) {
			benchTake(b, benchLimits(b, bucket.TokenBucket), benchKeys(keys.n), bucket.RecordLasting)
		})
		b.Run(keys.name+"/four limits", func(b *testing.B) {
			limits := mustLimits(b, per(bucket.TokenBucket, 100, time.Minute), per(bucket.FixedWindow, 1000, time.Hour),
				per(bucket.SlidingCounter, 5000, 24*time.Hour), per(bucket.LeakyQueue, 1000, time.Minute))
			benchTake(b, limits, benchKeys(keys.n), bucket.RecordNothing)
		})
	}
}

func benchTake(b *testing.B, limits *bucket.Limits, keys []bucket.Key, what bucket.Recording) {
	table := benchTable(b)
	for s := range partitions {
		table.Record(s, what, time.Hour)
	}
	var drained []bucket.KeyAt
	drain := func(s int) {
		drained, _, _ = table.Drain(s, drained[:0])
		table.Confirm(s, math.MaxInt64)
	}
	now := int64(1_700_000_000_000_000_000)
	r := bucket.Request{Limits: limits, Cost: 1}
	for _, r.Key = range keys {
		table.Do(now, &r)
	}
	table.Changed(drain)
	b.ReportAllocs()
	// One check of each key takes a second of the counters' time.
	step, i, n := int64(time.Second)/int64(len(keys)), 0, 0
	for b.Loop() {
		now += step
		r.Key = keys[i]
		table.Try(now, &r, nil)
		if i++; i == len(keys) {
			i = 0
		}
		if n++; n%1000 == 0 {
			table.Changed(drain)
		}
	}
}

// BenchmarkTableMemory fills a table with a million keys and reports what it adds to the
// process, per key, with the garbage collection target that the daemon sets: once it is full, and
// the most while every key is then replaced, when garbage is at its highest.
func BenchmarkTableMemory(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	for _, c := range algorithms {
		b.Run(c.name, func(b *testing.B) {
			limits := benchLimits(b, c.algorithm)
			var full, most int64
			for range b.N {
				debug.FreeOSMemory()
				empty := resident(b)
				table := mustTable(b, bucket.Config{Shards: partitions, MaxEntries: million})
				source := rand.New(rand.NewPCG(3, 4))
				flood(table, limits, source, million)
				full += resident(b) - empty
				for range 200 {
					flood(table, limits, source, million/100)
					most = max(most, resident(b)-empty)
				}
				if got := table.Stats(); got.Entries != million || got.Inserted != 3*million {
					b.Fatalf("%+v", got)
				}
			}
			b.ReportMetric(float64(full)/float64(b.N)/million, "full-B/key")
			b.ReportMetric(float64(most)/million, "replaced-B/key")
		})
	}
}

// flood checks n keys that were never seen before.
func flood(table *bucket.Table, limits *bucket.Limits, source *rand.Rand, n int) {
	r := bucket.Request{Limits: limits, Cost: 1}
	for range n {
		r.Key = bucket.Key{Hi: source.Uint64(), Lo: source.Uint64()}
		table.Do(1_700_000_000_000_000_000, &r)
	}
}

// resident returns the bytes that the process has in memory, or where the system does not tell,
// those that the heap has from it.
func resident(tb testing.TB) int64 {
	tb.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapSys - m.HeapReleased)
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(statm)[1]), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// BenchmarkImage measures export, import over the same counters, and merge with them, each per counter, in
// transfer batches of 512.
func BenchmarkImage(b *testing.B) {
	for _, c := range algorithms {
		from, to := mustTable(b, bucket.Config{Shards: 1}), mustTable(b, bucket.Config{Shards: 1})
		limits := mustLimits(b, per(c.algorithm, 100, time.Hour)) // none is free soon
		ks := benchKeys(20 * 512)
		now := int64(1_700_000_000_123_456_789)
		for i := range 5 * len(ks) {
			from.Do(now, &bucket.Request{Key: ks[i%len(ks)], Limits: limits, Cost: 1})
			now += 97_001
		}
		list := from.Keys(0, nil)
		var images []*bucket.Image
		size := 0
		for at := 0; at < len(list); at += 512 {
			im := new(bucket.Image)
			from.Export(now, 0, list[at:at+512], im)
			images, size = append(images, im), size+len(im.Data)
		}
		b.Run("export/"+c.name, func(b *testing.B) {
			im := new(bucket.Image)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%512 == 0 {
					*im = bucket.Image{Limits: im.Limits[:0], Data: im.Data[:0]}
					at := n % len(list)
					from.Export(now, 0, list[at:at+512], im)
				}
			}
			b.ReportMetric(float64(size)/float64(len(list)), "B/counter")
		})
		for _, how := range []struct {
			name  string
			merge bool
		}{{"import", false}, {"merge", true}} {
			b.Run(how.name+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					if n%512 == 0 {
						im := images[n%len(list)/512]
						if err := to.Import(now, 0, im, im.Data, im.Counters, how.merge); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
