package bucket_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestBadLimitNamesItsField: every wrong field, and every option that would have no effect, is rejected by its name, at its place in
// the list, and the right values next to it are not.
func TestBadLimitNamesItsField(t *testing.T) {
	const (
		token, leaky, fixed = bucket.TokenBucket, bucket.LeakyBucket, bucket.FixedWindow
		log, counter, bins  = bucket.SlidingLog, bucket.SlidingCounter, bucket.SlidingWindow
	)
	daily := func(zone string) func(*bucket.Limit) {
		return func(l *bucket.Limit) { l.Align, l.Unit, l.Zone, l.Period = bucket.AlignCalendar, bucket.Day, zone, 0 }
	}
	for _, c := range []struct {
		field     string // empty: the limit is right
		algorithm bucket.Algorithm
		change    func(*bucket.Limit)
	}{
		{"algorithm", 0, func(*bucket.Limit) {}},
		{"algorithm", 200, func(*bucket.Limit) {}},
		{"count", token, func(l *bucket.Limit) { l.Count = -1 }},
		{"", token, func(l *bucket.Limit) { l.Count = 0 }},
		{"period", token, func(l *bucket.Limit) { l.Period = 0 }},
		{"period", log, func(l *bucket.Limit) { l.Period = -time.Hour }},
		{"period", log, func(l *bucket.Limit) { l.Period = time.Microsecond - 1 }},
		{"", log, func(l *bucket.Limit) { l.Period = time.Microsecond }},
		{"period", fixed, func(l *bucket.Limit) { l.Period = bucket.MaxPeriod + 1 }},
		{"burst", token, func(l *bucket.Limit) { l.Burst = -1 }},
		{"burst", fixed, func(l *bucket.Limit) { l.Burst = 5 }},
		{"burst", log, func(l *bucket.Limit) { l.Burst = 5 }},
		{"cost", token, func(l *bucket.Limit) { l.Cost = -1 }},
		{"min_interval", token, func(l *bucket.Limit) { l.MinInterval = -1 }},
		{"min_interval", fixed, func(l *bucket.Limit) { l.MinInterval = bucket.MaxPeriod + 1 }},
		{"block_for", token, func(l *bucket.Limit) { l.BlockFor = -1 }},
		{"block_for", token, func(l *bucket.Limit) { l.BlockFor, l.MinInterval = 1, 1 }},
		{"block_for", fixed, func(l *bucket.Limit) { l.BlockFor = bucket.MaxPeriod + 1 }},
		{"soft", token, func(l *bucket.Limit) { l.Soft = -1 }},
		{"soft", token, func(l *bucket.Limit) { l.Soft = 1001 }},
		{"", token, func(l *bucket.Limit) { l.Soft = 1000 }},
		{"sub_windows", bins, func(l *bucket.Limit) { l.SubWindows = 1 }},
		{"sub_windows", bins, func(l *bucket.Limit) { l.SubWindows = 3601 }},
		{"", bins, func(l *bucket.Limit) { l.SubWindows = 3600 }},
		{"sub_windows", log, func(l *bucket.Limit) { l.SubWindows = 60 }},
		{"log_entries", log, func(l *bucket.Limit) { l.LogEntries = -1 }},
		{"log_entries", log, func(l *bucket.Limit) { l.LogEntries = 65_537 }},
		{"", log, func(l *bucket.Limit) { l.LogEntries = 65_536 }},
		{"log_entries", bins, func(l *bucket.Limit) { l.LogEntries = 10 }},
		{"refill", token, func(l *bucket.Limit) { l.Refill = 9 }},
		{"refill", fixed, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval }},
		{"refill", leaky, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval }},
		{"align", fixed, func(l *bucket.Limit) { l.Align = 9 }},
		{"align", counter, func(l *bucket.Limit) { l.Align = bucket.AlignFirstHit }},
		{"align", token, func(l *bucket.Limit) { l.Align, l.Unit = bucket.AlignCalendar, bucket.Day }},
		{"unit", fixed, func(l *bucket.Limit) { l.Align = bucket.AlignCalendar }},
		{"unit", fixed, func(l *bucket.Limit) { l.Align, l.Unit = bucket.AlignCalendar, 99 }},
		{"unit", fixed, func(l *bucket.Limit) { l.Unit = bucket.Day }},
		{"timezone", fixed, func(l *bucket.Limit) { l.Zone = "Europe/Berlin" }},
		{"timezone", fixed, daily("Mars/Olympus_Mons")},
		{"timezone", fixed, daily("../../etc/passwd")},
		{"timezone", fixed, daily("Europe/./Berlin")},
		{"timezone", fixed, daily("Local")},
		{"", fixed, daily("Europe/Berlin")},
	} {
		l := with(per(c.algorithm, 10, time.Minute), c.change)
		_, err := bucket.NewLimits(per(token, 1, time.Second), l)
		if c.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", l, err)
			}
			continue
		}
		var wrong *bucket.FieldError
		if !errors.As(err, &wrong) || wrong.Field != c.field || wrong.Index != 1 || len(wrong.Reason) < 10 {
			t.Errorf("%+v: %v, want the field %s of limit 1", l, err, c.field)
		} else if !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%+v: the error does not name the field: %v", l, err)
		}
	}
}

