package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestDrain: a denied check empties the limit, is a change that copies learn of, and says
// what a check right after it would be told.
func TestDrain(t *testing.T) {
	soft := per(bucket.TokenBucket, 10, time.Hour)
	soft.Soft = 50
	first := per(bucket.FixedWindow, 10, time.Hour)
	first.Align = bucket.AlignFirstHit
	for name, l := range map[string]bucket.Limit{
		"token bucket":    per(bucket.TokenBucket, 10, time.Hour),
		"soft":            soft,
		"leaky bucket":    per(bucket.LeakyBucket, 10, time.Hour),
		"fixed window":    per(bucket.FixedWindow, 10, time.Hour),
		"first hit":       first,
		"sliding log":     per(bucket.SlidingLog, 10, time.Hour),
		"sliding counter": per(bucket.SlidingCounter, 10, time.Hour),
		"sliding window":  per(bucket.SlidingWindow, 10, time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			for _, before := range []int64{0, 4} {
				table, limits, key := smallTable(t), mustLimits(t, l), bucket.Key{Hi: 1, Lo: 2}
				table.Record(key.Shard(1), bucket.RecordAll, 0)
				if before > 0 {
					table.Do(day, &bucket.Request{Key: key, Limits: limits, Cost: before})
					table.Drain(key.Shard(1), nil)
				}
				over := &bucket.Request{Key: key, Limits: limits, Cost: 16, Drain: true}
				got := table.Do(day+1, over)
				if got.Allowed || got.Remaining != 0 || got.Delay != 0 {
					t.Fatalf("%d spent before: %+v, want a denial with nothing left", before, got)
				}
				if keys, _, _ := table.Drain(key.Shard(1), nil); len(keys) != 1 {
					t.Errorf("%d spent before: %d changes, want 1", before, len(keys))
				}
				read := *over
				read.Verb = bucket.Read
				if told := table.Do(day+1, &read); told != got {
					t.Errorf("%d spent before: told %+v and then %+v", before, got, told)
				}
				one := table.Do(day+1, &bucket.Request{Key: key, Limits: limits, Cost: 1})
				if one.Allowed || one.RetryAfter <= 0 {
					t.Errorf("%d spent before: then one more is answered %+v", before, one)
				}
				if table.Do(day+1, over); len(changedShards(table)) != 0 {
					t.Errorf("%d spent before: draining what is empty is a change", before)
				}
			}
		})
	}
}

// TestDrainLeavesOthers: what has room for the cost keeps it, and an admitted check drains nothing.
func TestDrainLeavesOthers(t *testing.T) {
	table, key := smallTable(t), bucket.Key{Hi: 1, Lo: 2}
	limits := mustLimits(t, per(bucket.FixedWindow, 5, time.Minute), per(bucket.FixedWindow, 100, time.Hour))
	if d := table.Do(day, &bucket.Request{Key: key, Limits: limits, Cost: 2, Drain: true}); !d.Allowed || d.Remaining != 3 {
		t.Fatalf("%+v, want 3 left", d)
	}
	if d := table.Do(day, &bucket.Request{Key: key, Limits: limits, Cost: 4, Drain: true}); d.Allowed || d.Index != 0 || d.Remaining != 0 {
		t.Fatalf("%+v, want the first to deny with nothing left", d)
	}
	left := int64(98)
	for minute := int64(1); left > 0; minute++ {
		cost := min(left, 5)
		if d := table.Do(day+minute*int64(time.Minute), &bucket.Request{Key: key, Limits: limits, Cost: cost}); !d.Allowed {
			t.Fatalf("%+v, want the second to have %d left", d, left)
		}
		left -= cost
	}
}

// TestReserve: a check with Reserve leaves that many units free, and is told when there are more. Other checks take them.
func TestReserve(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.name, func(t *testing.T) {
			table, limits, key := smallTable(t), mustLimits(t, per(a.algorithm, 10, time.Hour)), bucket.Key{Hi: 1, Lo: 2}
			ask := func(now, cost, reserve int64, verb bucket.Verb) bucket.Decision {
				return table.Do(now, &bucket.Request{Key: key, Limits: limits, Cost: cost, Reserve: reserve, Verb: verb})
			}
			for _, reserve := range []int64{10, math.MaxInt64} {
				if d := ask(day, 1, reserve, bucket.Check); d.Allowed || d.RetryAfter != bucket.Never {
					t.Fatalf("reserve %d of 10: %+v, want never", reserve, d)
				}
			}
			if d := ask(day, 4, 6, bucket.Check); !d.Allowed || d.Remaining != 6 {
				t.Fatalf("4 above a reserve of 6: %+v", d)
			}
			var told bucket.Decision
			for _, verb := range []bucket.Verb{bucket.Read, bucket.Check} {
				if told = ask(day, 1, 6, verb); told.Allowed || told.RetryAfter <= 0 || told.Remaining != 6 {
					t.Fatalf("%v of the reserve: %+v", verb, told)
				}
			}
			after := day + int64(told.RetryAfter)
			if d := ask(after-1, 1, 6, bucket.Read); d.Allowed {
				t.Errorf("1 ns before retry after: %+v", d)
			}
			if d := ask(after, 1, 6, bucket.Read); !d.Allowed {
				t.Errorf("at retry after: %+v", d)
			}
			if d := ask(day, 6, 0, bucket.Check); !d.Allowed || d.Remaining != 0 {
				t.Errorf("the reserve, to whom it is for: %+v", d)
			}
		})
	}
}

// TestNoDelay: what would have to wait is denied, costs nothing, and is told exactly when it
// need not wait.
func TestNoDelay(t *testing.T) {
	queue := per(bucket.LeakyQueue, 60, time.Minute) // one a second
	queue.Burst = 5
	table, limits, key := smallTable(t), mustLimits(t, queue), bucket.Key{Hi: 1, Lo: 2}
	ask := func(now, cost int64, verb bucket.Verb, noDelay bool) bucket.Decision {
		return table.Do(now, &bucket.Request{Key: key, Limits: limits, Cost: cost, Verb: verb, NoDelay: noDelay})
	}
	second := int64(time.Second)
	if d := ask(day, 2, bucket.Check, true); !d.Allowed || d.Delay != 0 {
		t.Fatalf("an empty queue: %+v", d)
	}
	for _, verb := range []bucket.Verb{bucket.Check, bucket.Read, bucket.Check} {
		if d := ask(day, 1, verb, true); d.Allowed || d.Delay != 0 || d.RetryAfter != 2*time.Second || d.Remaining != 3 {
			t.Errorf("%v behind 2: %+v, want a denial for 2 s that costs nothing", verb, d)
		}
	}
	if d := ask(day, 9, bucket.Check, true); d.Allowed || d.RetryAfter != bucket.Never {
		t.Errorf("more than the queue holds: %+v, want never", d)
	}
	if d := ask(day, 5, bucket.Check, true); d.Allowed || d.RetryAfter != 2*time.Second {
		t.Errorf("more than there is room for: %+v", d)
	}
	if d := ask(day+2*second-1, 1, bucket.Check, true); d.Allowed || d.RetryAfter != 1 {
		t.Errorf("1 ns early: %+v", d)
	}
	if d := ask(day+2*second, 1, bucket.Check, true); !d.Allowed || d.Delay != 0 {
		t.Errorf("in time: %+v", d)
	}
	if d := ask(day+2*second, 1, bucket.Check, false); !d.Allowed || d.Delay != time.Second {
		t.Errorf("who can wait: %+v", d)
	}
}
