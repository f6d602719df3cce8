package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// BenchmarkTry measures one warm check through Do and through Try, without a journal and with one that is
// drained every 1,000 checks, on a few keys and on many.
func BenchmarkTry(b *testing.B) {
	for _, keys := range []struct {
		name string
		n    int
	}{{"cached", 16}, {"random", 100_000}} {
		for _, c := range []struct {
			name string
			what bucket.Recording
			do   bool
		}{{"do", 0, true}, {"nothing", bucket.RecordNothing, false}, {"lasting", bucket.RecordLasting, false}} {
			b.Run(keys.name+"/"+c.name, func(b *testing.B) {
				table, limits, list := benchTable(b), benchLimits(b, bucket.TokenBucket), benchKeys(keys.n)
				for s := range partitions {
					table.Record(s, c.what, time.Hour)
				}
				now := int64(1_700_000_000_000_000_000)
				r := bucket.Request{Limits: limits, Cost: 1}
				for _, r.Key = range list {
					table.Do(now, &r)
				}
				var drained []bucket.KeyAt
				drain := func(s int) {
					drained, _, _ = table.Drain(s, drained[:0])
					table.Confirm(s, math.MaxInt64)
				}
				table.Changed(drain)
				b.ReportAllocs()
				step, i, n := int64(time.Second)/int64(len(list)), 0, 0
				for b.Loop() {
					now += step
					r.Key = list[i]
					if c.do {
						table.Do(now, &r)
					} else {
						table.Try(now, &r, nil)
					}
					if i++; i == len(list) {
						i = 0
					}
					if n++; n%1000 == 0 {
						table.Changed(drain)
					}
				}
			})
		}
	}
}

// BenchmarkImage measures export, import over the same counters, and merge with them, each per counter, in
// transfer batches of 512.
func BenchmarkImage(b *testing.B) {
	for _, c := range algorithms {
		from, to := mustTable(b, bucket.Config{Shards: 1}), mustTable(b, bucket.Config{Shards: 1})
		limits, err := bucket.NewLimits(bucket.Limit{Algorithm: c.algorithm, Count: 100, Period: time.Hour}) // none is free soon
		if err != nil {
			b.Fatal(err)
		}
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
