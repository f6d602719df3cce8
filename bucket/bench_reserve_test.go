package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// BenchmarkReserve makes and settles reservations of a key that has so many open ones.
func BenchmarkReserve(b *testing.B) {
	for _, open := range []int{0, 1000, 100_000} {
		b.Run(map[int]string{0: "none_open", 1000: "thousand_open", 100_000: "hundred_thousand_open"}[open], func(b *testing.B) {
			table, limits := mustTable(b, bucket.Config{Shards: 1}), mustLimits(b, per(bucket.TokenBucket, math.MaxInt32, time.Hour))
			id := uint64(0)
			reserve := func(now int64) {
				id++
				r := bucket.Request{Limits: limits, Cost: 5, Verb: bucket.Reserve, Reservation: &bucket.Reservation{ID: id, Least: 1, MaxOpen: math.MaxInt32, For: time.Hour}}
				if !table.Do(now, &r).Allowed {
					b.Fatal("denied")
				}
			}
			for range open {
				reserve(day)
			}
			settle := bucket.Reservation{}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				now := day + int64(i)*int64(time.Millisecond)
				reserve(now)
				settle.ID = id
				r := bucket.Request{Limits: limits, Cost: 3, Verb: bucket.Settle, Reservation: &settle}
				table.Do(now, &r)
				if i%4096 == 0 {
					b.StopTimer()
					table.Sweep(now, 0) // outcomes
					b.StartTimer()
				}
			}
		})
	}
}
