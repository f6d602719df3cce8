package bucket_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestOnce: a charge or a refund with Once counts once in OnceFor, whatever comes in between.
func TestOnce(t *testing.T) {
	table := mustTable(t, bucket.Config{Shards: 3})
	limits := mustLimits(t, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Hour})
	key, other := bucket.Key{Hi: 7, Lo: 5}, bucket.Key{Hi: 8, Lo: 5}
	const m = time.Minute
	for i, s := range []struct {
		at   time.Duration
		key  bucket.Key
		verb bucket.Verb
		cost int64
		once uint64
		left int64
	}{
		{0, key, bucket.Refund, 2, 9, 10}, // of nothing
		{0, key, bucket.Charge, 3, 1, 7},
		{0, key, bucket.Charge, 3, 1, 7},
		{0, key, bucket.Refund, 2, 9, 7}, // it stays a refund of nothing
		{m, key, bucket.Charge, 3, 2, 4},
		{m, other, bucket.Charge, 3, 1, 7}, // another counter's
		{m, key, bucket.Charge, 1, 0, 3},
		{m, key, bucket.Refund, 2, 3, 5},
		{2 * m, key, bucket.Refund, 2, 3, 5},
		{2 * m, key, bucket.Reset, 0, 0, 10},
		{2 * m, key, bucket.Charge, 3, 2, 10}, // a reset forgets what was spent, and not that it was
		{10*m - 1, key, bucket.Charge, 3, 1, 10},
		{10 * m, key, bucket.Charge, 3, 1, 7}, // forgotten
		{10 * m, key, bucket.Charge, 3, 2, 7}, // not yet
		{11 * m, key, bucket.Charge, 0, 4, 7},
	} {
		d := table.Do(int64(s.at), &bucket.Request{Key: s.key, Limits: limits, Cost: s.cost, Verb: s.verb, Once: s.once})
		if !d.Allowed || d.Limit != 10 || d.Remaining != s.left {
			t.Errorf("step %d: %+v, want %d left", i, d, s.left)
		}
	}
}

// TestOnceAtTheSameTime: of charges that are made at once, each counts once.
func TestOnceAtTheSameTime(t *testing.T) {
	table := mustTable(t, bucket.Config{Shards: 1})
	limits := mustLimits(t, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1000, Period: time.Hour})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, i := range rand.Perm(100) {
				table.Do(0, &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Charge, Once: uint64(i + 1)})
			}
		})
	}
	all.Wait()
	if d := table.Do(0, &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Read}); d.Remaining != 900 {
		t.Errorf("%d left, want 900", d.Remaining)
	}
}

// TestOnceUndecided: what a sealed shard does not decide, it does not remember either. In a table that is full, charges count.
func TestOnceUndecided(t *testing.T) {
	table := mustTable(t, bucket.Config{Shards: 1, MaxEntries: 1, WhenFull: bucket.DenyNew})
	limits := mustLimits(t, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Hour})
	r := &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Charge, Once: 1}
	table.Seal(0)
	if _, _, v := table.Try(0, r, nil); v != bucket.Sealed {
		t.Fatalf("verdict %v", v)
	}
	table.Open(0, 0)
	if d, _, _ := table.Try(0, r, nil); d.Remaining != 9 {
		t.Errorf("%+v", d)
	}
}
