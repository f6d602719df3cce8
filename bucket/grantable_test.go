package bucket_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestAbilities: how long each kind of limit leases for, which limit of a key cannot set units aside and why, which is only counted in
// windows, and which tells its checks apart.
func TestAbilities(t *testing.T) {
	const ms = time.Millisecond
	tokens := func(count, burst int64, period time.Duration) bucket.Limit {
		return bucket.Limit{Algorithm: bucket.TokenBucket, Count: count, Period: period, Burst: burst}
	}
	ten, window, log, queue := tokens(10, 0, time.Second), per(bucket.FixedWindow, 10, time.Minute), per(bucket.SlidingLog, 10, time.Minute), per(bucket.LeakyQueue, 10, time.Minute)
	free, blocking := bucket.Limit{Unlimited: true}, func(l *bucket.Limit) { l.BlockFor = 1 }
	spaced := with(window, func(l *bucket.Limit) { l.MinInterval = 1 })
	cost := func(n int64, soft int32) bucket.Limit {
		return with(window, func(l *bucket.Limit) { l.Cost, l.Soft = n, soft })
	}
	far := map[string]time.Duration{"a bucket": 4 * (500*ms - 1), "that refills in years": time.Hour, "a window": time.Minute, "a short one and a bucket": time.Second}
	for _, c := range []struct {
		name   string
		limits []bucket.Limit
		want   string
	}{
		{"a bucket", []bucket.Limit{ten}, "leases for 499.999999ms"},
		{"of a larger burst", []bucket.Limit{tokens(10, 20, time.Second)}, "leases for 999.999999ms"},
		{"of a part of a nanosecond", []bucket.Limit{tokens(7, 10, time.Second)}, "leases for 714.285714ms"},
		{"that refills in an instant", []bucket.Limit{tokens(1e12, 10, time.Second)}, "leases for 0s"},
		{"that refills in years", []bucket.Limit{tokens(1, 10, bucket.MaxPeriod)}, "leases for 1h0m0s"},
		{"steps", []bucket.Limit{with(ten, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval })}, "leases for 1s"},
		{"a meter", []bucket.Limit{per(bucket.LeakyBucket, 10, time.Minute)}, "leases for 29.999999999s"},
		{"a queue", []bucket.Limit{queue}, "leases for 0s, not repeatable; 0: a queue delays what it admits, so it cannot set units aside"},
		{"a window", []bucket.Limit{window}, "leases for 1m0s, windowed"},
		{"a short window", []bucket.Limit{per(bucket.FixedWindow, 10, ms-1)}, "leases for 0s, windowed"},
		{"from the first hit", []bucket.Limit{with(window, firstHit)}, "leases for 1m0s"},
		{"a month", []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: 10, Align: bucket.AlignCalendar, Unit: bucket.Month}}, "leases for 1h0m0s, windowed"},
		{"a weighted window", []bucket.Limit{per(bucket.SlidingCounter, 10, time.Second)}, "leases for 1s"},
		{"a log", []bucket.Limit{log}, "leases for 1.5s"},
		{"a short log", []bucket.Limit{per(bucket.SlidingLog, 10, 39*ms)}, "leases for 0s"},
		{"sub-windows", []bucket.Limit{per(bucket.SlidingWindow, 10, 4*time.Second)}, "leases for 100ms"},
		{"two windows", []bucket.Limit{window, per(bucket.FixedWindow, 10, time.Hour)}, "leases for 1m0s"},
		{"several", []bucket.Limit{window, ten, free}, "leases for 499.999999ms"},
		{"a short one and a bucket", []bucket.Limit{per(bucket.FixedWindow, 10, time.Second), ten}, "leases for 499.999999ms"},
		{"a queue beside others", []bucket.Limit{free, window, free, queue}, "leases for 0s, not repeatable; 3: a queue delays what it admits, so it cannot set units aside"},
		{"blocking", []bucket.Limit{with(ten, blocking)}, "leases for 0s; 0: block_for makes checks under it depend on each other"},
		{"a window that blocks", []bucket.Limit{with(window, blocking)}, "leases for 0s; 0: block_for makes checks under it depend on each other"},
		{"an interval, and a queue", []bucket.Limit{window, spaced, queue}, "leases for 0s, not repeatable; 1: min_interval makes checks under it depend on each other"},
		{"an interval", []bucket.Limit{spaced}, "leases for 0s; 0: min_interval makes checks under it depend on each other"},
		{"denials that count", []bucket.Limit{with(log, countDenied)}, "leases for 0s, not repeatable; 0: count_denied makes checks under it depend on each other"},
		{"a soft margin", []bucket.Limit{cost(1, 10)}, "leases for 1m0s, not repeatable"},
		{"a weight", []bucket.Limit{cost(2, 0)}, "leases for 1m0s"},
		{"a weight of the limit", []bucket.Limit{cost(10, 0)}, "leases for 1m0s"},
		{"a weight above the limit", []bucket.Limit{cost(11, 0)}, "leases for 0s; 0: one unit is more than the limit"},
		{"a weight that only the soft margin has", []bucket.Limit{cost(11, 100)}, "leases for 0s, not repeatable; 0: one unit is more than the limit"},
		{"nothing", []bucket.Limit{per(bucket.FixedWindow, 0, time.Minute)}, "leases for 0s; 0: one unit is more than the limit"},
		{"unlimited", []bucket.Limit{free}, "leases for 0s"},
		{"unlimited, whatever else", []bucket.Limit{{Unlimited: true, MinInterval: time.Second, Algorithm: bucket.LeakyQueue}}, "leases for 0s"},
	} {
		limits := mustLimits(t, c.limits...)
		got := "leases for " + limits.LongestLease().String()
		if limits.Windowed() {
			got += ", windowed"
		}
		if !limits.Repeatable() {
			got += ", not repeatable"
		}
		if which, why := limits.Reservable(); why != "" || which >= 0 {
			got += fmt.Sprintf("; %d: %s", which, why)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		most := limits.LongestFarLease()
		if far, ok := far[c.name]; ok && most != far {
			t.Errorf("%s: leases for %d ns to another region, want %d", c.name, most, far)
		}
		for _, d := range []time.Duration{0, bucket.LeastLease - 1, bucket.LeastLease, most, most + 1, -1} {
			if got, want := limits.Grantable(d), d >= bucket.LeastLease && d <= most; got != want {
				t.Errorf("%s for %v: grantable is %v", c.name, d, got)
			}
		}
	}
}

