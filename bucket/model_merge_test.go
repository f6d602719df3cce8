package bucket_test

import (
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// apart draws n tables in which one key has had lives of its own under the sets, and a time that
// is, unless some may be ahead, behind none of them.
func apart(t *rapid.T, n int, sets func(i int) []*bucket.Limits, mayBeAhead bool) (tables []*bucket.Table, now int64) {
	start := genStart.Draw(t, "start")
	now = start
	mayBeAhead = mayBeAhead && rapid.Bool().Draw(t, "may be ahead, without leases") // see the exceptions in merge.go
	noLeases := mayBeAhead
	for i := range n {
		noLeases = noLeases || slices.ContainsFunc(sets(i), func(l *bucket.Limits) bool { return movesWindows(l, len(sets(i)) > 1) })
	}
	var times []int64
	for i := range n {
		h := newLife(start, sets(i), smallTable(t))
		h.onward, h.noLeases = !mayBeAhead, noLeases
		for range rapid.IntRange(0, 10).Draw(t, "steps") {
			h.step(t)
		}
		tables, times = append(tables, h.tables[0]), append(times, h.now)
		now = max(now, h.now)
	}
	if mayBeAhead && rapid.Bool().Draw(t, "ahead") {
		now = rapid.SampledFrom(times).Draw(t, "whose time")
	}
	for _, table := range tables {
		table.Sweep(now, 0) // what is free is as good as nothing, and merged as nothing
	}
	return tables, now
}

// movesWindows reports whether a merge may move the windows of a limit of l, which may change or not.
func movesWindows(l *bucket.Limits, change bool) bool {
	for i := range l.Len() {
		if change && l.At(i).Algorithm == bucket.SlidingCounter || l.At(i).Align == bucket.AlignFirstHit {
			return true
		}
	}
	return false
}

// joined returns a table with the counters of the first of tables, merged with those of the others in turn.
func joined(t *rapid.T, now int64, tables ...*bucket.Table) *bucket.Table {
	to := smallTable(t)
	for i, from := range tables {
		hand(t, from, to, now, now, i > 0)
	}
	return to
}

// alike fails t when two tables answer differently, now or later.
func alike(t *rapid.T, now int64, limits *bucket.Limits, a, b *bucket.Table, what string) {
	t.Helper()
	for range 4 {
		lax(t, now, limits, a, b, what)
		lax(t, now, limits, b, a, what+", the other way round")
		now += genStep(t, now, limits.At(0), bucket.Decision{})
	}
}

// TestMergeNeverLaxer: what two counters have become is not more permissive than either: now under the limits of
// both, and later under those that it has counted for.
func TestMergeNeverLaxer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := []*bucket.Limits{genSet(t, anyLimit)}
		if sets = append(sets, sets[0]); rapid.Bool().Draw(t, "other limits") {
			sets[1] = genSet(t, anyLimit)
		}
		tables, now := apart(t, 2, func(i int) []*bucket.Limits { return sets[i:][:1] }, true)
		both := joined(t, now, tables...)
		lax(t, now, sets[1], both, tables[0], "than the one under the other's limits")
		lax(t, now, sets[0], both, tables[1], "than the other under the one's limits")
		for range 6 {
			lax(t, now, sets[0], both, tables[0], "than the one")
			lax(t, now, sets[1], both, tables[1], "than the other")
			now += genStep(t, now, sets[0].At(0), bucket.Decision{})
		}
	})
	t.Run("after changes", rapid.MakeCheck(func(t *rapid.T) { // both have counted for several sets
		sets := []*bucket.Limits{mustLimits(t, genAny(t)), mustLimits(t, genAny(t)), mustLimits(t, genAny(t))}
		tables, now := apart(t, 2, func(int) []*bucket.Limits { return sets }, true)
		for _, table := range tables {
			for _, set := range sets { // the last may just have been reset
				table.Do(now, &bucket.Request{Key: lifeKey, Limits: set, Cost: 1, Verb: bucket.Charge})
			}
		}
		both := joined(t, now, tables...)
		for range 6 {
			for _, set := range sets {
				lax(t, now, set, both, tables[0], "than the one")
				lax(t, now, set, both, tables[1], "than the other")
			}
			now += genStep(t, now, sets[0].At(0), bucket.Decision{})
		}
	}))
}

