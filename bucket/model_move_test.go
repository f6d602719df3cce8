package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// moving is a counter of one key that goes from node to node. true is the true time; each node's clock shows something else, and is
// now and then corrected.
type moving struct {
	table      *bucket.Table
	true, skew int64
	ahead      int64
	limits     *bucket.Limits
	late       int64 // time spent on the way
}

func (m *moving) ask(verb bucket.Verb, cost int64) bucket.Decision {
	return m.table.Do(m.true+m.skew, &bucket.Request{Limits: m.limits, Verb: verb, Cost: cost})
}

// move takes the counter to another node, or corrects the clock of this one.
func (m *moving) move(t *rapid.T, skews *rapid.Generator[int64], transit int64) {
	if rapid.IntRange(0, 3).Draw(t, "correct") == 0 {
		m.ahead = skews.Draw(t, "correction")
		m.table.Correct(m.ahead)
		return
	}
	from, sent := m.table, m.true+m.skew
	m.table, m.skew = smallTable(t), skews.Draw(t, "skew")
	m.ahead = skews.Draw(t, "ahead")
	m.table.Correct(m.ahead)
	m.true, m.late = m.true+transit, m.late+transit
	hand(t, from, m.table, sent, m.true+m.skew, rapid.Bool().Draw(t, "merge"))
}

// TestMovesKeepWindows: wherever a counter goes, and whatever the clocks there show, a spent key is denied exactly as long as
// the denying node said. What is admitted afterwards is again one limit per window, and no window is shorter than half of one.
func TestMovesKeepWindows(t *testing.T) {
	const limit, period = 5, int64(10 * time.Second)
	fixed := func(f func(*bucket.Limit)) bucket.Limit {
		l := per(bucket.FixedWindow, limit, time.Duration(period))
		f(&l)
		return l
	}
	for _, c := range []struct {
		name     string
		limit    bucket.Limit
		longest  int64
		shortest int64 // of a whole limit spent at once when the last one has just come back
	}{
		{"fixed window", fixed(func(*bucket.Limit) {}), period * 3 / 2, period / 2},
		{"calendar", fixed(func(l *bucket.Limit) {
			l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Minute, "Europe/Vienna"
		}), int64(time.Minute) * 3 / 2, int64(time.Minute) / 2},
		{"calendar days", fixed(func(l *bucket.Limit) {
			l.Align, l.Unit, l.Zone = bucket.AlignCalendar, bucket.Day, "Europe/Vienna"
		}), int64(time.Hour) * 37, int64(time.Hour) * 11},
		{"first hit", fixed(func(l *bucket.Limit) { l.Align = bucket.AlignFirstHit }), period, period},
		{"steps", bucket.Limit{Algorithm: bucket.TokenBucket, Count: limit, Period: time.Duration(period), Refill: bucket.RefillInterval}, period * 3 / 2, period / 2},
		{"steps from the first", bucket.Limit{Algorithm: bucket.TokenBucket, Count: limit, Period: time.Duration(period), Refill: bucket.RefillInterval, Align: bucket.AlignFirstHit}, period, period},
		{"token bucket", per(bucket.TokenBucket, limit, time.Duration(period)), period / limit, 0},
		{"leaky bucket", per(bucket.LeakyBucket, limit, time.Duration(period)), period / limit, 0},
		{"leaky queue", per(bucket.LeakyQueue, limit, time.Duration(period)), period / limit, 0},
		{"log", per(bucket.SlidingLog, limit, time.Duration(period)), period, 0},
		{"sliding counter", per(bucket.SlidingCounter, limit, time.Duration(period)), 2 * period, 0},
		{"sliding window", per(bucket.SlidingWindow, limit, time.Duration(period)), period + period/50, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				skews := rapid.OneOf(
					rapid.SampledFrom([]int64{0, 1, -1, 3e6, -3e6, 2e9, -2e9, 10e9, -10e9, int64(time.Hour), -int64(time.Hour), period / 2}),
					rapid.Int64Range(-3*period, 3*period), rapid.Int64Range(-int64(40*24*time.Hour), int64(40*24*time.Hour)),
				)
				m := &moving{table: smallTable(t), true: day + rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "start"), limits: mustLimits(t, c.limit)}
				for round := range 6 {
					admitted := int64(0)
					d := m.ask(bucket.Check, 1)
					for ; d.Allowed; d = m.ask(bucket.Check, 1) {
						admitted++
					}
					wait := int64(d.RetryAfter)
					if admitted > limit || admitted == 0 || wait > c.longest || round > 0 && wait < c.shortest {
						t.Fatalf("round %d: %d admitted, then denied for %v", round, admitted, d.RetryAfter)
					}
					due := m.true + wait
					m.late = 0
					for range rapid.IntRange(0, 4).Draw(t, "moves") {
						m.true += rapid.Int64Range(0, max(0, due-1-m.true)).Draw(t, "until the move")
						m.move(t, skews, rapid.SampledFrom([]int64{0, 0, 1e6}).Draw(t, "on its way"))
						if d := m.ask(bucket.Check, 1); d.Allowed && m.true < due {
							t.Fatalf("round %d: admitted %d ns before %v were over", round, due-m.true, time.Duration(wait))
						} else if d.Allowed {
							break
						}
					}
					if m.true < due-1 {
						m.true = due - 1
						if d := m.ask(bucket.Read, 1); d.Allowed {
							t.Fatalf("round %d: admitted 1 ns before %v were over", round, time.Duration(wait))
						}
					}
					if m.true = max(m.true, due+m.late); !m.ask(bucket.Read, 1).Allowed {
						t.Fatalf("round %d: denied for more than %v", round, time.Duration(wait))
					}
				}
			})
		})
	}
}