// TestGrantRejects: what cannot be granted is not, and the grant says what a check would be told and when to ask again.
func TestGrantRejects(t *testing.T) {
	ten := per(bucket.FixedWindow, 10, time.Minute)
	soft, dear := with(ten, func(l *bucket.Limit) { l.Soft = 50 }), with(ten, func(l *bucket.Limit) { l.Cost = 4 })
	for _, c := range []struct {
		name    string
		limit   bucket.Limit
		at      string
		spent   int64
		change  func(*bucket.LeaseRequest)
		allowed bool
		retry   time.Duration
	}{
		{"wants nothing", ten, "0:00", 0, func(l *bucket.LeaseRequest) { l.Want = 0 }, true, bucket.Never},
		{"wants less", ten, "0:00", 0, func(l *bucket.LeaseRequest) { l.Want = -1 }, true, bucket.Never},
		{"no part", ten, "0:00", 0, func(l *bucket.LeaseRequest) { l.Part = 0 }, true, bucket.Never},
		{"more than the whole", ten, "0:00", 0, func(l *bucket.LeaseRequest) { l.Part = 3 }, true, bucket.Never},
		{"too long", ten, "0:00", 0, func(l *bucket.LeaseRequest) { l.For = time.Minute + 1 }, true, bucket.Never},
		{"too short", ten, "0:00", 0, func(l *bucket.LeaseRequest) { l.For = bucket.LeastLease - 1 }, true, bucket.Never},
		{"not granted from, and spent", per(bucket.LeakyQueue, 10, time.Minute), "0:00", 10, nil, false, bucket.Never},
		{"nothing left", ten, "0:20", 10, nil, false, 40 * time.Second},
		{"only the margin left", soft, "0:20", 12, nil, true, 40 * time.Second},
		{"not a whole unit left", dear, "0:20", 2, nil, false, 40 * time.Second},
		{"what is left is reserved", ten, "0:20", 4, func(l *bucket.LeaseRequest) { l.Reserve = 6 }, false, 40 * time.Second},
		{"all is reserved", ten, "0:20", 0, func(l *bucket.LeaseRequest) { l.Reserve = 10 }, false, bucket.Never},
		{"more than all is", ten, "0:20", 0, func(l *bucket.LeaseRequest) { l.Reserve = 1 << 62 }, false, bucket.Never},
		{"the window ends", ten, "0:59.999000001", 4, nil, true, 999999},
		{"a bucket fills", per(bucket.TokenBucket, 10, 10*time.Second), "0:20", 10, nil, false, time.Second},
		{"a log expires", per(bucket.SlidingLog, 10, 4*time.Minute), "0:20", 10, nil, false, 4 * time.Minute},
	} {
		table, limits, now := smallTable(t), mustLimits(t, c.limit), clock(t, c.at)
		if c.spent > 0 {
			table.Do(now, &bucket.Request{Limits: limits, Cost: c.spent})
		}
		l := leaseRequest(limits, 5, time.Second)
		l.Whole, l.Part = 2, 2
		if c.change != nil {
			c.change(l)
		}
		g, seq, v := table.Grant(now, l)
		if g.Units != 0 || g.ID != 0 || g.For != 0 || v != bucket.Decided || seq > 1 {
			t.Errorf("%s: %+v, change %d, verdict %d", c.name, g, seq, v)
		}
		if g.Decision.Allowed != c.allowed || g.RetryAfter != c.retry {
			t.Errorf("%s: allowed %v, retry after %d; want %v, %d", c.name, g.Decision.Allowed, g.RetryAfter, c.allowed, c.retry)
		}
		if n, units := table.Granted(now, l.Key); n != 0 || units != 0 {
			t.Errorf("%s: %d grants of %d units", c.name, n, units)
		}
		if c.retry == bucket.Never {
			continue
		}
		if g, _, _ := table.Grant(now+int64(c.retry)-1, l); g.Units != 0 {
			t.Errorf("%s: granted 1 ns too early", c.name)
		}
		if g, _, _ := table.Grant(now+int64(c.retry), l); g.Units == 0 {
			t.Errorf("%s: not granted then: %+v", c.name, g)
		}
	}
}