// TestMergeOfTheMost: with more former limits than are kept, the limits in force are still never more permissive.
func TestMergeOfTheMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := []*bucket.Limits{mostLimits(t), mostLimits(t), mostLimits(t)}
		now := genStart.Draw(t, "start")
		tables := []*bucket.Table{smallTable(t), smallTable(t)}
		for range rapid.IntRange(1, 5).Draw(t, "charges") {
			i := rapid.IntRange(0, 1).Draw(t, "table")
			r := &bucket.Request{Limits: sets[i+rapid.IntRange(0, 1).Draw(t, "set")], Cost: 1, Verb: bucket.Charge}
			tables[i].Do(now, r)
			now += genStep(t, now, sets[0].At(0), bucket.Decision{})
		}
		both := joined(t, now, tables...)
		again := smallTable(t)
		hand(t, both, again, now, now, false)
		first := sets[0]
		lax(t, now, first, again, both, "than before it was handed on")
		if tables[0].Stats().Entries > 0 {
			r := &bucket.Request{Limits: first, Cost: 1, Verb: bucket.Charge}
			for _, table := range tables {
				table.Do(now, r)
			}
			both = joined(t, now, tables...)
			lax(t, now, first, both, tables[0], "than the one")
			lax(t, now, first, both, tables[1], "than the other")
		}
	})
}

// TestMergeAgain: merging the same once more, or a counter with itself, changes nothing and is no change.
func TestMergeAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := []*bucket.Limits{genSet(t, anyLimit), genSet(t, anyLimit)}
		tables, now := apart(t, 2, func(i int) []*bucket.Limits { return sets[i:][:1] }, true)
		once, again := joined(t, now, tables...), joined(t, now, tables...)
		again.Record(0, bucket.RecordAll, 0)
		for i := range 3 {
			from := once
			if i < 2 {
				from = tables[i]
			}
			hand(t, from, again, now, now, true)
			if keys, _, _ := again.Drain(0, nil); len(keys) > 0 {
				t.Fatalf("merging the same again is a change")
			}
		}
		for _, set := range sets {
			alike(t, now, set, once, again, "merged again")
		}
	})
}

// TestMergeInAnyOrder: the order of merging does not matter.
func TestMergeInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := genSet(t, anyLimit)
		x, now := apart(t, 3, func(int) []*bucket.Limits { return []*bucket.Limits{set} }, false)
		alike(t, now, set, joined(t, now, x[0], x[1]), joined(t, now, x[1], x[0]), "in the other order")
		alike(t, now, set, joined(t, now, x[0], x[1], x[2]), joined(t, now, x[0], joined(t, now, x[1], x[2])), "in other pairs")
	})
	t.Run("one ahead of the clock", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			set := genSet(t, anyLimit)
			x, now := apart(t, 2, func(int) []*bucket.Limits { return []*bucket.Limits{set} }, true)
			alike(t, now, set, joined(t, now, x[0], x[1]), joined(t, now, x[1], x[0]), "in the other order")
		})
	})
}

// TestMergeIsNoStricter: merging with a counter that is free, or with less of the same, leaves all decisions as they were.
func TestMergeIsNoStricter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := genSet(t, anyLimit)
		h := newLife(genStart.Draw(t, "start"), []*bucket.Limits{set}, smallTable(t), smallTable(t))
		h.onward, h.noLeases = true, movesWindows(set, false)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			h.step(t)
		}
		// One of the two goes on by itself, never giving back.
		for range rapid.IntRange(0, 5).Draw(t, "charges") {
			h.move(t)
			h.tables[0].Do(h.now, &bucket.Request{Key: lifeKey, Limits: set, Cost: 1, Verb: bucket.Charge})
		}
		alike(t, h.now, set, joined(t, h.now, h.tables[0], h.tables[1]), h.tables[0], "with what it contains")
	})
}
