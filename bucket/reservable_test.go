package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestReservable: which limit cannot set units aside, and why.
func TestReservable(t *testing.T) {
	window := per(bucket.FixedWindow, 5, time.Minute)
	with := func(change func(*bucket.Limit)) bucket.Limit {
		l := window
		change(&l)
		return l
	}
	burst := bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Second, Burst: 5, Cost: 5}
	paced := with(func(l *bucket.Limit) { l.MinInterval = time.Second })
	for _, c := range []struct {
		name  string
		list  []bucket.Limit
		which int
		why   string
	}{
		{"a window", []bucket.Limit{window}, -1, ""},
		{"all algorithms", []bucket.Limit{per(bucket.LeakyBucket, 1, time.Second), per(bucket.SlidingLog, 1, time.Second),
			per(bucket.SlidingCounter, 1, time.Second), per(bucket.SlidingWindow, 1, time.Second), burst}, -1, ""},
		{"unlimited", []bucket.Limit{{Unlimited: true}}, -1, ""},
		{"unlimited, whatever else", []bucket.Limit{{Unlimited: true, MinInterval: time.Second, Algorithm: bucket.LeakyQueue}}, -1, ""},
		{"a queue", []bucket.Limit{window, per(bucket.LeakyQueue, 5, time.Minute)}, 1, "a queue delays what it admits, so it cannot set units aside"},
		{"min_interval", []bucket.Limit{paced}, 0, "min_interval makes checks under it depend on each other"},
		{"block_for", []bucket.Limit{with(func(l *bucket.Limit) { l.BlockFor = time.Hour })}, 0, "block_for makes checks under it depend on each other"},
		{"count_denied", []bucket.Limit{{Algorithm: bucket.SlidingLog, Count: 5, Period: time.Minute, CountDenied: true}}, 0, "count_denied makes checks under it depend on each other"},
		{"a weight above the limit", []bucket.Limit{with(func(l *bucket.Limit) { l.Cost = 6 })}, 0, "one unit is more than the limit"},
		{"a weight of the limit", []bucket.Limit{with(func(l *bucket.Limit) { l.Cost = 5 })}, -1, ""},
		{"a weight that only the soft margin has", []bucket.Limit{with(func(l *bucket.Limit) { l.Cost, l.Soft = 6, 100 })}, 0, "one unit is more than the limit"},
		{"a limit of nothing", []bucket.Limit{per(bucket.FixedWindow, 0, time.Minute)}, 0, "one unit is more than the limit"},
		{"the index as given", []bucket.Limit{{Unlimited: true}, window, {Unlimited: true}, paced}, 3, "min_interval makes checks under it depend on each other"},
		{"the first of two", []bucket.Limit{window, paced, per(bucket.LeakyQueue, 5, time.Minute)}, 1, "min_interval makes checks under it depend on each other"},
	} {
		if which, why := mustLimits(t, c.list...).Reservable(); which != c.which || why != c.why {
			t.Errorf("%s: %d, %q; want %d, %q", c.name, which, why, c.which, c.why)
		}
	}
}
