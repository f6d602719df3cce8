package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	_ "github.com/sluicecluster/sluice/test/seeded"
	"pgregory.net/rapid"
)

// TestCounts: a sum is charged by what it has grown, however often and late it is told.
func TestCounts(t *testing.T) {
	const window = int64(time.Minute)
	for _, unit := range []bucket.Limit{
		per(bucket.FixedWindow, 10, time.Minute),
		{Algorithm: bucket.FixedWindow, Count: 10, Align: bucket.AlignCalendar, Unit: bucket.Minute},
	} {
		table := mustTable(t, bucket.Config{Shards: 3})
		limits := mustLimits(t, unit)
		if !limits.Windowed() {
			t.Fatalf("%+v is not windowed", unit)
		}
		for i, s := range []struct {
			at               time.Duration
			tag              uint64
			sum              int64
			known, add, over int64
			remaining        int64
		}{
			{0, 1, 0, 0, 0, 0, 10},
			{time.Second, 1, 4, 4, 4, 0, 6},
			{2 * time.Second, 1, 4, 4, 0, 0, 6},
			{3 * time.Second, 1, 2, 4, 0, 0, 6}, // late
			{4 * time.Second, 2, 4, 4, 4, 0, 2}, // another process
			{5 * time.Second, 1, 9, 9, 5, 3, 0},
			{6 * time.Second, 2, 6, 6, 2, 2, 0},
			{61 * time.Second, 1, 9, 9, 9, 0, 1}, // the next window knows nothing of the last
		} {
			x, v := table.Counts(int64(s.at), &bucket.Request{Key: bucket.Key{Hi: 7, Lo: 5}, Limits: limits, Cost: s.sum}, s.tag, limits.WindowEnd(int64(s.at)))
			if v != bucket.Decided || x.Known != s.known || x.Added != s.add || x.Over != s.over || x.Decision.Remaining != s.remaining {
				t.Errorf("step %d: %v %+v, want known %d, added %d, over %d, remaining %d", i, v, x, s.known, s.add, s.over, s.remaining)
			}
			if want := (int64(s.at)/window + 1) * window; x.Ends != want || limits.WindowEnd(int64(s.at)) != want {
				t.Errorf("step %d: ends %d, want %d", i, x.Ends, want)
			}
		}
	}
}

// TestCountsSums: whatever is told twice, late or to the next owner, a counter has the sum of the highest.
func TestCountsSums(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 1000, time.Hour))
	rapid.Check(t, func(t *rapid.T) {
		table := largeTable(t)
		key, now := bucket.Key{Hi: 1}, int64(0)
		highest, want := make(map[uint64]int64), int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"tell": func(t *rapid.T) {
				tag := rapid.Uint64Range(1, 4).Draw(t, "tag")
				sum := rapid.Int64Range(0, 100).Draw(t, "sum")
				table.Counts(now, &bucket.Request{Key: key, Limits: limits, Cost: sum}, tag, limits.WindowEnd(now))
				want += max(0, sum-highest[tag])
				highest[tag] = max(highest[tag], sum)
			},
			"hand over": func(t *rapid.T) {
				from := table
				table = largeTable(t)
				hand(t, from, table, now, now, false)
			},
			"": func(t *rapid.T) {
				now += int64(time.Second)
				d := table.Do(now, &bucket.Request{Key: key, Limits: limits, Verb: bucket.Read})
				if got := d.Limit - d.Remaining; got != want {
					t.Fatalf("counted %d, want %d", got, want)
				}
			},
		})
	})
}
