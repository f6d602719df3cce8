package bucket_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestAlternatingLimitsMintNothing lets two sets of limits take turns on one
// key, as nodes do that run different rules for a moment. Whatever set A admits,
// A's exact account, fed with every charge under either set, admits as well. What
// the other set admits fills A's buckets at most.
func TestAlternatingLimitsMintNothing(t *testing.T) {
	kinds := map[string]func(*rapid.T, *bucket.Limit){
		"count":  func(t *rapid.T, l *bucket.Limit) { l.Count = rapid.Int64Range(1, 20).Draw(t, "count b") },
		"period": func(t *rapid.T, l *bucket.Limit) { l.Period = genPeriod.Draw(t, "period b") },
		"burst": func(t *rapid.T, l *bucket.Limit) {
			if l.Algorithm <= bucket.LeakyQueue {
				l.Burst = rapid.Int64Range(1, 20).Draw(t, "burst b")
			} else {
				l.Count = rapid.Int64Range(1, 20).Draw(t, "count b")
			}
		},
		"any": func(t *rapid.T, l *bucket.Limit) {
			*l = genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm b").algorithm, true).Draw(t, "limit b")
		},
	}
	for name, change := range kinds {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				a := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm a").algorithm, true).Draw(t, "limit a")
				b := a
				change(t, &b)
				alternate(t, mustLimits(t, a), mustLimits(t, b))
			})
		})
	}
	t.Run("sets of several", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { alternate(t, mixOfLimits(t), mixOfLimits(t)) })
	})
	t.Run("sets of the most", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { alternate(t, mostLimits(t), mostLimits(t)) })
	})
}

// mostLimits draws as many limits as one key can have.
func mostLimits(t *rapid.T) *bucket.Limits {
	var list []bucket.Limit
	for i := range bucket.MaxLimits {
		list = append(list, genLimit(algorithms[i%len(algorithms)].algorithm, true).Draw(t, "limit"))
	}
	return mustLimits(t, list...)
}

func alternate(t *rapid.T, a, b *bucket.Limits) {
	table := smallTable(t)
	accounts := []*account{newAccount(a), newAccount(b)}
	now := genStart.Draw(t, "start")
	var last bucket.Decision
	for _, acc := range accounts { // both are known before time passes
		table.Do(now, &bucket.Request{Limits: acc.limits, Cost: 1, Verb: bucket.Charge})
		for _, each := range accounts {
			if each == acc {
				each.charge(now, 1, false)
			} else {
				each.chargeOthers(now, 1)
			}
		}
	}
	for range 40 {
		acc := accounts[rapid.IntRange(0, 1).Draw(t, "set")]
		now += genStep(t, now, acc.limits.At(0), last)
		r := &bucket.Request{Limits: acc.limits, Cost: rapid.Int64Range(1, 3).Draw(t, "cost")}
		last = table.Do(now, r)
		wellFormed(t, r.Limits, r.Verb, last)
		if !last.Allowed {
			continue
		}
		if !acc.admits(now, r.Cost) {
			t.Fatalf("at %d: cost %d admitted, the exact account of these limits denies it", now, r.Cost)
		}
		for _, each := range accounts {
			if each == acc {
				each.charge(now, r.Cost, true)
			} else {
				each.chargeOthers(now, r.Cost)
			}
		}
	}
}

// TestChangedLimitKeepsWhatWasSpent: more room is there at once, less as well, and what was spent stays spent, also what was charged while
// the limit was 0.
func TestChangedLimitKeepsWhatWasSpent(t *testing.T) {
	for _, c := range algorithms {
		t.Run(c.name, func(t *testing.T) {
			table := smallTable(t)
			for i, row := range []struct {
				count, cost int64
				verb        bucket.Verb
				allowed     bool
				left        int64
			}{
				{10, 7, bucket.Check, true, 3},
				{20, 0, bucket.Check, true, 13},
				{5, 0, bucket.Check, false, 0},
				{7, 0, bucket.Check, false, 0},
				{8, 1, bucket.Check, true, 0},
				{9, 0, bucket.Check, true, 1},
				{0, 0, bucket.Check, false, 0},
				{20, 2, bucket.Check, true, 10},
				{0, 2, bucket.Charge, true, 0},
				{20, 1, bucket.Check, true, 7},
				{0, 2, bucket.Charge, true, 0},
				{20, 1, bucket.Check, true, 4},
				{10, 1, bucket.Check, false, 0},
			} {
				r := &bucket.Request{Limits: mustLimits(t, per(c.algorithm, row.count, time.Hour)), Cost: row.cost, Verb: row.verb}
				d := table.Do(day, r)
				wellFormed(t, r.Limits, r.Verb, d)
				if d.Allowed != row.allowed || d.Remaining != row.left {
					t.Errorf("row %d: %d an hour, cost %d: %+v, want allowed %v, %d left", i, row.count, row.cost, d, row.allowed, row.left)
				}
			}
		})
	}
}

// TestChangedCountStaysExact: one change of count or burst and no way back; the
// counter goes on as if what was spent had been spent under the new limit. What
// flows is compared from the change on, with nothing before it in flow.
func TestChangedCountStaysExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit")
		table, now := smallTable(t), genStart.Draw(t, "start")
		spent := rapid.Int64Range(1, 12).Draw(t, "spent")
		r := &bucket.Request{Limits: mustLimits(t, l), Cost: spent, Verb: bucket.Charge}
		table.Do(now, r)
		l.Count = rapid.Int64Range(1, 15).Draw(t, "new count")
		if l.Algorithm <= bucket.LeakyQueue {
			l.Burst = rapid.Int64Range(0, 15).Draw(t, "new burst")
		}
		r.Limits = mustLimits(t, l)
		a := newAccount(r.Limits)
		a.models[0].add(now, big.NewInt(spent))
		r.Verb = bucket.Read
		last := table.Do(now, r)
		if want := a.models[0].remaining(now); last.Remaining != want {
			t.Fatalf("after the change %d left, want %d", last.Remaining, want)
		}
	})
}

// TestChangedLimitRecovers: after any changes, a key left alone for long is
// completely free again under every limit.
func TestChangedLimitRecovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, now := smallTable(t), genStart.Draw(t, "start")
		var sets []*bucket.Limits
		for range 4 {
			l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit")
			l.Period = min(l.Period, 24*time.Hour)
			sets = append(sets, mustLimits(t, l))
		}
		for range 20 {
			now += rapid.Int64Range(0, int64(time.Hour)).Draw(t, "step")
			r := &bucket.Request{Limits: rapid.SampledFrom(sets).Draw(t, "set"), Cost: rapid.Int64Range(1, 3).Draw(t, "cost")}
			table.Do(now, r)
		}
		now += int64(2000 * 24 * time.Hour) // 20 × 3 units at one in a day, with room to spare
		for _, limits := range sets {
			d := table.Do(now, &bucket.Request{Limits: limits, Verb: bucket.Read, Cost: 1})
			if !d.Allowed || d.Remaining != d.Limit || d.ResetAfter != 0 {
				t.Fatalf("long after all changes: %+v", d)
			}
		}
	})
}
