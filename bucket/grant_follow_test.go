package bucket_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestGrantIsAChange: leases and returns are numbered and recorded as checks are, and ask for the same seal and gate. But room that comes
// back is no risk, so it waits for no copy.
func TestGrantIsAChange(t *testing.T) {
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	table, key := smallTable(t), bucket.Key{}
	table.Record(0, bucket.RecordLasting, 50*time.Millisecond)
	unreplicated := leaseRequest(limits, 1, time.Minute)
	unreplicated.Unreplicated = true
	var last, three bucket.Grant
	lease := func(ms int64, l *bucket.LeaseRequest) string {
		g, seq, v := table.Grant(day+ms*int64(time.Millisecond), l)
		if last = g; g.Units == 3 {
			three = g
		}
		return fmt.Sprint(g.Units, " granted, change ", seq, verdicts[v])
	}
	giveBack := func(key bucket.Key, id uint64, unspent int64) string {
		back, seq, v := table.Return(day+60*int64(time.Millisecond), key, id, unspent)
		return fmt.Sprint(back, " back, change ", seq, verdicts[v])
	}
	drained := func() string {
		keys, _, _ := table.Drain(0, nil)
		table.Confirm(0, math.MaxInt64)
		return fmt.Sprint(len(keys), " keys")
	}
	of := func(want int64) *bucket.LeaseRequest { return leaseRequest(limits, want, time.Minute) }
	for i, s := range [][2]string{
		{lease(0, unreplicated), "1 granted, change 1"},
		{drained(), "0 keys"},
		{lease(0, of(3)), "3 granted, change 2"},
		{lease(51, of(1)), "0 granted, change 2, behind"},
		{lease(51, unreplicated), "1 granted, change 3"},
		{giveBack(key, three.ID, 1), "1 back, change 4"},
		{drained(), "1 keys"},
		{lease(60, of(3)), "3 granted, change 5"},
		{giveBack(key, three.ID, 2), "2 back, change 6"},
		{drained(), "1 keys"},
		{giveBack(key, three.ID, 2), "0 back, change 6"},
		{giveBack(bucket.Key{Hi: 9}, three.ID, 2), "0 back, change 6"},
		{lease(60, of(0)), "0 granted, change 6"},
		{drained(), "0 keys"},
	} {
		if s[0] != s[1] {
			t.Errorf("step %d: %s, want %s", i, s[0], s[1])
		}
	}
	g := grant(t, table, day+60*int64(time.Millisecond), limits, 1, time.Minute)
	table.Seal(0)
	before := exported(table, day, 0)
	if got := lease(60, of(1)) + "; " + giveBack(key, g.ID, 1); got != "0 granted, change 7, sealed; 0 back, change 7, sealed" || last != (bucket.Grant{}) {
		t.Errorf("sealed: %s", got)
	}
	if after := exported(table, day, 0); !bytes.Equal(before.Data, after.Data) {
		t.Error("a sealed shard has changed")
	}
	if table.Open(0, 7); giveBack(key, g.ID, 1) != "1 back, change 8" {
		t.Error("opened again: not returned")
	}
}

// verdicts are those that are told with a decision.
var verdicts = map[bucket.Verdict]string{bucket.Behind: ", behind", bucket.Sealed: ", sealed"}

// TestGrantedAcrossClocks: a lease counts once, on any clock: in the window that is open there when it ends.
func TestGrantedAcrossClocks(t *testing.T) {
	for _, c := range []struct {
		limit bucket.Limit
		ahead []time.Duration
		left  [4]int64 // at once, in the last moment of the window, then, one window later
	}{
		{per(bucket.FixedWindow, 10, time.Minute), []time.Duration{-time.Hour, 0, time.Hour}, [4]int64{6, 6, 10, 10}},
		{per(bucket.FixedWindow, 10, time.Minute), []time.Duration{-5 * time.Second, 5 * time.Second, 12 * time.Second}, [4]int64{6, 6, 6, 10}},
		{per(bucket.SlidingCounter, 10, time.Minute), []time.Duration{-time.Hour, -5 * time.Second, 0, time.Hour}, [4]int64{6, 6, 6, 10}},
		{per(bucket.SlidingCounter, 10, time.Minute), []time.Duration{5 * time.Second, 12 * time.Second}, [4]int64{6, 6, 6, 7}},
	} {
		for _, ahead := range c.ahead {
			from, to, limits := smallTable(t), smallTable(t), mustLimits(t, c.limit)
			grant(t, from, clock(t, "1:00:50"), limits, 4, 8*time.Second)
			hand(t, from, to, clock(t, "1:00:51"), clock(t, "1:00:51")+int64(ahead), false)
			r := &bucket.Request{Limits: limits}
			for i, at := range []string{"1:00:51", "1:00:59.9", "1:01:00", "1:02:00"} {
				if got := left(to, clock(t, at)+int64(ahead), r); got != c.left[i] {
					t.Errorf("%s, %v ahead: at %s %d left, want %d", c.limit.Algorithm, ahead, at, got, c.left[i])
				}
			}
		}
	}
}

