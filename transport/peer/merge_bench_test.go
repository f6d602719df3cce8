package peer

import (
	"fmt"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// BenchmarkPackTraced is what a check costs where a frame is packed of calls that each are in a trace of their own, per check.
func BenchmarkPackTraced(b *testing.B) {
	for _, n := range []int{64, 1024, maxGather} {
		for name, keys := range map[string]int{"each key once": n, "each key twice": n / 2} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				var calls []*call
				for i := range n {
					records := costing(1)
					records[0].Key = bucket.Key{Hi: uint64(i%keys) * 0x9e3779b97f4a7c15, Lo: uint64(i % keys)}
					records[0].Trace = &check.Trace{ID: [16]byte{byte(i), byte(i >> 8)}}
					calls = append(calls, &call{records: records})
				}
				s := new(session)
				for b.Loop() {
					gathered(s, calls...)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/check")
			})
		}
	}
}
