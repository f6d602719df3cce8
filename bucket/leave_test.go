package bucket

import (
	"math"
	"testing"
	"time"
)

// TestLeave: whatever the algorithm and the counter before, what is left is what was said, and comes back in its time.
func TestLeave(t *testing.T) {
	start := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC).UnixNano()
	for _, l := range []Limit{
		{Algorithm: TokenBucket, Count: 10, Period: time.Hour},
		{Algorithm: TokenBucket, Count: 10, Period: time.Hour, Burst: 20},
		{Algorithm: TokenBucket, Count: 10, Period: time.Hour, Refill: RefillInterval},
		{Algorithm: LeakyBucket, Count: 10, Period: time.Hour},
		{Algorithm: FixedWindow, Count: 10, Period: time.Hour},
		{Algorithm: FixedWindow, Count: 10, Period: time.Hour, Align: AlignFirstHit},
		{Algorithm: FixedWindow, Count: 10, Align: AlignCalendar, Unit: Hour},
		{Algorithm: SlidingLog, Count: 10, Period: time.Hour},
		{Algorithm: SlidingCounter, Count: 10, Period: time.Hour},
		{Algorithm: SlidingWindow, Count: 10, Period: time.Hour},
		{Algorithm: FixedWindow, Count: 10, Period: time.Hour, Soft: 50},
	} {
		limits := mustLimits(t, l)
		for _, left := range []int64{0, 1, 3, 10, 99, math.MaxInt64} {
			table := mustTable(t, Config{Shards: 1})
			key := Key{1, 2}
			table.Do(start, &Request{Key: key, Limits: limits, Cost: 7})
			table.Leave(start, key, limits, []int64{left})
			want := left
			if most := limits.plans[0].limit; left > most {
				want = most
			}
			d := table.Do(start, &Request{Key: key, Limits: limits, Verb: Read})
			if d.Remaining != want || d.Allowed != (want > 0) {
				t.Errorf("%+v, %d left: %+v", l, left, d)
			}
			// A period later, or two where the past is weighed, all is free again.
			d = table.Do(start+int64(2*time.Hour+2*time.Minute), &Request{Key: key, Limits: limits, Verb: Read})
			if d.Remaining != limits.plans[0].limit && l.Burst == 0 {
				t.Errorf("%+v, %d left: later %+v", l, left, d)
			}
			if s := table.Stats(); s.Entries > 1 || s.Bytes < 0 {
				t.Errorf("%+v, %d left: %+v", l, left, s)
			}
		}
	}
}

// TestLeaveSeveral: each limit has what is said of it.
func TestLeaveSeveral(t *testing.T) {
	limits, err := NewLimits(
		Limit{Algorithm: FixedWindow, Count: 10, Period: time.Minute}, Limit{Algorithm: FixedWindow, Count: 100, Period: time.Hour, Cost: 2},
		Limit{Algorithm: FixedWindow, Count: 1000, Period: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	table := mustTable(t, Config{Shards: 1})
	key, at := Key{1, 2}, int64(time.Hour)
	if table.Has(key) {
		t.Error("it has a counter before there is one")
	}
	table.Leave(at, key, limits, []int64{4, 7, 1000})
	list, known := table.Look(at, key, limits)
	if !known || !table.Has(key) || list[0].Remaining != 4 || list[1].Remaining != 7 || list[2].Remaining != 1000 {
		t.Errorf("%+v", list)
	}
}

// TestSays: until when an answer says what is left.
func TestSays(t *testing.T) {
	at := time.Date(2026, 1, 5, 12, 20, 0, 0, time.UTC).UnixNano()
	for _, c := range []struct {
		name  string
		limit Limit
		reset time.Duration
		want  time.Duration
	}{
		{"a window", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour}, 40 * time.Minute, 40 * time.Minute},
		{"a window of a node whose clock is behind", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour}, 41 * time.Minute, 41 * time.Minute},
		{"a window of a node whose clock is ahead", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour}, 39 * time.Minute, 40 * time.Minute},
		{"a window of a node whose clock is far ahead", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour}, 9 * time.Minute, 9 * time.Minute},
		{"the next window, of a node whose clock is ahead", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour}, 99 * time.Minute, 100 * time.Minute},
		{"the next of the calendar, of a node whose clock is ahead", Limit{Algorithm: FixedWindow, Count: 1, Align: AlignCalendar, Unit: Hour}, 99 * time.Minute, 100 * time.Minute},
		{"of the calendar, of a node whose clock is ahead", Limit{Algorithm: FixedWindow, Count: 1, Align: AlignCalendar, Unit: Hour}, 39 * time.Minute, 40 * time.Minute},
		{"a window of which nothing is spent", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour}, 0, 40 * time.Minute},
		{"of the calendar", Limit{Algorithm: FixedWindow, Count: 1, Align: AlignCalendar, Unit: Hour}, 0, 40 * time.Minute},
		{"from the first hit", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour, Align: AlignFirstHit}, 5 * time.Minute, 5 * time.Minute},
		{"not hit", Limit{Algorithm: FixedWindow, Count: 1, Period: time.Hour, Align: AlignFirstHit}, 0, 0},
		{"steps", Limit{Algorithm: TokenBucket, Count: 1, Period: time.Hour, Refill: RefillInterval}, 3 * time.Hour, 40 * time.Minute},
		{"steps from the first hit", Limit{Algorithm: TokenBucket, Count: 1, Period: time.Hour, Refill: RefillInterval, Align: AlignFirstHit}, 0, time.Hour},
		{"a bucket", Limit{Algorithm: TokenBucket, Count: 1, Period: time.Hour}, time.Minute, time.Hour},
		{"a log", Limit{Algorithm: SlidingLog, Count: 1, Period: time.Hour}, time.Minute, time.Hour},
	} {
		l := mustLimits(t, c.limit)
		from, to, until := l.Says(0, at, c.reset)
		if want := at + int64(c.reset); c.limit.Algorithm == FixedWindow && c.reset > 0 && to != want || to > until {
			t.Errorf("%s: to %v, until %v", c.name, time.Duration(to-at), time.Duration(until-at))
		}
		if until != at+int64(c.want) {
			t.Errorf("%s: until %v, want %v", c.name, time.Duration(until-at), c.want)
		}
		if later := c.want > time.Hour && c.want < 2*time.Hour; from > at != later || later && from != at+int64(40*time.Minute) {
			t.Errorf("%s: from %v", c.name, time.Duration(from-at))
		}
	}
	l := mustLimits(t, Limit{Algorithm: TokenBucket, Count: 1, Period: MaxPeriod})
	if _, _, got := l.Says(0, math.MaxInt64-5, 0); got != math.MaxInt64 {
		t.Errorf("at the end of time: %d", got)
	}
}
