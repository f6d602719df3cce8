package bucket_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// mixOfLimits draws one to three limits of any algorithms.
func mixOfLimits(t *rapid.T) *bucket.Limits {
	var list []bucket.Limit
	for range rapid.IntRange(1, 3).Draw(t, "limits") {
		list = append(list, genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit"))
	}
	return mustLimits(t, list...)
}

// lax fails t when table answers a read of any cost at now more generously than
// the strict one does.
func lax(t *rapid.T, now int64, limits *bucket.Limits, table, strict *bucket.Table, what string) {
	t.Helper()
	for _, cost := range []int64{1, 2, 3, 5, 8, 12} {
		r := &bucket.Request{Limits: limits, Cost: cost, Verb: bucket.Read}
		got, bound := table.Do(now, r), strict.Do(now, r)
		if got.Allowed && !bound.Allowed || got.RetryAfter < bound.RetryAfter {
			t.Fatalf("at %d cost %d: %s: %+v, but %+v", now, cost, what, got, bound)
		}
	}
}

// TestGiveBackRestores: a charge that is given back with nothing in between has
// never been, now and at all later times.
func TestGiveBackRestores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := mixOfLimits(t)
		table, a := smallTable(t), newAccount(limits)
		now := genStart.Draw(t, "start")
		var last bucket.Decision
		for range 25 {
			now += genStep(t, now, limits.At(int(last.Index)), last)
			r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost")}
			if rapid.Bool().Draw(t, "undo") {
				var rc bucket.Receipt
				if _, charged := table.DoHeld(now, r, &rc); charged {
					if rapid.Bool().Draw(t, "wait") {
						now += genStep(t, now, limits.At(0), last)
					}
					table.GiveBack(now, &rc)
				}
				r.Verb = bucket.Read
				continue
			}
			last = table.Do(now, r)
			a.compare(t, a.do(now, r), last)
		}
	})
}

// fixedPhase returns the limits with windows and steps that do not depend on when
// the first charge comes. A charge that begins one also ends it sooner, given back
// or not, so two histories with different first charges cannot be compared.
func fixedPhase(t *rapid.T, limits *bucket.Limits) *bucket.Limits {
	var list []bucket.Limit
	for i := range limits.Len() {
		l := limits.At(i)
		l.Align = bucket.AlignEpoch
		list = append(list, l)
	}
	return mustLimits(t, list...)
}

// TestGiveBackNeverMints compares two tables that see the same charges and resets. In one, other charges are in progress, which are given
// back early, late, twice, or not at all, in any order. It is never more generous than the one in which these were never made.
func TestGiveBackNeverMints(t *testing.T) {
	for _, c := range algorithms {
		t.Run(c.name, func(t *testing.T) {
			gen := genLimit(c.algorithm, true)
			rapid.Check(t, func(t *rapid.T) {
				manyGiveBacks(t, fixedPhase(t, mustLimits(t, gen.Draw(t, "limit"))))
			})
		})
	}
	t.Run("together", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { manyGiveBacks(t, fixedPhase(t, mixOfLimits(t))) })
	})
}

func manyGiveBacks(t *rapid.T, limits *bucket.Limits) {
	given, never := smallTable(t), smallTable(t)
	now := genStart.Draw(t, "start")
	var held []*bucket.Receipt
	for range 25 {
		r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost"), Verb: bucket.Charge}
		switch what := rapid.IntRange(0, 4).Draw(t, "what"); {
		case what == 0:
			if rapid.IntRange(0, 7).Draw(t, "reset") == 0 {
				r.Verb = bucket.Reset
			}
			given.Do(now, r)
			never.Do(now, r)
		case what <= 2:
			rc := new(bucket.Receipt)
			if _, charged := given.DoHeld(now, r, rc); !charged {
				t.Fatalf("a charge did not charge")
			}
			held = append(held, rc)
		case len(held) > 0:
			i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
			given.GiveBack(now, held[i])
			if rapid.IntRange(0, 3).Draw(t, "again") > 0 {
				held = slices.Delete(held, i, i+1)
			}
		}
		lax(t, now, limits, given, never, "more than if nothing had been held")
		if rapid.Bool().Draw(t, "move") {
			now += genStep(t, now, limits.At(0), bucket.Decision{})
		}
	}
}

