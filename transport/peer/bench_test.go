package peer

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/sluicecluster/sluice/internal/check"
)

// BenchmarkHop is one hop over loopback TCP: callers at once, each with calls of so
// many records.
func BenchmarkHop(b *testing.B) {
	for _, c := range []struct{ callers, records int }{{1, 1}, {64, 1}, {1, 1000}, {64, 1000}} {
		b.Run(fmt.Sprintf("callers=%d/records=%d", c.callers, c.records), func(b *testing.B) {
			config := (&network{}).config("b")
			config.Dial, config.MaxQueue = nil, 1<<20
			server, err := NewServer(config, handlerFunc(echo))
			if err != nil {
				b.Fatal(err)
			}
			addr, stop := serveTCP(b, server.Serve, server.Close)
			defer stop()
			pool, err := Open(config)
			if err != nil {
				b.Fatal(err)
			}
			defer pool.Close()
			if err := ask(b.Context(), pool, addr, 1); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			concurrently(b, c.callers, func(next func() bool) error {
				records, replies := costing(make([]int64, c.records)...), make([]check.Reply, c.records)
				for next() {
					if err := pool.Call(b.Context(), addr, records, replies); err != nil {
						return err
					}
				}
				return nil
			})
			s := pool.Stats()
			b.ReportMetric(float64(s.Records)/float64(s.Frames), "records/frame")
			b.ReportMetric(float64(b.N*c.records)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func serveTCP(b *testing.B, serve func(net.Listener) error, end func()) (addr string, stop func()) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(l) }()
	return l.Addr().String(), func() {
		end()
		<-served
	}
}

// concurrently shares b.N calls between so many callers.
func concurrently(b *testing.B, callers int, caller func(next func() bool) error) {
	b.Helper()
	var left sync.Mutex
	n := b.N
	next := func() bool {
		left.Lock()
		defer left.Unlock()
		n--
		return n >= 0
	}
	var all sync.WaitGroup
	b.ResetTimer()
	for range callers {
		all.Go(func() {
			if err := caller(next); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	b.StopTimer()
}
