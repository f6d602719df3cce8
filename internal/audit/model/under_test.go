package model

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

func sortedByEnd(spans []Span) []Span {
	out := slices.Clone(spans)
	slices.SortFunc(out, func(a, b Span) int { return cmp.Compare(a.To, b.To) })
	return out
}

func TestUnder(t *testing.T) {
	minute := func(a bucket.Algorithm) bucket.Limit {
		return bucket.Limit{Algorithm: a, Count: 3, Period: time.Minute}
	}
	unknown := func(from float64) []Span { return []Span{{int64(from * float64(second)), Open}} }
	for _, c := range []struct {
		name            string
		limit           bucket.Limit
		clocks          Clocks
		charges, denied []Span
		want            int64
		which           int
	}{
		{"fixed: full", minute(bucket.FixedWindow), Clocks{}, at(1, 2, 3), at(4), 0, 0},
		{"fixed: never charged", minute(bucket.FixedWindow), Clocks{}, nil, at(4), 3, 0},
		{"fixed: one free", minute(bucket.FixedWindow), Clocks{}, at(1, 2), at(4), 1, 0},
		{"fixed: two free at the second denial", minute(bucket.FixedWindow), Clocks{}, at(1, 2, 3, 62), at(4, 62.5), 1, 1},
		{"fixed: the third may be just before", minute(bucket.FixedWindow), Clocks{}, slices.Concat(at(1, 2), between(3, 9, 1)), between(4, 5, 1), 0, 0},
		{"fixed: the third comes later", minute(bucket.FixedWindow), Clocks{}, at(1, 2, 6), between(4, 5, 1), 1, 0},
		{"fixed: the third is ambiguous", minute(bucket.FixedWindow), Clocks{}, slices.Concat(at(1, 2), unknown(3)), at(4), 0, 0},
		{"fixed: an unknown one may come much later", minute(bucket.FixedWindow), Clocks{}, slices.Concat(at(1000, 1001), unknown(3)), at(1002), 0, 0},
		{"fixed: the first may still count", minute(bucket.FixedWindow), Clocks{Error: 5 * time.Second}, at(1, 62, 63), at(64), 0, 0},
		{"fixed: it cannot", minute(bucket.FixedWindow), Clocks{Error: time.Second}, at(1, 62, 63), at(64), 1, 0},
		{"log: the first has just expired", minute(bucket.SlidingLog), Clocks{}, at(1, 2, 3), at(61.000000002), 1, 0},
		{"log: it still counts", minute(bucket.SlidingLog), Clocks{}, at(1, 2, 3), at(60.9), 0, 0},
		{"counter: may count for two periods", minute(bucket.SlidingCounter), Clocks{}, at(1, 2, 3), at(120), 0, 0},
		{"counter: but no longer", minute(bucket.SlidingCounter), Clocks{}, at(1, 2, 3), at(122), 2, 0},
		{"window: one sub-window more", minute(bucket.SlidingWindow), Clocks{}, at(1, 2, 3), at(61.5), 0, 0},
		{"window: but no longer", minute(bucket.SlidingWindow), Clocks{}, at(1, 2, 3), at(62.1), 1, 0},
		{"token: full", minute(bucket.TokenBucket), Clocks{}, at(1, 1, 1), at(20.9), 0, 0},
		{"token: one is back", minute(bucket.TokenBucket), Clocks{}, at(1, 1, 1), at(21), 1, 0},
		{"token: all are back", minute(bucket.LeakyQueue), Clocks{}, at(1, 1, 1), at(61), 3, 0},
		{"token: one may be late", minute(bucket.TokenBucket), Clocks{}, slices.Concat(at(1, 1), between(1, 20, 1)), at(21), 1, 0},
		{"token: slower clocks", minute(bucket.TokenBucket), Clocks{Drift: 1000}, at(1, 1, 1), at(21.001), 0, 0},
		{"token: time lost on the way", minute(bucket.TokenBucket), Clocks{Error: time.Second}, at(1, 1, 1), at(21), 0, 0},
		{"token: one is on its way", minute(bucket.TokenBucket), Clocks{}, slices.Concat(at(1, 1, 1), unknown(15)), at(21), 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mustNew(t, c.limit, c.clocks)
			if got, which := m.Under(c.charges, c.denied); got != c.want || which != c.which {
				t.Errorf("%d units free at denial %d, want %d at %d", got, which, c.want, c.which)
			}
		})
	}
}

func TestNewRejects(t *testing.T) {
	fixed := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Hour}
	with := func(change func(l *bucket.Limit)) bucket.Limit {
		l := fixed
		change(&l)
		return l
	}
	for _, c := range []struct {
		limit  bucket.Limit
		clocks Clocks
		want   string
	}{
		{with(func(l *bucket.Limit) { l.Period = 0 }), Clocks{}, "period"},
		{with(func(l *bucket.Limit) { l.Count = 0 }), Clocks{}, "count"},
		{with(func(l *bucket.Limit) { l.Unlimited = true }), Clocks{}, "unlimited"},
		{with(func(l *bucket.Limit) { l.Align, l.Unit = bucket.AlignCalendar, bucket.Day }), Clocks{}, "calendar"},
		{with(func(l *bucket.Limit) { l.Algorithm, l.Refill = bucket.TokenBucket, bucket.RefillInterval }), Clocks{}, "refill"},
		{with(func(l *bucket.Limit) { l.Soft = 10 }), Clocks{}, "soft"},
		{with(func(l *bucket.Limit) { l.Algorithm, l.Count = bucket.SlidingLog, 2000 }), Clocks{}, "log_entries"},
		{with(func(l *bucket.Limit) { l.Algorithm, l.Period = bucket.SlidingWindow, time.Second }), Clocks{Error: time.Second}, "clock error"},
		{with(func(l *bucket.Limit) { l.Algorithm = bucket.Concurrency }), Clocks{}, "algorithm: concurrency has no model"},
		{fixed, Clocks{Error: -1}, "clocks"},
		{fixed, Clocks{Drift: million}, "clocks"},
	} {
		if _, err := New(c.limit, c.clocks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, %+v: error %v, want one about %s", c.limit, c.clocks, err, c.want)
		}
	}
}
