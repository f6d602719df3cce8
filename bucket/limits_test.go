package bucket_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestUnfitOptions: an option that would have no effect is rejected by its name.
func TestUnfitOptions(t *testing.T) {
	of := func(a bucket.Algorithm, change func(*bucket.Limit)) bucket.Limit {
		l := per(a, 10, time.Minute)
		change(&l)
		return l
	}
	for _, c := range []struct {
		field string
		limit bucket.Limit
	}{
		{"period", of(bucket.FixedWindow, func(l *bucket.Limit) { l.Period = bucket.MaxPeriod + 1 })},
		{"min_interval", of(bucket.FixedWindow, func(l *bucket.Limit) { l.MinInterval = bucket.MaxPeriod + 1 })},
		{"block_for", of(bucket.FixedWindow, func(l *bucket.Limit) { l.BlockFor = bucket.MaxPeriod + 1 })},
		{"burst", of(bucket.SlidingLog, func(l *bucket.Limit) { l.Burst = 5 })},
		{"refill", of(bucket.FixedWindow, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval })},
		{"refill", of(bucket.LeakyBucket, func(l *bucket.Limit) { l.Refill = bucket.RefillInterval })},
		{"align", of(bucket.SlidingCounter, func(l *bucket.Limit) { l.Align = bucket.AlignFirstHit })},
		{"align", of(bucket.TokenBucket, func(l *bucket.Limit) { l.Align, l.Unit = bucket.AlignCalendar, bucket.Day })},
		{"unit", of(bucket.FixedWindow, func(l *bucket.Limit) { l.Unit = bucket.Day })},
		{"timezone", of(bucket.FixedWindow, func(l *bucket.Limit) { l.Zone = "Europe/Berlin" })},
		{"timezone", of(bucket.FixedWindow, func(l *bucket.Limit) { l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Day, "../../etc/passwd" })},
		{"timezone", of(bucket.FixedWindow, func(l *bucket.Limit) { l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Day, "Local" })},
		{"timezone", of(bucket.FixedWindow, func(l *bucket.Limit) {
			l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Day, "Europe/./Berlin"
		})},
		{"sub_windows", of(bucket.SlidingLog, func(l *bucket.Limit) { l.SubWindows = 60 })},
		{"log_entries", of(bucket.SlidingWindow, func(l *bucket.Limit) { l.LogEntries = 10 })},
	} {
		_, err := bucket.NewLimits(c.limit)
		var wrong *bucket.FieldError
		if !errors.As(err, &wrong) || wrong.Field != c.field {
			t.Errorf("%+v: %v, want field %s", c.limit, err, c.field)
			continue
		}
		if !strings.HasPrefix(err.Error(), c.field+": ") || len(wrong.Reason) < 10 {
			t.Errorf("%+v: the error does not say what is wrong: %v", c.limit, err)
		}
	}
}

// TestLimitsKeepNoReference: what the caller does to its slice afterwards changes nothing.
func TestLimitsKeepNoReference(t *testing.T) {
	list := []bucket.Limit{per(bucket.FixedWindow, 10, time.Minute)}
	limits := mustLimits(t, list...)
	list[0].Count = 99
	if got := limits.At(0).Count; got != 10 {
		t.Errorf("count %d, want 10", got)
	}
}

func TestLimitsEqual(t *testing.T) {
	a, b := per(bucket.FixedWindow, 10, time.Minute), per(bucket.TokenBucket, 10, time.Minute)
	for _, c := range []struct {
		x, y  []bucket.Limit
		equal bool
	}{
		{[]bucket.Limit{a}, []bucket.Limit{a}, true},
		{[]bucket.Limit{a, b}, []bucket.Limit{a, b}, true},
		{[]bucket.Limit{a, b}, []bucket.Limit{b, a}, false},
		{[]bucket.Limit{a}, []bucket.Limit{a, b}, false},
		{[]bucket.Limit{a}, []bucket.Limit{b}, false},
	} {
		x, y := mustLimits(t, c.x...), mustLimits(t, c.y...)
		if x.Equal(y) != c.equal || y.Equal(x) != c.equal || !x.Equal(x) {
			t.Errorf("%+v and %+v: equal %v", c.x, c.y, x.Equal(y))
		}
	}
}

func TestUnlimited(t *testing.T) {
	free, ten := bucket.Limit{Unlimited: true}, per(bucket.FixedWindow, 10, time.Minute)
	for _, c := range []struct {
		list []bucket.Limit
		want bool
	}{
		{[]bucket.Limit{free}, true}, {[]bucket.Limit{free, free}, true},
		{[]bucket.Limit{free, ten}, false}, {[]bucket.Limit{per(bucket.FixedWindow, 0, time.Minute)}, false},
	} {
		if got := mustLimits(t, c.list...).Unlimited(); got != c.want {
			t.Errorf("%+v: %v", c.list, got)
		}
	}
}
