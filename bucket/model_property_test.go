package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// year is long enough that nothing which is counted per year overflows a test's time.
const year = 365 * 24 * time.Hour

// exactly is how far from the epoch exact tests go, so that now plus any wait
// that matters is still a time.
const exactly = math.MaxInt64 / 4

func genCount(small bool) *rapid.Generator[int64] {
	few := rapid.Int64Range(1, 12)
	if small {
		return few
	}
	return rapid.OneOf(few, few, few, rapid.Int64Range(1, 100_000),
		rapid.SampledFrom([]int64{0, 1, 3, 7, 1e9, 1e9 + 7, 1 << 40, 1 << 62, math.MaxInt64 - 1, math.MaxInt64}))
}

var genPeriod = rapid.OneOf(
	rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Microsecond + 1, 7777, time.Millisecond, time.Second, time.Minute, time.Hour,
		24 * time.Hour, 30 * 24 * time.Hour, year, 10 * year, 70 * year,
	}),
	rapid.Map(rapid.Int64Range(1000, int64(time.Hour)), func(ns int64) time.Duration { return time.Duration(ns) }),
)

// genLimit draws any limit of the algorithm; with small, of few units, so that
// a handful of checks exhausts it.
func genLimit(algorithm bucket.Algorithm, small bool) *rapid.Generator[bucket.Limit] {
	return rapid.Custom(func(t *rapid.T) bucket.Limit {
		l := bucket.Limit{
			Algorithm: algorithm,
			Count:     genCount(small).Draw(t, "count"),
			Period:    genPeriod.Draw(t, "period"),
		}
		switch algorithm {
		case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
			if rapid.Bool().Draw(t, "own burst") {
				l.Burst = genCount(small).Draw(t, "burst")
			}
		case bucket.FixedWindow:
			l.Align = rapid.SampledFrom([]bucket.Align{bucket.AlignEpoch, bucket.AlignFirstHit}).Draw(t, "align")
		case bucket.SlidingWindow:
			l.SubWindows = rapid.SampledFrom([]int32{0, 2, 3, 7, 60, 3600}).Draw(t, "sub-windows")
		}
		if algorithm == bucket.TokenBucket && rapid.Bool().Draw(t, "in steps") {
			l.Refill = bucket.RefillInterval
			l.Align = rapid.SampledFrom([]bucket.Align{bucket.AlignEpoch, bucket.AlignFirstHit}).Draw(t, "align")
		}
		return l
	})
}

// genOptions adds options to a limit.
func genOptions(t *rapid.T, l *bucket.Limit) {
	if rapid.Bool().Draw(t, "soft") && l.Burst == 0 && l.Count < 1<<40 {
		l.Soft = rapid.SampledFrom([]int32{1, 10, 33, 100, 1000}).Draw(t, "soft percent")
	}
	if rapid.Bool().Draw(t, "interval") {
		l.MinInterval = rapid.SampledFrom([]time.Duration{1, 1000, time.Second, l.Period / 3, l.Period, min(2*l.Period, 100*year)}).Draw(t, "min interval")
		if rapid.Bool().Draw(t, "blocks") {
			l.MinInterval, l.BlockFor = 0, l.MinInterval
		}
	}
	if rapid.Bool().Draw(t, "own cost") && l.Count < 1<<40 && l.Burst < 1<<40 {
		l.Cost = rapid.SampledFrom([]int64{1, 2, 3, 1000}).Draw(t, "unit cost")
	}
}

var genStart = rapid.SampledFrom([]int64{
	0, 1, -1, 1_700_000_000_123_456_789, -1_000_000_000_000_000_001, int64(time.Minute) - 1, -int64(time.Hour),
})

// genStep draws the time until the next check, mostly near where something happens.
func genStep(t *rapid.T, now int64, l bucket.Limit, last bucket.Decision) int64 {
	period := max(int64(l.Period), 1000)
	step := int64(0)
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
	case 2:
		step = rapid.Int64Range(1, 1000).Draw(t, "ns")
	case 3:
		step = rapid.Int64Range(0, period).Draw(t, "within a period")
	case 4:
		step = period + rapid.Int64Range(-1, 1).Draw(t, "off")
	case 5:
		step = rapid.Int64Range(0, 3).Draw(t, "periods") * period
	case 6:
		step = (floorDiv(now, period)+1)*period - now + rapid.Int64Range(-1, 1).Draw(t, "off")
	case 7:
		step = int64(last.RetryAfter) - rapid.Int64Range(0, 1).Draw(t, "off")
	case 8:
		step = int64(last.ResetAfter) - rapid.Int64Range(0, 1).Draw(t, "off")
	case 9:
		step = period/max(l.Count, 1) + rapid.Int64Range(-1, 1).Draw(t, "off")
	}
	if step < 0 || step > exactly-now {
		return 0
	}
	return step
}

