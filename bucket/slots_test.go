package bucket_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestSlotRetry: however many slots are taken, renewed and released, a denial never says a later time than the first at which the
// units are free, and that time itself if so few are taken that it looks at all.
func TestSlotRetry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const count = 60
		table, limits := smallTable(t), mustLimits(t, bucket.Limit{Algorithm: bucket.Concurrency, Count: count})
		type slot struct {
			id         uint64
			units, end int64
		}
		var open []slot // by deadline
		now, last := day, uint64(0)
		do := func(verb bucket.Verb, id uint64, cost int64, d time.Duration) bool {
			return table.Do(now, &bucket.Request{Limits: limits, Cost: cost, Verb: verb, Reservation: &bucket.Reservation{
				ID: id, Least: cost, MaxOpen: 1000, For: d,
			}}).Allowed
		}
		held := func() (sum int64) {
			for _, x := range open {
				sum += x.units
			}
			return sum
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			d := time.Duration(rapid.Int64Range(1, 100).Draw(t, "for")) * time.Millisecond
			switch what := rapid.SampledFrom([]string{"acquire", "acquire", "acquire", "renew", "renew", "release", "wait"}).Draw(t, "what"); {
			case what == "wait":
				now += int64(d) / 10
			case what == "acquire":
				units := rapid.Int64Range(1, 3).Draw(t, "units")
				last++
				if got := do(bucket.Reserve, last, units, d); got != (held()+units <= count) {
					t.Fatalf("%d units beside %d: %v", units, held(), got)
				} else if got {
					open = append(open, slot{last, units, now + int64(d)})
				}
			case len(open) > 0:
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				if what == "renew" {
					do(bucket.Extend, open[i].id, 0, d)
					open[i].end = max(open[i].end, now+int64(d))
				} else {
					do(bucket.Settle, open[i].id, 0, 0)
					open = slices.Delete(open, i, i+1)
				}
			}
			open = slices.DeleteFunc(open, func(x slot) bool { return x.end <= now })
			slices.SortStableFunc(open, func(a, b slot) int { return cmp.Compare(a.end, b.end) })
			units := rapid.Int64Range(1, count+1).Draw(t, "wanted")
			got, want, rest := table.Do(now, &bucket.Request{Limits: limits, Cost: units}).RetryAfter, time.Duration(0), held()
			for i := 0; rest+units > count && i < len(open); i++ {
				rest, want = rest-open[i].units, time.Duration(open[i].end-now)
			}
			if units > count {
				want = bucket.Never
			}
			if got > want || got < want && (len(open) <= 16 || units > count) || got == 0 && want > 0 {
				t.Fatalf("%d units beside %d of %d slots: retry after %v, free after %v", units, held(), len(open), got, want)
			}
		}
	})
}

// TestCanceledSlot: Cancel gives back what Reserve has charged to other limits, but not to a window that has begun since.
func TestCanceledSlot(t *testing.T) {
	for name, c := range map[string]struct {
		limit bucket.Limit
		at    string // of Cancel
		spent int64  // then
	}{
		"window":             {per(bucket.FixedWindow, 9, time.Minute), "0:01", 2},
		"the next window":    {per(bucket.FixedWindow, 9, 10*time.Second), "0:10", 2},
		"bucket":             {per(bucket.TokenBucket, 10, 1000*time.Second), "0:00.001", 2},
		"log":                {per(bucket.SlidingLog, 9, time.Minute), "0:01", 2},
		"sliding counter":    {per(bucket.SlidingCounter, 9, time.Minute), "0:01", 2},
		"the whole of a day": {bucket.Limit{Algorithm: bucket.FixedWindow, Count: 9, Align: bucket.AlignCalendar, Unit: bucket.Day}, "0:01", 2},
	} {
		t.Run(name, func(t *testing.T) {
			table, limits := smallTable(t), mustLimits(t, bucket.Limit{Algorithm: bucket.Concurrency, Count: 3}, c.limit)
			do := func(at string, v bucket.Verb, cost int64, x *bucket.Reservation) {
				table.Do(clock(t, at), &bucket.Request{Limits: limits, Cost: cost, Verb: v, Reservation: x, Once: 7})
			}
			do("0:00", bucket.Reserve, 3, &bucket.Reservation{ID: 1, Least: 3, MaxOpen: 9, For: 20 * time.Second})
			do(c.at, bucket.Charge, 2, nil)
			do(c.at, bucket.Cancel, 0, &bucket.Reservation{ID: 1, For: 20 * time.Second})
			if list, _ := table.Look(clock(t, c.at), bucket.Key{}, limits); list[0].Remaining != 3 || list[1].Spent != c.spent {
				t.Errorf("%+v, want 3 left and %d spent", list, c.spent)
			}
		})
	}
}