// TestMergedLeases: what either of two divergent copies has granted counts, and comes back when it is returned.
func TestMergedLeases(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.TokenBucket, bucket.SlidingLog, bucket.SlidingCounter} {
		limits := mustLimits(t, per(algorithm, 20, time.Hour))
		one, other, r := smallTable(t), smallTable(t), &bucket.Request{Limits: limits, Cost: 4}
		both := grant(t, one, day, limits, 3, time.Minute)
		hand(t, one, other, day, day, false)
		mine := grant(t, one, day+1, limits, 4, time.Minute)
		other.Do(day+1, r)
		theirs := grant(t, other, day+2, limits, 2, time.Minute)
		hand(t, other, one, day+2, day+2, true)
		after := left(one, day+2, r)
		if after > 11 { // the other has 11
			t.Errorf("%s: %d left of 20, the other has 11", algorithm, after)
		}
		for _, g := range []bucket.Grant{mine, theirs, both} {
			after += g.Units - 1
			if back, _, _ := one.Return(day+3, r.Key, g.ID, g.Units-1); back != g.Units-1 || left(one, day+3, r) != after {
				t.Errorf("%s: %d of %+v came back, %d left, want %d", algorithm, back, g, left(one, day+3, r), after)
			}
		}
	}
}

// TestReturnAcrossCosts: what a unit costs has changed since it was granted, so what was charged is not what would be given back.
func TestReturnAcrossCosts(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.TokenBucket, bucket.SlidingLog, bucket.SlidingCounter} {
		cheap := per(algorithm, 20, time.Hour)
		dear := with(cheap, func(l *bucket.Limit) { l.Cost = 3 })
		table, r := smallTable(t), &bucket.Request{Limits: mustLimits(t, cheap), Cost: 8}
		g := grant(t, table, day, r.Limits, 2, time.Minute)
		table.Do(day, r)
		r.Limits = mustLimits(t, dear)
		left(table, day, r)
		table.Do(day, &bucket.Request{Limits: r.Limits, Cost: 1})
		table.Return(day, r.Key, g.ID, 2)
		if got := left(table, day, r); got > 9 {
			t.Errorf("%s: %d left of 20 with 11 spent", algorithm, got)
		}
	}
}

// TestIntervalAfterGranting: a limit with a minimum interval comes into force while units are granted, which may be spent at any moment.
func TestIntervalAfterGranting(t *testing.T) {
	window := per(bucket.FixedWindow, 10, time.Hour)
	table, before := smallTable(t), mustLimits(t, window)
	r := &bucket.Request{Limits: mustLimits(t, with(window, func(l *bucket.Limit) { l.MinInterval = 30 * time.Second })), Cost: 1}
	g := grant(t, table, clock(t, "0:10"), before, 2, 50*time.Second)
	for _, c := range []struct {
		at    string
		retry time.Duration
	}{{"0:10", 80*time.Second - 1}, {"0:45", 45*time.Second - 1}, {"1:00", 30*time.Second - 1}, {"1:29", time.Second - 1}} {
		if d := table.Do(clock(t, c.at), r); d.Allowed || d.RetryAfter != c.retry || d.Remaining != 8 {
			t.Errorf("at %s: %+v, want to retry after %v", c.at, d, c.retry)
		}
	}
	if d := table.Do(clock(t, "1:29.999999999"), r); !d.Allowed {
		t.Errorf("the interval has passed since the end of %+v: %+v", g, d)
	}
}