// TestGiveBackGives: what was charged between is kept, what is given back is
// really free again.
func TestGiveBackGives(t *testing.T) {
	for _, c := range algorithms {
		t.Run(c.name, func(t *testing.T) {
			table, limits := smallTable(t), mustLimits(t, per(c.algorithm, 10, time.Hour))
			r := &bucket.Request{Limits: limits, Cost: 4}
			var rc bucket.Receipt
			if d, charged := table.DoHeld(day, r, &rc); !charged || d.Remaining != 6 {
				t.Fatalf("held: %+v", d)
			}
			r.Cost = 3
			if d := table.Do(day, r); d.Remaining != 3 {
				t.Fatalf("between: %+v", d)
			}
			for range 2 { // twice is once
				table.GiveBack(day, &rc)
				if got := left(table, day, r); got != 7 {
					t.Fatalf("after giving back 4: %d left, want 7", got)
				}
			}
		})
	}
}

// TestGiveBackFromFirstHit: a window that begins with a held charge gets back what
// was held, and the next window nothing.
func TestGiveBackFromFirstHit(t *testing.T) {
	limits := mustLimits(t, with(per(bucket.FixedWindow, 10, time.Minute), firstHit))
	for _, c := range []struct {
		between, giveBack, ask string
		left                   int64
	}{
		{"0:10", "0:20", "0:20", 9},
		{"0:10", "0:59.999999999", "0:59.999999999", 9},
		{"1:00", "1:00", "1:00", 9},
		{"1:30", "2:00", "2:00", 9},
		{"1:30", "2:30", "2:31", 10},
	} {
		table, r := smallTable(t), &bucket.Request{Limits: limits, Cost: 4}
		var rc bucket.Receipt
		table.DoHeld(clock(t, "0:00"), r, &rc)
		r.Cost = 1
		table.Do(clock(t, c.between), r)
		table.GiveBack(clock(t, c.giveBack), &rc)
		if got := left(table, clock(t, c.ask), r); got != c.left {
			t.Errorf("%+v: %d left", c, got)
		}
	}
}

// TestGiveBackAcrossChange: a charge made under limits that have changed since is
// not given back twice, to the old and to the new ones.
func TestGiveBackAcrossChange(t *testing.T) {
	for _, x := range algorithms {
		for _, y := range algorithms {
			table := smallTable(t)
			a := &bucket.Request{Limits: mustLimits(t, per(x.algorithm, 10, time.Hour)), Cost: 3}
			b := &bucket.Request{Limits: mustLimits(t, per(y.algorithm, 10, time.Minute)), Cost: 4}
			var rc bucket.Receipt
			table.DoHeld(day, a, &rc)
			table.Do(day, b)
			for range 2 {
				table.GiveBack(day, &rc)
				for _, r := range []*bucket.Request{a, b} {
					if got := left(table, day, r); got < 3 || got > 6 {
						t.Errorf("%s and %s: %d left of 10 with 4 spent and 3 held and given back", x.name, y.name, got)
					}
				}
			}
		}
	}
}

// TestGiveBackInterval: an undone check is no last check.
func TestGiveBackInterval(t *testing.T) {
	limit := with(per(bucket.FixedWindow, 10, time.Hour), func(l *bucket.Limit) { l.MinInterval = time.Minute })
	table, r := smallTable(t), &bucket.Request{Limits: mustLimits(t, limit), Cost: 1}
	table.Do(day, r)
	now := day + int64(time.Minute)
	var rc bucket.Receipt
	if d, charged := table.DoHeld(now, r, &rc); !charged {
		t.Fatalf("a minute later: %+v", d)
	}
	table.GiveBack(now, &rc)
	if d := table.Do(now+1, r); !d.Allowed || d.Remaining != 8 {
		t.Fatalf("after the check was undone: %+v", d)
	}
}

// TestReceiptOfADenial: only a charge leaves something to give back.
func TestReceiptOfADenial(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, per(bucket.TokenBucket, 2, time.Hour))
	table.Do(day, &bucket.Request{Limits: limits, Cost: 2})
	for _, verb := range []bucket.Verb{bucket.Check, bucket.Read, bucket.Refund, bucket.Reset} {
		r := &bucket.Request{Limits: limits, Cost: 1, Verb: verb}
		if verb > bucket.Read {
			r.Key.Hi = 9
		}
		var rc bucket.Receipt
		if d, charged := table.DoHeld(day, r, &rc); charged || d.Allowed && verb <= bucket.Read {
			t.Errorf("%s: %+v, charged %v", verb, d, charged)
		}
		table.GiveBack(day, &rc)
		if got := left(table, day, &bucket.Request{Limits: limits}); got != 0 {
			t.Errorf("%s: %d left, want 0", verb, got)
		}
	}
}
