package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// These tests are named after defects of other limiters, to prevent them here.

// A refund, a reset or a raised and lowered limit must not leave more than there is.
func TestPitfallRemainingAboveLimit(t *testing.T) {
	for _, c := range algorithms {
		table, now := smallTable(t), day
		for i := range int64(200) {
			now += i % 7 * int64(time.Minute)
			limits := mustLimits(t, per(c.algorithm, 1+i%13, time.Hour))
			r := &bucket.Request{Limits: limits, Cost: i % 5, Verb: bucket.Verb(i % 4)}
			wellFormed(t, limits, r.Verb, table.Do(now, r))
		}
	}
}

// Checks that come before one unit has leaked must not discard the fraction: ten an hour leak ten an hour, however frequent the
// checks are.
func TestPitfallSteadyTrafficStopsLeak(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue} {
		l := per(algorithm, 7, time.Hour)
		l.Burst = 1
		table, limits := smallTable(t), mustLimits(t, l)
		admitted := 0
		for ms := int64(0); ms <= int64(3*time.Hour); ms += int64(time.Second) {
			if table.Do(day+ms, &bucket.Request{Limits: limits, Cost: 1}).Allowed {
				admitted++
			}
		}
		// 1 at once, then 7 an hour, less what comes late because only whole
		// seconds ask: each unit takes 514.29 s, so 515 s, of which 3 h hold 20.
		if admitted != 21 {
			t.Errorf("algorithm %d: %d admitted in 3 hours, want 21", algorithm, admitted)
		}
	}
}

// A bucket that was full does not refill twice: after a long rest it holds its
// capacity, and then its rate, and no more.
func TestPitfallTwiceTheRateAfterRefill(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue} {
		table, limits := smallTable(t), mustLimits(t, per(algorithm, 60, time.Minute))
		r := &bucket.Request{Limits: limits, Cost: 1}
		drain(table, day, r)
		now := day + int64(24*time.Hour)
		if got := drain(table, now, r); got != 60 {
			t.Errorf("algorithm %d: %d after a day's rest, want 60", algorithm, got)
		}
		for second := range int64(120) {
			if got := drain(table, now+(second+1)*int64(time.Second), r); got != 1 {
				t.Fatalf("algorithm %d: %d in second %d, want 1", algorithm, got, second+1)
			}
		}
	}
}

func TestPitfallDivisionByZeroAtLimitZero(t *testing.T) {
	for _, c := range algorithms {
		l := per(c.algorithm, 0, time.Hour)
		for _, soft := range []int32{0, 1000} {
			l.Soft = soft
			table, limits := smallTable(t), mustLimits(t, l)
			for _, verb := range []bucket.Verb{bucket.Charge, bucket.Check, bucket.Refund, bucket.Read, bucket.Reset, bucket.Check} {
				d := table.Do(day, &bucket.Request{Limits: limits, Cost: 1, Verb: verb})
				wellFormed(t, limits, verb, d)
				if (verb == bucket.Check || verb == bucket.Read) && (d.Allowed || d.RetryAfter != bucket.Never) {
					t.Errorf("%s: verb %d: %+v", c.name, verb, d)
				}
			}
		}
		share := mustLimits(t, per(c.algorithm, 2, time.Hour)).Share(3)
		if d := smallTable(t).Do(day, &bucket.Request{Limits: share, Cost: 1}); d.Allowed {
			t.Errorf("%s: a third of 2 admits: %+v", c.name, d)
		}
	}
}

// Giving back works at nothing left, and gives exactly what it says.
func TestPitfallRefundAtNothingLeft(t *testing.T) {
	for _, c := range algorithms {
		tell(t, `
			0:00 5 allowed left=0
			0:00 denied left=0
			0:00 refund 1 refunded
			0:00 read allowed left=1
			0:00 allowed left=0
			0:00 denied
			0:00 refund 50 refunded
			0:00 5 allowed left=0
			0:00 denied
		`, per(c.algorithm, 5, time.Hour))
	}
}

// A changed period answers, at once and with the same or less, back and forth.
func TestPitfallChangedDuration(t *testing.T) {
	for _, c := range algorithms {
		table := smallTable(t)
		long, short := mustLimits(t, per(c.algorithm, 5, time.Hour)), mustLimits(t, per(c.algorithm, 5, time.Second))
		now := day
		for i := range 2000 {
			now += int64(time.Millisecond)
			limits := long
			if i%2 == 1 {
				limits = short
			}
			d := table.Do(now, &bucket.Request{Limits: limits, Cost: 1})
			wellFormed(t, limits, bucket.Check, d)
			if i >= 5 && limits == long && d.Allowed {
				t.Fatalf("%s: check %d: the hour's five were spent: %+v", c.name, i, d)
			}
		}
	}
}

