package bucket_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestBadLimitNamesItsField: every wrong field is rejected by its name, at its
// place in the list, and the right values next to it are not.
func TestBadLimitNamesItsField(t *testing.T) {
	good := func(a bucket.Algorithm, change func(*bucket.Limit)) bucket.Limit {
		l := per(a, 10, time.Minute)
		change(&l)
		return l
	}
	const (
		token, fixed, log, bins = bucket.TokenBucket, bucket.FixedWindow, bucket.SlidingLog, bucket.SlidingWindow
	)
	for _, c := range []struct {
		field string
		limit bucket.Limit
	}{
		{"algorithm", good(0, func(*bucket.Limit) {})},
		{"algorithm", good(200, func(*bucket.Limit) {})},
		{"count", good(token, func(l *bucket.Limit) { l.Count = -1 })},
		{"", good(token, func(l *bucket.Limit) { l.Count = 0 })},
		{"period", good(token, func(l *bucket.Limit) { l.Period = 0 })},
		{"period", good(log, func(l *bucket.Limit) { l.Period = -time.Hour })},
		{"period", good(log, func(l *bucket.Limit) { l.Period = time.Microsecond - 1 })},
		{"", good(log, func(l *bucket.Limit) { l.Period = time.Microsecond })},
		{"burst", good(token, func(l *bucket.Limit) { l.Burst = -1 })},
		{"burst", good(fixed, func(l *bucket.Limit) { l.Burst = 5 })},
		{"cost", good(token, func(l *bucket.Limit) { l.Cost = -1 })},
		{"min_interval", good(token, func(l *bucket.Limit) { l.MinInterval = -1 })},
		{"block_for", good(token, func(l *bucket.Limit) { l.BlockFor = -1 })},
		{"block_for", good(token, func(l *bucket.Limit) { l.BlockFor, l.MinInterval = 1, 1 })},
		{"soft", good(token, func(l *bucket.Limit) { l.Soft = -1 })},
		{"soft", good(token, func(l *bucket.Limit) { l.Soft = 1001 })},
		{"", good(token, func(l *bucket.Limit) { l.Soft = 1000 })},
		{"sub_windows", good(bins, func(l *bucket.Limit) { l.SubWindows = 1 })},
		{"sub_windows", good(bins, func(l *bucket.Limit) { l.SubWindows = 3601 })},
		{"", good(bins, func(l *bucket.Limit) { l.SubWindows = 3600 })},
		{"log_entries", good(log, func(l *bucket.Limit) { l.LogEntries = -1 })},
		{"log_entries", good(log, func(l *bucket.Limit) { l.LogEntries = 65_537 })},
		{"", good(log, func(l *bucket.Limit) { l.LogEntries = 65_536 })},
		{"refill", good(token, func(l *bucket.Limit) { l.Refill = 9 })},
		{"align", good(fixed, func(l *bucket.Limit) { l.Align = 9 })},
		{"unit", good(fixed, func(l *bucket.Limit) { l.Align = bucket.AlignCalendar })},
		{"unit", good(fixed, func(l *bucket.Limit) { l.Align, l.Unit = bucket.AlignCalendar, 99 })},
		{"timezone", good(fixed, func(l *bucket.Limit) {
			l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Day, "Mars/Olympus_Mons"
		})},
		{"", good(fixed, func(l *bucket.Limit) {
			l.Align, l.Unit, l.Zone, l.Period = bucket.AlignCalendar, bucket.Day, "Europe/Berlin", 0
		})},
	} {
		_, err := bucket.NewLimits(per(token, 1, time.Second), c.limit)
		if c.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.limit, err)
			}
			continue
		}
		var field *bucket.FieldError
		if !errors.As(err, &field) || field.Field != c.field || field.Index != 1 || field.Reason == "" {
			t.Errorf("%+v: %v, want the field %s of limit 1", c.limit, err, c.field)
		}
	}
}

func TestNumberOfLimits(t *testing.T) {
	one := per(bucket.TokenBucket, 1, time.Second)
	for n := range bucket.MaxLimits + 2 {
		list := make([]bucket.Limit, n)
		for i := range list {
			list[i] = one
		}
		if l, err := bucket.NewLimits(list...); (err == nil) != (1 <= n && n <= bucket.MaxLimits) {
			t.Errorf("%d limits: %v, %v", n, l, err)
		}
	}
}

// TestShare divides what can be divided, rounded down, and never unblocks.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		count, burst int64
		n            int
		admitted     int
	}{
		{10, 0, 1, 10}, {10, 0, 3, 3}, {10, 0, 10, 1}, {10, 0, 11, 0}, {0, 0, 2, 0},
		{10, 100, 4, 25}, {10, 3, 4, 0}, {10, 40, 11, 0}, {1 << 62, 7, 2, 3},
	} {
		l := per(bucket.TokenBucket, c.count, time.Hour)
		l.Burst = c.burst
		share := mustLimits(t, l).Share(c.n)
		got := drain(smallTable(t), day, &bucket.Request{Limits: share, Cost: 1})
		if got != c.admitted {
			t.Errorf("%d an hour, burst %d, shared by %d: %d admitted, want %d", c.count, c.burst, c.n, got, c.admitted)
		}
	}
	together := mustLimits(t, per(bucket.FixedWindow, 9, time.Hour), bucket.Limit{Unlimited: true}, per(bucket.SlidingLog, 30, time.Hour))
	if got := drain(smallTable(t), day, &bucket.Request{Limits: together.Share(3), Cost: 1}); got != 3 {
		t.Errorf("9 and 30 an hour, shared by 3: %d admitted, want 3", got)
	}
	if !together.Equal(together.Share(1)) || together.Equal(together.Share(3)) {
		t.Error("one node's share is the whole, a third is not")
	}
}
