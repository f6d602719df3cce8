package local_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/limiter/local"
)

const benchRules = `
domain: shop
descriptors:
  - key: user
    limits: [{algorithm: token_bucket, count: 1000000, period: 1s}]
`

func benchLimiter(b *testing.B) *local.Limiter {
	b.Helper()
	l, err := local.New(local.Text(benchRules))
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// benchChecks returns the checks of n users.
func benchChecks(l *local.Limiter, n int) []limit.Check {
	out := make([]limit.Check, n)
	for i := range out {
		out[i] = l.Key("shop", "user", strconv.Itoa(i)).Spend(1)
	}
	return out
}

// BenchmarkCheck measures one check under one limit: of one key, of keys in turn, of one key by all processors, of keys by all.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		b.Run(strconv.Itoa(n)+"keys", func(b *testing.B) {
			l := benchLimiter(b)
			checks := benchChecks(l, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := l.Check(b.Context(), checks[i%n]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
		b.Run(strconv.Itoa(n)+"keys/parallel", func(b *testing.B) {
			l := benchLimiter(b)
			checks := benchChecks(l, n)
			b.ReportAllocs()
			var first atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				for i := int(first.Add(int64(n / 2))); pb.Next(); i++ {
					if _, err := l.Check(b.Context(), checks[i%n]); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
	b.Run("own limits", func(b *testing.B) {
		l := benchLimiter(b)
		c := l.Key("shop", "user", "ann").WithLimits(limit.PerMinute(100)).Spend(1)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := l.Check(b.Context(), c); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Key.Allow", func(b *testing.B) {
		l := benchLimiter(b)
		k := l.Key("shop", "user", "ann")
		b.ReportAllocs()
		for b.Loop() {
			if _, err := k.Allow(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