// A month is the calendar's month and a year the calendar's year.
func TestPitfallMonthAndYearLengths(t *testing.T) {
	for _, c := range []struct {
		unit bucket.Unit
		now  time.Time
		want time.Duration
	}{
		{bucket.Month, time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), 31 * 24 * time.Hour},
		{bucket.Month, time.Date(2025, 2, 1, 0, 0, 0, 0, time.UTC), 28 * 24 * time.Hour},
		{bucket.Month, time.Date(2024, 2, 1, 0, 0, 0, 0, time.UTC), 29 * 24 * time.Hour},
		{bucket.Month, time.Date(2025, 4, 30, 23, 59, 59, 999_999_999, time.UTC), 1},
		{bucket.Month, time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), 24 * time.Hour},
		{bucket.Year, time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), 365 * 24 * time.Hour},
		{bucket.Year, time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), 366 * 24 * time.Hour},
		{bucket.Year, time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), 365 * 24 * time.Hour},
		{bucket.Week, time.Date(2025, 3, 9, 23, 0, 0, 0, time.UTC), time.Hour},
		{bucket.Week, time.Date(2025, 3, 10, 0, 0, 0, 0, time.UTC), 7 * 24 * time.Hour},
	} {
		end := windowEnd(t, smallTable(t), mustLimits(t, calendarLimit("", c.unit)), c.now.UnixNano())
		if got := time.Duration(end - c.now.UnixNano()); got != c.want {
			t.Errorf("unit %d at %v lasts %v, want %v", c.unit, c.now, got, c.want)
		}
	}
}

// A denied check charges none of the key's limits, wherever in the list the one
// that denies stands, and not by what it would still have admitted.
func TestPitfallOthersChargedThoughDenied(t *testing.T) {
	for _, c := range algorithms {
		wide, narrow := per(c.algorithm, 100, time.Hour), per(c.algorithm, 2, time.Hour)
		for _, list := range [][]bucket.Limit{{wide, narrow}, {narrow, wide}, {wide, narrow, wide}} {
			table, limits := smallTable(t), mustLimits(t, list...)
			r := &bucket.Request{Limits: limits, Cost: 1}
			if got := drain(table, day, r); got != 2 {
				t.Fatalf("%s: %d admitted, want 2", c.name, got)
			}
			for range 50 {
				table.Do(day, r)
			}
			// The narrow limit goes: the wide one was charged twice, not 52 times.
			r.Limits = mustLimits(t, wide)
			if got := left(table, day, r); got > 98 {
				t.Errorf("%s: %d left of 100, but 2 were spent", c.name, got)
			}
		}
		// Nothing has to be carried over here, so the figure is exact.
		table := smallTable(t)
		r := &bucket.Request{Limits: mustLimits(t, wide, narrow)}
		for _, cost := range []int64{3, 50, 100} {
			r.Cost = cost
			table.Do(day, r)
		}
		r.Cost, r.Verb = 1, bucket.Refund
		table.Do(day, r)
		r.Cost, r.Verb = 2, bucket.Check
		if d := table.Do(day, r); !d.Allowed || d.Remaining != 0 || d.Index != 1 {
			t.Errorf("%s: after three denials: %+v", c.name, d)
		}
	}
}

// A cost above what is left burns nothing: the rest can still be spent.
func TestPitfallDeniedCallsBurnQuota(t *testing.T) {
	for _, c := range algorithms {
		tell(t, `
			0:00 3 allowed left=2
			0:00 3 denied left=2
			0:00 3 denied left=2
			0:00 100 denied left=2
			0:00 100 denied left=2
			0:00 2 allowed left=0
		`, per(c.algorithm, 5, time.Hour))
	}
}

// Check and remaining are one reading: counting down, each check reports one
// less than the one before, with no reading of another moment in between.
func TestPitfallCheckAndRemainingReadApart(t *testing.T) {
	const limit, workers = 2000, 8
	for _, c := range algorithms {
		table, limits := smallTable(t), mustLimits(t, per(c.algorithm, limit, time.Hour))
		seen := make(chan int64, limit)
		done := make(chan struct{})
		for range workers {
			go func() {
				defer func() { done <- struct{}{} }()
				r := &bucket.Request{Limits: limits, Cost: 1}
				for d := table.Do(day, r); d.Allowed; d = table.Do(day, r) {
					seen <- d.Remaining
				}
			}()
		}
		for range workers {
			<-done
		}
		close(seen)
		unique := map[int64]bool{}
		for n := range seen {
			unique[n] = true
		}
		if len(unique) != limit || !unique[0] || !unique[limit-1] {
			t.Errorf("%s: %d different remainders of %d", c.name, len(unique), limit)
		}
	}
}

// A new limit counts from the next check on, without a reset.
func TestPitfallLimitChangesOnlyAtReset(t *testing.T) {
	for _, c := range algorithms {
		table := smallTable(t)
		r := &bucket.Request{Limits: mustLimits(t, per(c.algorithm, 3, time.Hour)), Cost: 1}
		drain(table, day, r)
		r.Limits = mustLimits(t, per(c.algorithm, 8, time.Hour))
		if got := drain(table, day, r); got != 5 {
			t.Errorf("%s: raised from 3 to 8, %d more admitted, want 5", c.name, got)
		}
		r.Limits = mustLimits(t, per(c.algorithm, 4, time.Hour))
		if got := drain(table, day, r); got != 0 {
			t.Errorf("%s: lowered to 4 with 8 spent, %d admitted", c.name, got)
		}
	}
}

// A counter that makes room for others while it is live is counted.
func TestPitfallSilentEviction(t *testing.T) {
	table := mustTable(t, bucket.Config{Shards: 1, MaxEntries: 2})
	limits := mustLimits(t, per(bucket.FixedWindow, 1, time.Hour))
	for i := range uint64(5) {
		table.Do(day, &bucket.Request{Key: bucket.Key{Hi: i}, Limits: limits, Cost: 1})
	}
	if s := table.Stats(); s.EvictedLive != 3 {
		t.Errorf("three live counters left: %+v", s)
	}
}