// genCost draws a cost near what the limit can still admit.
func genCost(t *rapid.T, capacity int64, last bucket.Decision) int64 {
	switch rapid.IntRange(0, 6).Draw(t, "cost") {
	case 0, 1, 2:
		return rapid.Int64Range(0, 3).Draw(t, "few")
	case 3:
		return max(0, last.Remaining-1) + rapid.Int64Range(0, 1).Draw(t, "off")
	case 4:
		return capacity / rapid.Int64Range(1, 3).Draw(t, "part")
	case 5:
		return min(capacity, math.MaxInt64-1) + rapid.Int64Range(0, 1).Draw(t, "off")
	}
	return rapid.SampledFrom([]int64{1, 1000, 1 << 40, math.MaxInt64}).Draw(t, "odd")
}

// genVerb draws a verb, mostly a check, that the exact model knows how to count.
func genVerb(t *rapid.T, a *account, now, cost int64) bucket.Verb {
	switch rapid.IntRange(0, 11).Draw(t, "verb") {
	case 0, 1:
		return bucket.Read
	case 2, 3:
		if cost > 0 && a.roomFor(now, cost) {
			return bucket.Charge
		}
	case 4:
		if cost > 0 && a.refundable(now, cost) {
			return bucket.Refund
		}
	case 5:
		if rapid.IntRange(0, 3).Draw(t, "reset") == 0 {
			return bucket.Reset
		}
	}
	return bucket.Check
}

// genAsk draws how a check is asked, mostly plainly.
func genAsk(t *rapid.T, r *bucket.Request) {
	if rapid.IntRange(0, 2).Draw(t, "reserves") == 0 {
		r.Reserve = rapid.OneOf(rapid.Int64Range(0, 12), rapid.Int64Range(-1, math.MaxInt64)).Draw(t, "reserve")
	}
	switch rapid.IntRange(0, 7).Draw(t, "ask") {
	case 0, 1:
		r.Drain = true
	case 2:
		r.NoDelay = true
	case 3:
		r.Drain, r.NoDelay = true, true
	}
}

var algorithms = []struct {
	name      string
	algorithm bucket.Algorithm
}{
	{"token bucket", bucket.TokenBucket}, {"leaky bucket", bucket.LeakyBucket}, {"leaky queue", bucket.LeakyQueue},
	{"fixed window", bucket.FixedWindow}, {"sliding log", bucket.SlidingLog},
	{"sliding counter", bucket.SlidingCounter}, {"sliding window", bucket.SlidingWindow},
}

// play runs random requests against a table and the exact account of limits.
func play(t *rapid.T, limits *bucket.Limits, steps int) {
	table, a := smallTable(t), newAccount(limits)
	now := genStart.Draw(t, "start")
	var last bucket.Decision
	for range steps {
		guide := limits.At(rapid.IntRange(0, limits.Len()-1).Draw(t, "guide"))
		now += genStep(t, now, guide, last)
		cost := genCost(t, a.models[last.Index].capacity(), last)
		if guide.CountDenied {
			cost = min(cost, 4) // the model knows no counts beyond int64
		}
		r := &bucket.Request{Key: bucket.Key{Hi: 5, Lo: 6}, Limits: limits, Cost: cost}
		r.Verb = genVerb(t, a, now, cost)
		genAsk(t, r)
		last = table.Do(now, r)
		a.compare(t, a.do(now, r), last)
	}
}

// TestExact compares every algorithm with its model: alone and without options, with soft limits, minimum intervals, times that block and
// unit costs, where denied checks count too, and several limits of one key, as many as it can have: all are charged or none.
func TestExact(t *testing.T) {
	exact := func(name string, steps int, limits func(*rapid.T) []bucket.Limit) {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) { play(t, mustLimits(t, limits(t)...), steps) }))
	}
	for _, c := range algorithms {
		small := genLimit(c.algorithm, true)
		exact(c.name+"/small", 30, func(t *rapid.T) []bucket.Limit { return []bucket.Limit{small.Draw(t, "limit")} })
		exact(c.name+"/any", 30, func(t *rapid.T) []bucket.Limit { return []bucket.Limit{genLimit(c.algorithm, false).Draw(t, "limit")} })
		exact(c.name+"/options", 30, func(t *rapid.T) []bucket.Limit {
			l := small.Draw(t, "limit")
			genOptions(t, &l)
			return []bucket.Limit{l}
		})
		exact(c.name+"/count denied", 30, func(t *rapid.T) []bucket.Limit {
			l := small.Draw(t, "limit")
			l.CountDenied = true
			if c.algorithm != bucket.SlidingLog || rapid.Bool().Draw(t, "interval") {
				l.MinInterval = rapid.SampledFrom([]time.Duration{1, 1000, l.Period / 3, l.Period}).Draw(t, "min interval")
			}
			return []bucket.Limit{l}
		})
	}
	exact("together", 30, func(t *rapid.T) (list []bucket.Limit) {
		for range rapid.IntRange(2, 5).Draw(t, "limits") {
			l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit")
			if genOptions(t, &l); rapid.IntRange(0, 9).Draw(t, "unlimited") == 0 {
				l = bucket.Limit{Unlimited: true}
			}
			list = append(list, l)
		}
		return list
	})
	exact("most", 12, func(t *rapid.T) []bucket.Limit { return mostLimits(t).List() })
}