// TestEntriesOfAKey: the limits of one key keep so many entries in all, and the error names the limit and its field. Unlimited ones
// are left out, and places are those of what was given.
func TestEntriesOfAKey(t *testing.T) {
	log := func(entries int32, hours int) bucket.Limit {
		return bucket.Limit{Algorithm: bucket.SlidingLog, Count: 9, Period: time.Duration(hours) * time.Hour, LogEntries: entries}
	}
	const most = bucket.MaxLogEntries
	free := bucket.Limit{Unlimited: true}
	windows := bucket.Limit{Algorithm: bucket.SlidingWindow, Count: 9, Period: time.Hour, SubWindows: 1000}
	for _, c := range []struct {
		list []bucket.Limit
		want string // the limit and the field that are wrong
	}{
		{[]bucket.Limit{log(most, 1)}, ""},
		{[]bucket.Limit{log(most/2, 1), free, log(most/2, 2)}, ""},
		{[]bucket.Limit{log(most/2, 1), free, log(most/2, 2), log(1, 3)}, "3 log_entries"},
		{[]bucket.Limit{free, log(most-1000, 1), windows}, "2 sub_windows"},
		{nil, "0 limits"},
		{slices.Repeat([]bucket.Limit{log(1, 1)}, bucket.MaxLimits), ""},
		{slices.Repeat([]bucket.Limit{log(1, 1)}, bucket.MaxLimits+1), "0 limits"},
	} {
		got := ""
		_, err := bucket.NewLimits(c.list...)
		if wrong := new(bucket.FieldError); errors.As(err, &wrong) {
			got = fmt.Sprint(wrong.Index, " ", wrong.Field)
		}
		if got != c.want {
			t.Errorf("%d limits: %v, want %q", len(c.list), err, c.want)
		}
	}
	l := mustLimits(t, free, log(1, 1), free, windows, free)
	if l.Len() != 2 || l.Place(0) != 1 || l.Place(1) != 3 || l.Unlimited() {
		t.Errorf("%+v", l)
	}
	if l = mustLimits(t, free, free); l.Len() != 1 || l.Place(0) != 0 || !l.Unlimited() {
		t.Errorf("%+v", l)
	}
}

// TestShare divides what can be divided, rounded down, and never unblocks.
func TestShare(t *testing.T) {
	hourly := func(count, burst int64) *bucket.Limits {
		return mustLimits(t, bucket.Limit{Algorithm: bucket.TokenBucket, Count: count, Period: time.Hour, Burst: burst})
	}
	together := mustLimits(t, per(bucket.FixedWindow, 9, time.Hour), bucket.Limit{Unlimited: true}, per(bucket.SlidingLog, 30, time.Hour))
	for i, c := range []struct {
		limits *bucket.Limits
		n      int
		want   int64 // admitted
	}{
		{hourly(10, 0), 1, 10}, {hourly(10, 0), 3, 3}, {hourly(10, 0), 10, 1}, {hourly(10, 0), 11, 0}, {hourly(0, 0), 2, 0},
		{hourly(10, 100), 4, 25}, {hourly(10, 3), 4, 0}, {hourly(10, 40), 11, 0}, {hourly(1<<62, 7), 2, 3}, {together, 3, 3},
	} {
		table, r := smallTable(t), &bucket.Request{Limits: c.limits.Share(c.n), Cost: 1}
		got := int64(0)
		for table.Do(day, r).Allowed && got < math.MaxInt8 {
			got++
		}
		if got != c.want {
			t.Errorf("row %d: of a share of one in %d %d are admitted, want %d", i, c.n, got, c.want)
		}
	}
	if !together.Equal(together.Share(1)) || together.Equal(together.Share(3)) {
		t.Error("one node's share is the whole, a third is not")
	}
}

// TestLimitsEqual: the limits and their order count, and what the caller does to its slice afterwards changes nothing.
func TestLimitsEqual(t *testing.T) {
	a, b := per(bucket.FixedWindow, 10, time.Minute), per(bucket.TokenBucket, 10, time.Minute)
	lists := [][]bucket.Limit{{a}, {b}, {a, b}, {b, a}}
	for i, x := range lists {
		for j, y := range lists {
			if got := mustLimits(t, x...).Equal(mustLimits(t, y...)); got != (i == j) {
				t.Errorf("%+v and %+v: equal %v", x, y, got)
			}
		}
	}
	list := []bucket.Limit{a}
	limits := mustLimits(t, list...)
	list[0].Count = 99
	if got := limits.At(0).Count; got != 10 {
		t.Errorf("count %d, want 10", got)
	}
}