// TestWaitsWithLeases: after RetryAfter the cost is admitted and not 1 ns earlier, and after ResetAfter all is free, however leases end until then.
func TestWaitsWithLeases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		algorithm := rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm
		if algorithm == bucket.LeakyQueue {
			algorithm = bucket.TokenBucket
		}
		limits := mustLimits(t, genGranting(t, algorithm))
		h := &granting{t: t, table: smallTable(t), accounts: []*account{newAccount(limits)}, now: genStart.Draw(t, "start")}
		for range rapid.IntRange(1, 12).Draw(t, "effects") {
			switch rapid.IntRange(0, 3).Draw(t, "effects") {
			case 0, 1:
				h.grant(h.accounts[0])
			case 2:
				h.check(h.accounts[0])
			case 3:
				h.wait(limits)
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "reset") == 0 { // so that windows hold what is granted, too
			h.reset(h.accounts[0])
		}
		at := func(after time.Duration, cost int64) bucket.Decision {
			to := smallTable(t)
			hand(t, h.table, to, h.now, h.now, false)
			return to.Do(h.now+int64(after), &bucket.Request{Limits: limits, Cost: cost, Verb: bucket.Read})
		}
		for _, cost := range []int64{1, 2, 3, 5, 8, 12} {
			d := at(0, cost)
			wellFormed(t, limits, bucket.Read, d)
			if d.ResetAfter > 0 {
				if then := at(d.ResetAfter, 1); then.Remaining != then.Limit || then.ResetAfter != 0 {
					t.Fatalf("at %d: reset after %d, but then %+v", h.now, d.ResetAfter, then)
				}
				if then := at(d.ResetAfter-1, 1); then.ResetAfter != 1 {
					t.Fatalf("at %d: reset after %d, and 1 ns earlier %+v", h.now, d.ResetAfter, then)
				}
			}
			if d.Allowed || d.RetryAfter == bucket.Never {
				continue
			}
			if then := at(d.RetryAfter, cost); !then.Allowed {
				t.Fatalf("at %d: cost %d after %d: %+v", h.now, cost, d.RetryAfter, then)
			}
			if then := at(d.RetryAfter-1, cost); then.Allowed {
				t.Fatalf("at %d: cost %d is admitted 1 ns before %d", h.now, cost, d.RetryAfter)
			}
		}
	})
}

// TestReturnIsACut: what comes back was below later charges, so what has drained since counts against these when they are given back.
func TestReturnIsACut(t *testing.T) {
	limit := bucket.Limit{Algorithm: bucket.TokenBucket, Count: 4, Period: time.Minute, Refill: bucket.RefillInterval, Burst: 20}
	table, limits := smallTable(t), mustLimits(t, limit)
	g := grant(t, table, clock(t, "0:10"), limits, 5, time.Second)
	var rc bucket.Receipt
	table.DoHeld(clock(t, "0:10"), &bucket.Request{Limits: limits, Cost: 3}, &rc)
	table.Return(clock(t, "0:10.5"), bucket.Key{}, g.ID, 5)
	r := &bucket.Request{Limits: limits, Cost: 6}
	table.Do(clock(t, "1:00"), r) // the 3 have been refilled
	table.GiveBack(clock(t, "1:00"), &rc)
	if got := left(table, clock(t, "1:00"), r); got != 14 {
		t.Errorf("%d left of 20 with 6 spent", got)
	}
}

// TestReturnToTheMost: a counter at the end of int64 does not say how much of it was granted.
func TestReturnToTheMost(t *testing.T) {
	for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.SlidingCounter} {
		table, limits := smallTable(t), mustLimits(t, per(algorithm, math.MaxInt64, time.Hour))
		g := grant(t, table, day, limits, 5, time.Minute)
		r := &bucket.Request{Limits: limits, Cost: math.MaxInt64, Verb: bucket.Charge}
		table.Do(day, r)
		table.Return(day, r.Key, g.ID, 5)
		if got := left(table, day, r); got != 0 {
			t.Errorf("%s: %d left", algorithm, got)
		}
	}
}

// TestGrantedAfterAHandoff: a table that has taken over a counter gives its own grants other ids than those that came with
// it, though it grants in the same nanosecond: each return ends the grant that it is for.
func TestGrantedAfterAHandoff(t *testing.T) {
	for _, merge := range []bool{false, true} {
		from, to, limits := smallTable(t), smallTable(t), mustLimits(t, per(bucket.FixedWindow, 20, time.Hour))
		theirs := grant(t, from, day, limits, 3, time.Minute)
		hand(t, from, to, day, day, merge)
		own := grant(t, to, day, limits, 5, time.Minute)
		if own.ID == theirs.ID {
			t.Errorf("merge %v: two grants have the id %d", merge, own.ID)
		}
		if back, _, _ := to.Return(day+1, bucket.Key{}, own.ID, own.Units); back != 5 {
			t.Errorf("merge %v: %d came back of the 5 that were granted here", merge, back)
		}
		if grants, units := to.Granted(day+1, bucket.Key{}); grants != 1 || units != 3 {
			t.Errorf("merge %v: %d units in %d grants are granted still, want the 3 of the other table", merge, units, grants)
		}
	}
}
