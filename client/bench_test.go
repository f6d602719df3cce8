package sluice

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/race"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// BenchmarkDenied is a check that is answered from memory.
func BenchmarkDenied(b *testing.B) {
	f := newCluster(b, "n1")
	f.set(func(n *fakeNode, _ *sluicev1.Check) *sluicev1.Decision {
		d := decision(n, false)
		d.DeniedForNs, d.RetryAfterNs = int64(time.Hour), new(int64(time.Hour))
		return d
	})
	c := f.dial()
	ctx := context.Background()
	if _, err := c.Check(ctx, user); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := c.Check(ctx, user); d.Source != limit.SourceDenyCache {
			b.Fatalf("%+v", d)
		}
	}
}

// TestDeniedAllocatesNothing: nor does it cost memory.
func TestDeniedAllocatesNothing(t *testing.T) {
	f := newCluster(t, "n1")
	f.set(func(n *fakeNode, _ *sluicev1.Check) *sluicev1.Decision {
		d := decision(n, false)
		d.DeniedForNs, d.RetryAfterNs = int64(time.Hour), new(int64(time.Hour))
		return d
	})
	c := f.dial()
	ctx := context.Background()
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := c.Check(ctx, user); err != nil {
			t.Fatal(err)
		}
	}); n >= 1 && !race.Enabled {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCheck64 is one of 64 concurrent callers' checks, of a node in the same process.
func BenchmarkCheck64(b *testing.B) {
	f := newCluster(b, "n1")
	c := f.dial()
	ctx := context.Background()
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := c.Check(ctx, user); err != nil {
				b.Error(err)
			}
		}
	})
}
