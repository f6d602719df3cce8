package bucket_test

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/race"
)

// BenchmarkSlots takes and releases slots of a key of which so many are taken, 10,000 a second, and reports what a million of them
// leave in memory.
func BenchmarkSlots(b *testing.B) {
	for _, open := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			table, limits := mustTable(b, bucket.Config{Shards: 1}), mustLimits(b, bucket.Limit{Algorithm: bucket.Concurrency, Count: math.MaxInt32})
			x, now := bucket.Reservation{Least: 1, MaxOpen: math.MaxInt32, For: time.Hour, Fresh: true}, day
			do := func(verb bucket.Verb, cost int64) {
				if d := table.Do(now, &bucket.Request{Limits: limits, Cost: cost, Verb: verb, Reservation: &x, Once: x.ID}); !d.Allowed {
					b.Fatal("denied")
				}
			}
			for range open {
				x.ID++
				do(bucket.Reserve, 1)
			}
			x.For = 1900 * time.Millisecond
			cycle := func() {
				x.ID++
				do(bucket.Reserve, 1)
				do(bucket.Settle, 0)
				if now += int64(100 * time.Microsecond); x.ID%10_000 == 0 {
					table.Sweep(now, 0) // as the node does each second
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				cycle()
			}
			b.StopTimer()
			for i := b.N; i < million; i++ {
				cycle()
			}
			b.ReportMetric(float64(table.Stats().Bytes), "B-left")
			b.ReportMetric(float64(table.OffHeap()), "B-offheap")
		})
	}
}

// BenchmarkReservationMemory makes a million open reservations and reports what they add to the process, each,
// with their counters.
func BenchmarkReservationMemory(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // the daemon's target
	for _, keys := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			var full int64
			for range b.N {
				full += reservationMemory(b, keys, million)
			}
			b.ReportMetric(float64(full)/float64(b.N)/million, "B/reservation")
		})
	}
}

// TestReservationMemory: an open reservation takes at most 128 bytes of the process.
func TestReservationMemory(t *testing.T) {
	const open = 300_000
	for _, keys := range []int{3, 3000} {
		if got := float64(reservationMemory(t, keys, open)) / open; got > 128 && !race.Enabled {
			t.Errorf("%d reservations of %d keys take %.1f bytes each, want at most 128", open, keys, got)
		} else {
			t.Logf("%d reservations of %d keys take %.1f bytes each", open, keys, got)
		}
	}
}

// reservationMemory returns what so many open reservations of so many keys add to the process.
func reservationMemory(tb testing.TB, keys, open int) int64 {
	debug.FreeOSMemory()
	empty := resident(tb)
	table, limits, list := benchTable(tb), mustLimits(tb, per(bucket.TokenBucket, math.MaxInt32, time.Hour)), benchKeys(keys)
	for i := range open {
		r := bucket.Request{Key: list[i%keys], Limits: limits, Cost: 5, Verb: bucket.Reserve, Reservation: &bucket.Reservation{
			ID: uint64(i + 1), Least: 1, MaxOpen: math.MaxInt32, For: time.Hour,
		}}
		if !table.Do(day, &r).Allowed {
			tb.Fatal("denied")
		}
	}
	debug.FreeOSMemory()
	full := resident(tb) - empty
	runtime.KeepAlive(table)
	return full
}