// TestGrantParts: of what could be granted the part that is asked for, rounded down or to the nearest unit, at least one.
func TestGrantParts(t *testing.T) {
	tokens := per(bucket.TokenBucket, 100, time.Hour)
	dear := with(tokens, func(l *bucket.Limit) { l.Cost = 3 })
	for _, c := range []struct {
		limit             bucket.Limit
		spent             int64
		want, part, whole int64
		reserve, granted  int64
	}{
		{tokens, 0, 1000, 1, 1, 0, 100},
		{tokens, 0, 10, 1, 1, 0, 10},
		{tokens, 1, 1000, 1, 3, 0, 33},
		{tokens, 99, 1000, 1, 3, 0, 1},
		{tokens, 0, 1000, 1, 1 << 62, 0, 1},
		{tokens, 0, 1000, 1 << 62, 1 << 62, 0, 100},
		{tokens, 20, 1000, 1, 2, 30, 25},
		{tokens, 0, 1000, 1, 1, -5, 100},
		{dear, 0, 1000, 1, 1, 0, 33},
		{dear, 0, 1000, 1, 2, 0, 16},
		{per(bucket.SlidingCounter, 100, time.Hour), 40, 1000, 1, 2, 0, 30},
	} {
		table, limits := smallTable(t), mustLimits(t, c.limit, bucket.Limit{Unlimited: true})
		if c.spent > 0 {
			table.Do(day, &bucket.Request{Limits: limits, Cost: c.spent})
		}
		g, _, _ := table.Grant(day, &bucket.LeaseRequest{
			Limits: limits, Want: c.want, Part: c.part, Whole: c.whole, Reserve: c.reserve, For: time.Second,
		})
		if g.Units != c.granted || g.For != time.Second {
			t.Errorf("%+v: granted %+v", c, g)
		}
	}
	for want, part := range map[int64]int64{12: 124, 13: 125} { // of 100, in 1000
		g, _, _ := smallTable(t).Grant(day, &bucket.LeaseRequest{
			Limits: mustLimits(t, tokens), Want: 1000, Part: part, Whole: 1000, Nearest: true, For: time.Second,
		})
		if g.Units != want {
			t.Errorf("the nearest of %d ‰: granted %d, want %d", part, g.Units, want)
		}
	}
}

