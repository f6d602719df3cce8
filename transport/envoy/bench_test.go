package envoy

import (
	"fmt"
	"testing"

	"github.com/sluicecluster/sluice/internal/leaf/race"
	"github.com/sluicecluster/sluice/test/apitest"
)

// BenchmarkShouldRateLimit is one request in process, down to the table and back.
func BenchmarkShouldRateLimit(b *testing.B) {
	for _, descriptors := range []int{1, 4} {
		b.Run(fmt.Sprintf("descriptors=%d", descriptors), func(b *testing.B) {
			d, _ := openNode(b, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 4000000000}
`)
			req := request("d")
			for i := range descriptors {
				req.Descriptors = append(req.Descriptors, descriptor(fmt.Sprint("user=", i)))
			}
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.ShouldRateLimit(ctx, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAllocations: an answer is its response, the statuses and the list of them.
func TestAllocations(t *testing.T) {
	d, _ := openNode(t, apitest.Rules)
	req := request("shop", descriptor("user=ann"), descriptor("user=bob"), descriptor("watched=x"))
	const most = 3
	if got := testing.AllocsPerRun(200, func() {
		if _, err := d.ShouldRateLimit(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}); got > most && !race.Enabled {
		t.Errorf("%v allocations for a request, want at most %d", got, most)
	}
}
