package bucket_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// lease request asks for want units of limits for a time.
func leaseRequest(limits *bucket.Limits, want int64, life time.Duration) *bucket.LeaseRequest {
	return &bucket.LeaseRequest{Limits: limits, Want: want, Part: 1, Whole: 1, For: life}
}

// grant grants units of limits at now and fails t unless exactly want are granted.
func grant(t failer, table *bucket.Table, now int64, limits *bucket.Limits, want int64, life time.Duration) bucket.Grant {
	t.Helper()
	g, _, v := table.Grant(now, leaseRequest(limits, want, life))
	if v != bucket.Decided || g.Units != want || g.ID == 0 || g.RetryAfter != 0 || !g.Decision.Allowed {
		t.Fatalf("at %d: lease request of %d: %+v, verdict %d", now, want, g, v)
	}
	return g
}

// TestGrantStories: what is granted counts at once, and as if it were spent last. Leases are for 6 s if they can be; a return is of the
// latest grant, with n unspent.
func TestGrantStories(t *testing.T) {
	window, log := per(bucket.FixedWindow, 10, time.Minute), per(bucket.SlidingLog, 10, 4*time.Minute)
	first := with(window, firstHit)
	steps := bucket.Limit{Algorithm: bucket.TokenBucket, Count: 4, Period: time.Minute, Refill: bucket.RefillInterval, Burst: 10}
	day := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Align: bucket.AlignCalendar, Unit: bucket.Day}
	bins := bucket.Limit{Algorithm: bucket.SlidingWindow, Count: 10, Period: 4 * time.Minute, SubWindows: 4}
	for _, c := range []struct {
		name  string
		limit bucket.Limit
		life  time.Duration
		steps string // time, what is done, units, and what is left for checks then
	}{
		{"a bucket does not drain what is granted", per(bucket.TokenBucket, 10, 100*time.Second), 6 * time.Second, "0:00 grant 4=6, 0:05 read=6, 0:05.999999999 read=6, 0:16 read=7, 0:46 read=10"},
		{"beside it, it drains", per(bucket.LeakyBucket, 10, 10*time.Second), 3 * time.Second, "0:00 check 5=5, 0:01 grant 4=2, 0:02 read=3, 0:04 read=5, 0:09 read=10"},
		{"a return ends it", per(bucket.TokenBucket, 10, 10*time.Second), 4 * time.Second, "0:00 grant 6=4, 0:01 return 2=6, 0:02 read=7, 0:02 return 0=7, 0:05 read=10"},
		{"a window has it once", window, 6 * time.Second, "0:10 grant 4=6, 0:11 check 3=3, 0:12 return 1=4, 0:20 read=4, 1:00 read=10"},
		{"a lease ends with the window", window, 6 * time.Second, "0:58 grant 4=6, 1:00 read=10, 1:01 return 4=10"},
		{"a window that a lease begins", first, 6 * time.Second, "0:10 grant 4=6, 0:12 check 2=4, 1:11.999999999 read=4, 1:12 read=10"},
		{"a window that begins when a lease ends", first, 6 * time.Second,
			"0:10 grant 4=6, 1:10 read=6, 1:15.999999998 read=6, 1:15.999999999 read=10"},
		{"a window that a returned lease began", first, 6 * time.Second,
			"0:10 grant 4=6, 0:12 return 4=10, 0:30 check 1=9, 1:20 read=9, 1:30 read=10"},
		{"steps", steps, 6 * time.Second, "0:56 grant 9=1, 0:57 return 2=3, 1:00 read=7, 1:01 return 2=7, 2:00 read=10"},
		{"a day", day, 6 * time.Second, "0:58 grant 4=6, 1:10 return 4=6, 1:10 grant 5=1, 1:11 return 5=6"},
		{"a log is dated late", log, 6 * time.Second, "0:00 grant 4=6, 4:00 read=6, 4:05.999999998 read=6, 4:05.999999999 read=10"},
		{"a returned lease is dated then", log, 6 * time.Second, "0:00 grant 4=6, 0:01 return 1=7, 4:00.999999999 read=7, 4:01 read=10"},
		{"a log with checks between", log, 6 * time.Second,
			"0:00 check 1=9, 0:01 grant 4=5, 0:02 check 2=3, 0:09 check 1=2, 4:00 read=3, 4:02 read=5, 4:06.999999998 read=5, 4:06.999999999 read=9"},
		{"sub-windows are dated late", bins, 6 * time.Second, "0:57 grant 4=6, 5:00 read=6, 5:59.999999999 read=6, 6:00 read=10"},
		{"two windows, weighted", per(bucket.SlidingCounter, 10, time.Minute), 6 * time.Second, "0:58 grant 6=4, 1:30 read=7, 1:40 grant 4=4, 1:41 return 3=8, 3:00 read=10"},
		{"a reset keeps what may still be spent", window, 6 * time.Second,
			"0:10 check 3=7, 0:11 grant 4=3, 0:12 reset=6, 0:13 return 3=9, 0:20 read=9, 1:00 read=10"},
		{"and so what was not returned", window, 6 * time.Second,
			"0:58 check 3=7, 0:58 grant 4=3, 0:59 reset=6, 0:59.999999999 read=6, 1:00 read=10"},
		{"a lease counts in the window that is open at its end", first, 20 * time.Second,
			"0:10 grant 4=6, 0:11 reset=6, 0:12 check 1=5, 1:11.999999999 read=5, 1:12 read=10"},
		{"a refund is not of what is granted", window, 6 * time.Second, "0:10 grant 4=6, 0:11 refund 2=6, 0:12 check 3=3, 0:13 return 4=7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, limits := smallTable(t), mustLimits(t, c.limit)
			var g bucket.Grant
			var returned bool
			for step := range strings.SplitSeq(c.steps, ", ") {
				before, after, _ := strings.Cut(step, "=")
				var at, what string
				var units int64
				if n, err := fmt.Sscan(before, &at, &what, &units); n < 2 {
					t.Fatalf("%q: %v", step, err)
				}
				want, err := strconv.ParseInt(after, 10, 64)
				if err != nil {
					t.Fatalf("%q: %v", step, err)
				}
				now := clock(t, at)
				r := &bucket.Request{Limits: limits, Cost: units}
				switch what {
				case "grant":
					g, returned = grant(t, table, now, limits, units, c.life), false
					if g.Decision.Remaining != want {
						t.Errorf("%s: %+v", step, g)
					}
				case "check":
					if d := table.Do(now, r); !d.Allowed {
						t.Fatalf("%s: %+v", step, d)
					}
				case "return":
					back, _, _ := table.Return(now, r.Key, g.ID, units)
					if returned && back != 0 {
						t.Errorf("%s: returned twice, %d came back", step, back)
					}
					returned = true
				case "refund":
					r.Verb = bucket.Refund
					table.Do(now, r)
				case "reset":
					r.Verb = bucket.Reset
					table.Do(now, r)
				}
				if got := left(table, now, r); got != want {
					t.Errorf("%s: %d left", step, got)
				}
			}
		})
	}
}