// TestGrantOften: a counter has so many grants and no more, until the first of them ends or is returned.
func TestGrantOften(t *testing.T) {
	const most = 200_000
	table, limits := mustTable(t, bucket.Config{Shards: 1}), mustLimits(t, per(bucket.TokenBucket, 1<<20, time.Hour))
	var ids []uint64
	for i := range int64(most) {
		ids = append(ids, grant(t, table, day+i, limits, 1, time.Second).ID)
	}
	g, _, _ := table.Grant(day+most, leaseRequest(limits, 1, time.Second))
	if g.Units != 0 || g.RetryAfter != time.Second-most || !g.Decision.Allowed {
		t.Errorf("one more: %+v", g)
	}
	if n, units := table.Granted(day+most, bucket.Key{}); n != most || units != most {
		t.Errorf("%d grants of %d units", n, units)
	}
	if back, _, _ := table.Return(day+most, bucket.Key{}, ids[7], 5); back != 1 {
		t.Errorf("%d came back of 1", back)
	}
	grant(t, table, day+most, limits, 1, time.Second)
	grant(t, table, day+int64(time.Second), limits, 1, time.Second) // the first has ended
	for range 2 * most / 1024 {
		table.Granted(day+int64(time.Minute), bucket.Key{}) // so many end at once
	}
	if n, units := table.Granted(day+int64(time.Minute), bucket.Key{}); n != 0 || units != 0 {
		t.Errorf("a minute later %d grants are left of %d units", n, units)
	}
	if got := left(table, day+int64(time.Minute), &bucket.Request{Limits: limits}); got != 1<<20-most-1+59*(1<<20)/3600 {
		t.Errorf("%d left", got)
	}
}

// TestGrantWhenTheClockIsBehind: the counter stands still until the clock has come as far again, and leases do not.
func TestGrantWhenTheClockIsBehind(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, per(bucket.FixedWindow, 10, time.Minute))
	table.Do(clock(t, "0:20"), &bucket.Request{Limits: limits, Cost: 6})
	now := clock(t, "0:15")
	grant(t, table, now, limits, 4, 10*time.Second) // until the clock shows 0:25
	g, _, _ := table.Grant(now, leaseRequest(limits, 1, time.Second))
	if g.Units != 0 || g.RetryAfter != 45*time.Second || g.Decision.RetryAfter != 45*time.Second {
		t.Errorf("nothing is left until 1:00: %+v", g)
	}
	for _, c := range []struct {
		at     string
		grants int
	}{{"0:15", 1}, {"0:24.999999999", 1}, {"0:25", 0}} {
		if n, _ := table.Granted(clock(t, c.at), bucket.Key{}); n != c.grants {
			t.Errorf("at %s %d grants, want %d", c.at, n, c.grants)
		}
	}
}
