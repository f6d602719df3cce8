package bucket_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestCappedLog holds a log of few entries between the exact log, which never
// merges, and one in which everything counts longer by the error that is documented.
func TestCappedLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLimit(bucket.SlidingLog, true).Draw(t, "limit")
		l.CountDenied = rapid.Bool().Draw(t, "count denied")
		l.LogEntries = rapid.OneOf(rapid.Int32Range(1, 6), rapid.Int32Range(1, 200)).Draw(t, "log entries")
		limits, table := mustLimits(t, l), smallTable(t)
		now := genStart.Draw(t, "start")
		exact, late := &model{limit: l}, &model{limit: l}
		if l.LogEntries > 1 {
			slots := max(int64(l.LogEntries)/2, min(64, int64(l.LogEntries))) - 1
			late.limit.Period += (l.Period + time.Duration(slots) - 1) / time.Duration(slots)
		}
		var last bucket.Decision
		for range 60 {
			now += genStep(t, now, l, last)
			r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 3).Draw(t, "cost")}
			last = table.Do(now, r)
			units := big.NewInt(r.Cost)
			if last.Allowed && !exact.admits(now, units) {
				t.Fatalf("at %d: cost %d admitted, the exact log denies", now, r.Cost)
			}
			if !last.Allowed && l.LogEntries > 1 && late.admits(now, units) {
				t.Fatalf("at %d: cost %d denied, even the late log admits", now, r.Cost)
			}
			if last.Allowed || l.CountDenied {
				exact.add(now, units)
				late.add(now, units)
			}
		}
	})
}

// TestRefundedLog: which entries a refund takes from a log is open, but it lies
// between taking the newest and taking the oldest first.
func TestRefundedLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLimit(bucket.SlidingLog, true).Draw(t, "limit")
		limits, table := mustLimits(t, l), smallTable(t)
		now := genStart.Draw(t, "start")
		most, least := &model{limit: l}, &model{limit: l}
		var last bucket.Decision
		for range 40 {
			now += genStep(t, now, l, last)
			r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost")}
			if rapid.IntRange(0, 2).Draw(t, "refund") == 0 {
				r.Verb = bucket.Refund
				table.Do(now, r)
				least.takeNewest(now, r.Cost)
				most.takeOldest(now, r.Cost)
			} else {
				r.Verb = bucket.Charge
				table.Do(now, r)
				least.add(now, big.NewInt(r.Cost))
				most.add(now, big.NewInt(r.Cost))
			}
			r.Verb, r.Cost = bucket.Read, 1
			last = table.Do(now, r)
			if lo, hi := most.remaining(now), least.remaining(now); last.Remaining < lo || last.Remaining > hi {
				t.Fatalf("at %d: %d left, want %d to %d", now, last.Remaining, lo, hi)
			}
		}
	})
}

func (m *model) takeNewest(now, cost int64) {
	for i := len(m.charges) - 1; i >= 0; i-- {
		cost = m.take(i, now, cost)
	}
}

func (m *model) takeOldest(now, cost int64) {
	for i := range m.charges {
		cost = m.take(i, now, cost)
	}
}

// take takes up to cost from entry i, if it still counts, and returns the rest.
func (m *model) take(i int, now, cost int64) int64 {
	if now-m.charges[i].at >= int64(m.limit.Period) {
		return cost
	}
	n := min(cost, m.charges[i].units.Int64())
	m.charges[i].units = new(big.Int).Sub(m.charges[i].units, big.NewInt(n))
	return cost - n
}

// TestRefundNeverAboveFull: refunds lower what is spent now by at most their
// cost, never below nothing, and in no algorithm for a later window.
func TestRefundNeverAboveFull(t *testing.T) {
	for _, c := range algorithms {
		t.Run(c.name, func(t *testing.T) {
			gen := genLimit(c.algorithm, true)
			rapid.Check(t, func(t *rapid.T) {
				l := gen.Draw(t, "limit")
				l.Align = bucket.AlignEpoch // windows and steps of the two tables are to stay the same
				limits := mustLimits(t, l)
				table, plain := smallTable(t), smallTable(t)
				now := genStart.Draw(t, "start")
				refunded := int64(0)
				for range 30 {
					now += genStep(t, now, limits.At(0), bucket.Decision{})
					r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost"), Verb: bucket.Charge}
					before := left(table, now, r)
					if rapid.Bool().Draw(t, "refund") {
						r.Verb = bucket.Refund
						table.Do(now, r)
						refunded += r.Cost
						if after := left(table, now, r); after < before || after > before+r.Cost {
							t.Fatalf("at %d: refunding %d raised %d left to %d", now, r.Cost, before, after)
						}
						continue
					}
					table.Do(now, r)
					plain.Do(now, r)
					if got, bound := left(table, now, r), left(plain, now, r)+refunded; got > bound {
						t.Fatalf("at %d: %d left, without refunds of %d there would be %d", now, got, refunded, bound-refunded)
					}
				}
			})
		})
	}
}

// TestCappedLogSpreadsItsError: a client that keeps exactly to a limit above log_entries waits at most for the documented error,
// also after its log was merged with a copy or became shorter.
func TestCappedLogSpreadsItsError(t *testing.T) {
	for _, c := range []struct {
		count, entries int64
		period, most   time.Duration
	}{
		{3000, 1024, time.Hour, time.Hour/511 + 1},
		{70_000, 1024, 24 * time.Hour, 24*time.Hour/511 + 1},
		{6, 3, 12 * time.Second, 6 * time.Second},
		{100, 60, time.Minute, time.Minute/59 + 1},
	} {
		l := per(bucket.SlidingLog, c.count, c.period)
		l.LogEntries = int32(c.entries)
		table, copied, limits, step := smallTable(t), smallTable(t), mustLimits(t, l), int64(c.period)/c.count
		hand := func(now int64) {
			hand(t, table, copied, now, now, true)
			hand(t, copied, table, now, now, true)
		}
		var window []int64
		waited := time.Duration(0)
		for i := range 3 * c.count {
			now := day + i*step
			if i%(c.count/2) == 0 {
				hand(now)
			}
			r := &bucket.Request{Limits: limits, Cost: 1}
			d := table.Do(now, r)
			if waited = max(waited, d.RetryAfter); !d.Allowed {
				continue
			}
			if window = append(window, now); int64(len(window)) > c.count && now-window[int64(len(window))-1-c.count] < int64(c.period) {
				t.Fatalf("%d of %d: more than %d in %v", i, 3*c.count, c.count, c.period)
			}
		}
		if waited > c.most {
			t.Errorf("%d in %v, %d entries: waited %v, want at most %v", c.count, c.period, c.entries, waited, c.most)
		}
		if share := float64(len(window)) / float64(3*c.count); share < 0.6 || c.entries > 3 && share < 0.95 {
			t.Errorf("%d in %v, %d entries: %.3f admitted", c.count, c.period, c.entries, share)
		}
	}
}