// TestSlotForgotten: of a slot that is settled by the only one who has it nothing is remembered, also in a replica.
func TestSlotForgotten(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, bucket.Limit{Algorithm: bucket.Concurrency, Count: 3})
	for i := range uint64(100) {
		for _, verb := range []bucket.Verb{bucket.Reserve, bucket.Settle} {
			r := &bucket.Request{Limits: limits, Cost: 2, Verb: verb, Once: i + 1, Reservation: &bucket.Reservation{
				ID: i + 1, Least: 2, MaxOpen: 9, For: time.Hour, Fresh: true,
			}}
			if verb == bucket.Settle {
				r.Cost, r.Once = 0, 0
			}
			if d := table.Do(day, r); !d.Allowed || verb == bucket.Settle && r.Reservation.Reserved.Returned != 2 {
				t.Fatalf("slot %d: verb %v: %+v, %+v", i, verb, d, r.Reservation.Reserved)
			}
		}
	}
	copied := smallTable(t)
	hand(t, table, copied, day, day, false)
	again := &bucket.Request{Limits: limits, Verb: bucket.Settle, Reservation: &bucket.Reservation{ID: 7, Fresh: true}}
	for _, each := range []*bucket.Table{table, copied} {
		if n := each.Stats().Entries; n > 1 {
			t.Errorf("%d records, want that of the counter at most", n)
		}
		if each.Do(day, again); !again.Reservation.Reserved.Unknown {
			t.Errorf("settled again: %+v", again.Reservation.Reserved)
		}
	}
}

// TestExtendedSlot: units that Extend adds to a slot are charged to the other limits, as those of
// Reserve are, unless these have too few; what it takes away is given back, but not to a window
// that has begun since.
func TestExtendedSlot(t *testing.T) {
	type step struct {
		at          string
		units       int64
		had         time.Duration // of units below 0
		allowed     bool
		held, spent int64 // then
	}
	for name, c := range map[string]struct {
		limit bucket.Limit
		steps []step
	}{
		"window": {per(bucket.FixedWindow, 1000, time.Hour), []step{{"0:01", 49, 0, true, 100, 100}, {"0:01", -9, time.Millisecond, true, 91, 91}, {"0:02", -9, 2 * time.Second, true, 82, 82}}},
		"denied": {per(bucket.FixedWindow, 99, time.Hour), []step{{"0:01", 49, 0, false, 51, 51}, {"0:01", 48, 0, true, 99, 99}}},
		"the next window": {per(bucket.FixedWindow, 1000, 10*time.Second), []step{
			{"0:10", 5, 0, true, 56, 5}, {"0:11", -3, 2 * time.Second, true, 53, 5}, {"0:11", -3, time.Second, true, 50, 2},
		}},
		"bucket":          {per(bucket.TokenBucket, 1000, 1000000*time.Second), []step{{"0:00.5", 49, 0, true, 100, 100}, {"0:00.5", -9, time.Millisecond, true, 91, 91}}},
		"log":             {per(bucket.SlidingLog, 1000, time.Minute), []step{{"0:01", 49, 0, true, 100, 100}, {"0:01", -9, time.Millisecond, true, 91, 91}}},
		"sliding counter": {per(bucket.SlidingCounter, 1000, time.Minute), []step{{"0:01", 49, 0, true, 100, 100}, {"0:01", -9, time.Millisecond, true, 91, 91}}},
	} {
		t.Run(name, func(t *testing.T) {
			table, limits := smallTable(t), mustLimits(t, bucket.Limit{Algorithm: bucket.Concurrency, Count: 100}, c.limit)
			do := func(at string, v bucket.Verb, cost int64, d time.Duration) bool {
				return table.Do(clock(t, at), &bucket.Request{Limits: limits, Cost: cost, Verb: v, Reservation: &bucket.Reservation{
					ID: 1, Least: 1, MaxOpen: 9, For: d,
				}}).Allowed
			}
			do("0:00", bucket.Reserve, 51, time.Minute)
			for i, s := range c.steps {
				if got := do(s.at, bucket.Extend, s.units, s.had); got != s.allowed {
					t.Errorf("step %d: allowed %v", i, got)
				}
				copied := smallTable(t)
				hand(t, table, copied, clock(t, s.at), clock(t, s.at), false)
				for _, each := range []*bucket.Table{table, copied} {
					list, _ := each.Look(clock(t, s.at), bucket.Key{}, limits)
					if held := 100 - list[0].Remaining; held != s.held || list[1].Spent != s.spent {
						t.Errorf("step %d: %d held, %d spent; want %d and %d", i, held, list[1].Spent, s.held, s.spent)
					}
				}
			}
		})
	}
}
