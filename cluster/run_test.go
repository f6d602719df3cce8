package cluster

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestSweep: expired counters are gone within one SweepPeriod, shares too.
func TestSweep(t *testing.T) {
	posed(t, "a b", func(t *testing.T, w *testCluster) {
		a := w.nodes["a"]
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.sweep(ctx); close(done) }()
		w.decides(always(unsent))
		limits := limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: 10 * time.Second})
		for i := range 100 {
			decide(ctx, a, request(a, "a", i, limits))
		}
		decide(ctx, a, request(a, "b", 1, limits))
		if held, apart := a.table.Stats().Entries, a.shares.Admitted(); held != 100 || apart != 1 {
			t.Fatalf("%d counters and %d apart, want 100 and 1", held, apart)
		}
		time.Sleep(10*time.Second + sweepPeriod)
		synctest.Wait()
		if held, apart := a.table.Stats().Entries, a.shares.Admitted(); held != 0 || apart != 0 {
			t.Errorf("%d counters and %d apart are left", held, apart)
		}
		cancel()
		<-done
	})
}

// TestSweepWithoutQuorum: a node without quorum ends no reservation whose deadline passes.
func TestSweepWithoutQuorum(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newTestCluster(t, "a").nodes["a"]
		r := request(a, "a", 1, hourly(10))
		x := &bucket.Reservation{ID: 1, Least: 1, MaxOpen: 1, For: time.Second}
		a.table.Do(a.cfg.Clock(), &bucket.Request{Key: r.Key, Limits: r.Limits, Cost: 6, Verb: bucket.Reserve, Reservation: x})
		p := r.Key.Shard(a.cfg.Ring.Partitions)
		a.table.Record(p, bucket.RecordAll, 0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.sweep(ctx); close(done) }()
		for _, until := range []int64{0, math.MaxInt64} {
			a.quorumUntil.Store(until)
			time.Sleep(2 * sweepPeriod)
			synctest.Wait()
			if keys, _, _ := a.table.Drain(p, nil); len(keys) > 0 != (until > 0) {
				t.Errorf("quorum until %d: %d keys have changed", until, len(keys))
			}
		}
		cancel()
		<-done
	})
}

// TestClock: it starts with the wall clock and goes on with the time that passes.
func TestClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		clock := steadyClock()
		if got, want := clock(), time.Now().UnixNano(); got != want {
			t.Errorf("it starts at %d, want %d", got, want)
		}
		time.Sleep(time.Hour)
		if got, want := clock(), time.Now().UnixNano(); got != want {
			t.Errorf("an hour later it is %d, want %d", got, want)
		}
	})
}

// TestWorkTogether: everything is done once, on several goroutines where there are processors, and the caller's alone where that pays.
func TestWorkTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for _, counters := range []int{0, 4096} {
		const n = 100
		var done [n]atomic.Int64
		var together atomic.Int64
		met := make(chan struct{})
		parallel(counters, n, func(i int) {
			done[i].Add(1)
			if counters > 0 { // all four meet
				if together.Add(1) == 4 {
					close(met)
				}
				<-met
			}
		})
		for i := range done {
			if done[i].Load() != 1 {
				t.Errorf("%d counters: %d is done %d times", counters, i, done[i].Load())
			}
		}
	}
}
