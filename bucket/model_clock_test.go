package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestClockStepsBack asks the same of two equal counters, one whose clock has
// stayed and one whose clock has stepped back: the second never gets more, and
// when the clocks agree again it has not gained.
func TestClockStepsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := mixOfLimits(t)
		stepped, stayed := smallTable(t), smallTable(t)
		now := genStart.Draw(t, "start")
		for range 30 {
			now += genStep(t, now, limits.At(0), bucket.Decision{})
			r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 3).Draw(t, "cost"), Verb: bucket.Charge}
			stepped.Do(now, r)
			stayed.Do(now, r)
			back := genStep(t, now, limits.At(0), bucket.Decision{})
			if now < math.MinInt64+back {
				back = 0
			}
			charge := rapid.Bool().Draw(t, "charge back there")
			for _, cost := range []int64{1, 2, 3, 5, 8, 12} {
				q := &bucket.Request{Limits: limits, Cost: cost, Verb: bucket.Read}
				got, bound := stepped.Do(now-back, q), stayed.Do(now, q)
				if got.Allowed && !bound.Allowed {
					t.Fatalf("at %d, %d ns back, cost %d: %+v, but %+v", now, back, cost, got, bound)
				}
			}
			if charge {
				stepped.Do(now-back, r)
				stayed.Do(now, r)
			}
			lax(t, now, limits, stepped, stayed, "gained by a step back")
		}
	})
}

// TestClockExtremes meets every algorithm at the ends of time and of its counts.
func TestClockExtremes(t *testing.T) {
	times := []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64}
	sizes := []int64{0, 1, 2, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64}
	periods := []time.Duration{time.Microsecond, time.Hour, 290 * year, math.MaxInt64}
	for _, c := range algorithms {
		for _, count := range sizes {
			for _, period := range periods {
				limits, err := bucket.NewLimits(per(c.algorithm, count, period))
				if err != nil {
					if period < 290*year {
						t.Errorf("%s %d per %v: %v", c.name, count, period, err)
					}
					continue
				}
				extremes(t, limits, times, sizes)
			}
		}
	}
}

func extremes(t *testing.T, limits *bucket.Limits, times, costs []int64) {
	t.Helper()
	for _, verb := range []bucket.Verb{bucket.Check, bucket.Charge, bucket.Refund} {
		for _, first := range times {
			table := smallTable(t)
			for _, now := range times {
				for _, cost := range costs {
					for _, at := range []int64{first, now} {
						r := &bucket.Request{Limits: limits, Cost: cost, Verb: verb}
						wellFormed(t, limits, verb, table.Do(at, r))
						r.Verb = bucket.Read
						wellFormed(t, limits, bucket.Read, table.Do(at, r))
					}
				}
			}
		}
	}
}

// TestSaturation: a debt at the end of int64 stays a debt and never wraps.
func TestSaturation(t *testing.T) {
	for _, c := range algorithms {
		for _, multiple := range []int64{1, 1 << 40, math.MaxInt64} {
			l := per(c.algorithm, 10, time.Hour)
			l.Cost = multiple
			table, limits := smallTable(t), mustLimits(t, l)
			r := &bucket.Request{Limits: limits, Cost: math.MaxInt64, Verb: bucket.Charge}
			for range 4 {
				if d := table.Do(day, r); !d.Allowed || d.Remaining != 0 {
					t.Fatalf("%s: charging all there is: %+v", c.name, d)
				}
			}
			r.Verb, r.Cost = bucket.Check, 0
			if d := table.Do(day, r); d.Allowed || d.Remaining != 0 {
				t.Errorf("%s × %d: a saturated debt admits: %+v", c.name, multiple, d)
			}
			r.Cost = math.MaxInt64
			if d := table.Do(day, r); d.Allowed || d.RetryAfter != bucket.Never {
				t.Errorf("%s × %d: all there is of ten: %+v", c.name, multiple, d)
			}
		}
	}
}
