package bucket_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestTryTimes: a series is what as many checks one after the other are, in what it answers and in
// what it leaves behind.
func TestTryTimes(t *testing.T) {
	for _, c := range algorithms {
		limits := mustLimits(t, per(c.algorithm, 10, time.Hour), bucket.Limit{Algorithm: bucket.FixedWindow, Count: 23, Cost: 2, Period: time.Hour})
		if limits.Repeatable() != (c.algorithm != bucket.LeakyQueue) {
			t.Fatalf("%s: repeatable=%v", c.name, limits.Repeatable())
		}
		if !limits.Repeatable() {
			continue
		}
		one, many := mustTable(t, bucket.Config{Shards: 1}), mustTable(t, bucket.Config{Shards: 1})
		for step, want := range []struct{ cost, times, granted int64 }{{1, 4, 4}, {2, 1, 1}, {3, 5, 1}, {1, 7, 1}, {1, 3, 0}} {
			now := day + int64(step)
			r := bucket.Request{Limits: limits, Cost: want.cost}
			var last, denial bucket.Decision
			var seq uint64
			for range want.times {
				var d bucket.Decision
				if d, seq, _ = one.Try(now, &r, nil); d.Allowed {
					last = d
				} else {
					denial = d
				}
			}
			s, charged, got, v := many.TryTimes(now, &r, want.times)
			if v != bucket.Decided || got != seq || charged != (want.granted > 0) {
				t.Errorf("%s, step %d: verdict %d, change %d, want %d, charged=%v", c.name, step, v, got, seq, charged)
			}
			if s != (bucket.Series{Granted: want.granted, Last: last, Denial: denial}) {
				t.Errorf("%s, step %d: %+v; want %d granted, %+v, then %+v", c.name, step, s, want.granted, last, denial)
			}
		}
		if a, b := exported(one, day, 0), exported(many, day, 0); !bytes.Equal(a.Data, b.Data) {
			t.Errorf("%s: the counters differ", c.name)
		}
	}
}

// TestTryTimesUnlimited: what cannot be denied is granted.
func TestTryTimesUnlimited(t *testing.T) {
	r := bucket.Request{Limits: mustLimits(t, bucket.Limit{Unlimited: true}), Cost: 1}
	if s, charged, _, _ := largeTable(t).TryTimes(day, &r, 5000); s.Granted != bucket.MaxTimes || charged {
		t.Errorf("%+v, charged=%v; want %d", s, charged, bucket.MaxTimes)
	}
}
