package node

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
)

// BenchmarkSlot: what a slot of a session costs beside two checks on a stream, by one and 64 callers and a node in one process.
func BenchmarkSlot(b *testing.B) {
	t := new(testing.T)
	s := testConfig(t)
	writeRule(t, s.Rules, `domain: shop
descriptors:
  - key: slot
    limits: [{algorithm: concurrency, count: 1000}]
  - key: rate
    limits: [{algorithm: token_bucket, count: 1_000_000_000, period: 1h}]
`)
	c := startNode(t, s).ready(b, sluice.WithoutLeases())
	for name, op := range map[string]func(key sluice.Key) error{
		"slot": func(key sluice.Key) error {
			x, err := c.Acquire(b.Context(), sluice.AcquireRequest{Key: key})
			x.Release()
			return err
		},
		"rate": func(key sluice.Key) error {
			_, err := key.Check(b.Context(), 1)
			if err == nil {
				_, err = key.Check(b.Context(), 1)
			}
			return err
		},
	} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprint(name, "/", callers), func(b *testing.B) {
				b.ReportAllocs()
				var all sync.WaitGroup
				var done atomic.Int64
				before := cpuTime(b)
				for i := range callers {
					all.Go(func() {
						for ; int(done.Add(1)) <= b.N; i += 7 {
							if err := op(c.Key("shop", name, strconv.Itoa(i%256))); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime returns the processor time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