// TestMergeAcrossClocks: two counters that nodes with different clocks have counted become one on a third that is never more
// permissive than either.
func TestMergeAcrossClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := genSet(t, func(l bucket.Limit) bool { return l.Refill != bucket.RefillInterval && l.Period <= 30*24*time.Hour })
		skews := rapid.OneOf(rapid.Int64Range(-100, 100), genAhead)
		now, to := day, smallTable(t)
		skew := skews.Draw(t, "skew of the third")
		var tables [2]*bucket.Table
		var behind [2]int64
		for i := range tables {
			tables[i], behind[i] = smallTable(t), skews.Draw(t, "skew")
		}
		for range rapid.IntRange(1, 10).Draw(t, "charges") {
			i := rapid.IntRange(0, 1).Draw(t, "whose")
			tables[i].Do(now+behind[i], &bucket.Request{Limits: set, Cost: rapid.Int64Range(1, 3).Draw(t, "cost"), Verb: bucket.Charge})
			now += genStep(t, now, set.At(0), bucket.Decision{})
		}
		for i := range tables {
			hand(t, tables[i], to, now+behind[i], now+skew, true)
		}
		for range 8 {
			for _, cost := range []int64{1, 2, 5} {
				r := &bucket.Request{Limits: set, Cost: cost, Verb: bucket.Read}
				d := to.Do(now+skew, r)
				for i := range tables {
					if one := tables[i].Do(now+behind[i], r); d.Allowed && !one.Allowed {
						t.Fatalf("at %d, cost %d: %+v, but of table %d %+v", now, cost, d, i, one)
					}
				}
			}
			now += genStep(t, now, set.At(0), bucket.Decision{})
		}
	})
}

// TestWindowsAlignAgain: the window after one of another clock ends at a boundary of this clock, about one window later. A
// check that only comes then gets the decision of a key without a counter.
func TestWindowsAlignAgain(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 10, time.Minute))
	for _, c := range []struct {
		name        string
		from, at    string // when it is spent, and what the next node's clock shows then
		again, ends string // when it is spent again, and until when
	}{
		{"clocks agree", "1:00:30", "1:00:30", "1:01:00", "1:02:00"},
		{"a little ahead", "1:00:30", "1:00:30.1", "1:01:00.1", "1:02:00"},
		{"a little behind", "1:00:30", "1:00:29.9", "1:00:59.9", "1:02:00"},
		{"a little behind, asked later", "1:00:30", "1:00:29.9", "1:01:10", "1:02:00"},
		{"nearly half ahead", "1:00:30", "1:00:59", "1:01:29", "1:02:00"},
		{"more than half ahead", "1:00:30", "1:01:05", "1:01:35", "1:03:00"},
		{"an hour and a second behind", "2:00:30", "1:00:29", "1:00:59", "1:02:00"},
	} {
		from, to, r := smallTable(t), smallTable(t), &bucket.Request{Limits: limits, Cost: 10}
		from.Do(clock(t, c.from), r)
		hand(t, from, to, clock(t, c.from), clock(t, c.at), false)
		to.Do(clock(t, c.at), &bucket.Request{Limits: limits, Cost: 1}) // is denied
		d := to.Do(clock(t, c.again), r)
		if got := clock(t, c.again) + int64(d.ResetAfter); !d.Allowed || got != clock(t, c.ends) {
			t.Errorf("%s: %+v at %s, resets at %s, want %s", c.name, d, c.again, time.Unix(0, got).UTC().Format("15:04:05.0"), c.ends)
		}
	}
}

// TestCorrect: a correction moves no window that is open; what begins afterwards follows the new clock.
func TestCorrect(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 10, time.Minute))
	table, r := mustTable(t, bucket.Config{Shards: 2}), &bucket.Request{Limits: limits, Cost: 4}
	now := clock(t, "1:00:30")
	var rc bucket.Receipt
	table.DoHeld(now, r, &rc)
	table.Correct(int64(time.Hour) + int64(10*time.Second))
	table.GiveBack(now, &rc)
	if got := left(table, now, r); got != 6 {
		t.Errorf("%d left, want 6: a receipt from before the correction gives nothing back", got)
	}
	if d := table.Do(now, &bucket.Request{Limits: limits, Cost: 7}); d.Allowed || d.RetryAfter != 30*time.Second {
		t.Errorf("in the open window: %+v, want retry after 30s", d)
	}
	if d := table.Do(now, &bucket.Request{Key: bucket.Key{Lo: 9}, Limits: limits, Cost: 1}); d.ResetAfter != 20*time.Second {
		t.Errorf("a new window: %+v, want one that resets in 20s", d)
	}
	if d := table.Do(clock(t, "1:01:00"), r); !d.Allowed || d.ResetAfter != 50*time.Second {
		t.Errorf("the next window: %+v, want one that resets in 50s", d)
	}
	table.Correct(math.MaxInt64) // the end of time is bounded, as that of callers is
	wellFormed(t, limits, bucket.Check, table.Do(now, r))
}
