package bucket_test

import (
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

// grantedStep is one thing that is done at a time, and what is left for checks after it.
type grantedStep struct {
	at   string
	do   string // grant, check, return, read, refund, reset
	n    int64  // units
	left int64
}

// TestGrantStories: what is granted counts at once, and as if it were spent last. Leases are for 6 s if they can be; a return is of the
// latest grant, with n unspent.
func TestGrantStories(t *testing.T) {
	first := per(bucket.FixedWindow, 10, time.Minute)
	first.Align = bucket.AlignFirstHit
	steps := per(bucket.TokenBucket, 4, time.Minute)
	steps.Refill, steps.Burst = bucket.RefillInterval, 10
	day := per(bucket.FixedWindow, 10, 0)
	day.Align, day.Unit = bucket.AlignCalendar, bucket.Day
	bins := per(bucket.SlidingWindow, 10, 4*time.Minute)
	bins.SubWindows = 4
	for _, c := range []struct {
		name  string
		limit bucket.Limit
		life  time.Duration
		steps []grantedStep
	}{
		{"a bucket does not drain what is granted", per(bucket.TokenBucket, 10, 100*time.Second), 6 * time.Second, []grantedStep{
			{"0:00", "grant", 4, 6}, {"0:05", "read", 0, 6}, {"0:05.999999999", "read", 0, 6}, {"0:16", "read", 0, 7}, {"0:46", "read", 0, 10},
		}},
		{"beside it, it drains", per(bucket.LeakyBucket, 10, 10*time.Second), 3 * time.Second, []grantedStep{
			{"0:00", "check", 5, 5}, {"0:01", "grant", 4, 2}, {"0:02", "read", 0, 3}, {"0:04", "read", 0, 5}, {"0:09", "read", 0, 10},
		}},
		{"a return ends it", per(bucket.TokenBucket, 10, 10*time.Second), 4 * time.Second, []grantedStep{
			{"0:00", "grant", 6, 4}, {"0:01", "return", 2, 6}, {"0:02", "read", 0, 7}, {"0:02", "return", 0, 7}, {"0:05", "read", 0, 10},
		}},
		{"a window has it once", per(bucket.FixedWindow, 10, time.Minute), 6 * time.Second, []grantedStep{
			{"0:10", "grant", 4, 6}, {"0:11", "check", 3, 3}, {"0:12", "return", 1, 4}, {"0:20", "read", 0, 4}, {"1:00", "read", 0, 10},
		}},
		{"a lease ends with the window", per(bucket.FixedWindow, 10, time.Minute), 6 * time.Second, []grantedStep{
			{"0:58", "grant", 4, 6}, {"1:00", "read", 0, 10}, {"1:01", "return", 4, 10},
		}},
		{"a window that a lease begins", first, 6 * time.Second, []grantedStep{
			{"0:10", "grant", 4, 6}, {"0:12", "check", 2, 4}, {"1:11.999999999", "read", 0, 4}, {"1:12", "read", 0, 10},
		}},
		{"a window that begins when a lease ends", first, 6 * time.Second, []grantedStep{
			{"0:10", "grant", 4, 6}, {"1:10", "read", 0, 6}, {"1:15.999999998", "read", 0, 6}, {"1:15.999999999", "read", 0, 10},
		}},
		{"a window that a returned lease began", first, 6 * time.Second, []grantedStep{
			{"0:10", "grant", 4, 6}, {"0:12", "return", 4, 10}, {"0:30", "check", 1, 9}, {"1:20", "read", 0, 9}, {"1:30", "read", 0, 10},
		}},
		{"steps", steps, 6 * time.Second, []grantedStep{
			{"0:56", "grant", 9, 1}, {"0:57", "return", 2, 3}, {"1:00", "read", 0, 7}, {"1:01", "return", 2, 7}, {"2:00", "read", 0, 10},
		}},
		{"a day", day, 6 * time.Second, []grantedStep{
			{"0:58", "grant", 4, 6}, {"1:10", "return", 4, 6}, {"1:10", "grant", 5, 1}, {"1:11", "return", 5, 6},
		}},
		{"a log is dated late", per(bucket.SlidingLog, 10, 4*time.Minute), 6 * time.Second, []grantedStep{
			{"0:00", "grant", 4, 6}, {"4:00", "read", 0, 6}, {"4:05.999999998", "read", 0, 6}, {"4:05.999999999", "read", 0, 10},
		}},
		{"a returned lease is dated then", per(bucket.SlidingLog, 10, 4*time.Minute), 6 * time.Second, []grantedStep{
			{"0:00", "grant", 4, 6}, {"0:01", "return", 1, 7}, {"4:00.999999999", "read", 0, 7}, {"4:01", "read", 0, 10},
		}},
		{"a log with checks between", per(bucket.SlidingLog, 10, 4*time.Minute), 6 * time.Second, []grantedStep{
			{"0:00", "check", 1, 9}, {"0:01", "grant", 4, 5}, {"0:02", "check", 2, 3}, {"0:09", "check", 1, 2},
			{"4:00", "read", 0, 3}, {"4:02", "read", 0, 5}, {"4:06.999999998", "read", 0, 5}, {"4:06.999999999", "read", 0, 9},
		}},
		{"sub-windows are dated late", bins, 6 * time.Second, []grantedStep{
			{"0:57", "grant", 4, 6}, {"5:00", "read", 0, 6}, {"5:59.999999999", "read", 0, 6}, {"6:00", "read", 0, 10},
		}},
		{"two windows, weighted", per(bucket.SlidingCounter, 10, time.Minute), 6 * time.Second, []grantedStep{
			{"0:58", "grant", 6, 4}, {"1:30", "read", 0, 7}, {"1:40", "grant", 4, 4}, {"1:41", "return", 3, 8}, {"3:00", "read", 0, 10},
		}},
		{"a reset keeps what may still be spent", per(bucket.FixedWindow, 10, time.Minute), 6 * time.Second, []grantedStep{
			{"0:10", "check", 3, 7}, {"0:11", "grant", 4, 3}, {"0:12", "reset", 0, 6}, {"0:13", "return", 3, 9}, {"0:20", "read", 0, 9}, {"1:00", "read", 0, 10},
		}},
		{"and so what was not returned", per(bucket.FixedWindow, 10, time.Minute), 6 * time.Second, []grantedStep{
			{"0:58", "check", 3, 7}, {"0:58", "grant", 4, 3}, {"0:59", "reset", 0, 6}, {"0:59.999999999", "read", 0, 6}, {"1:00", "read", 0, 10},
		}},
		{"a lease counts in the window that is open at its end", first, 20 * time.Second, []grantedStep{
			{"0:10", "grant", 4, 6}, {"0:11", "reset", 0, 6}, {"0:12", "check", 1, 5}, {"1:11.999999999", "read", 0, 5}, {"1:12", "read", 0, 10},
		}},
		{"a refund is not of what is granted", per(bucket.FixedWindow, 10, time.Minute), 6 * time.Second, []grantedStep{
			{"0:10", "grant", 4, 6}, {"0:11", "refund", 2, 6}, {"0:12", "check", 3, 3}, {"0:13", "return", 4, 7},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, limits := smallTable(t), mustLimits(t, c.limit)
			var g bucket.Grant
			var returned bool
			for i, s := range c.steps {
				now := clock(t, s.at)
				r := &bucket.Request{Limits: limits, Cost: s.n}
				switch s.do {
				case "grant":
					g, returned = grant(t, table, now, limits, s.n, c.life), false
					if g.Decision.Remaining != s.left {
						t.Errorf("step %d: %+v, want %d left", i, g, s.left)
					}
				case "check":
					if d := table.Do(now, r); !d.Allowed {
						t.Fatalf("step %d: %+v", i, d)
					}
				case "return":
					back, _, _ := table.Return(now, r.Key, g.ID, s.n)
					if returned && back != 0 {
						t.Errorf("step %d: returned twice, %d came back", i, back)
					}
					returned = true
				case "refund":
					r.Verb = bucket.Refund
					table.Do(now, r)
				case "reset":
					r.Verb = bucket.Reset
					table.Do(now, r)
				}
				if got := left(table, now, r); got != s.left {
					t.Errorf("step %d, %s at %s: %d left, want %d", i, s.do, s.at, got, s.left)
				}
			}
		})
	}
}
