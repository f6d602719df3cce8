package bucket_test

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// changedShards lists what Changed yields.
func changedShards(table *bucket.Table) (list []int) {
	table.Changed(func(shard int) { list = append(list, shard) })
	return list
}

// TestWhatIsAChange: each of these requests is counted or not, and recorded or not.
func TestWhatIsAChange(t *testing.T) {
	bucketOf := func(count int64) *bucket.Limits {
		return mustLimits(t, per(bucket.TokenBucket, count, time.Hour))
	}
	ten, other := bucketOf(10), bucketOf(20)
	counting := per(bucket.SlidingLog, 10, time.Hour)
	counting.CountDenied = true
	denied := mustLimits(t, counting)
	free := mustLimits(t, bucket.Limit{Unlimited: true})
	block := mustLimits(t, per(bucket.TokenBucket, 0, time.Hour))
	for _, c := range []struct {
		name                   string
		limits                 *bucket.Limits
		verb                   bucket.Verb
		cost                   int64
		fresh                  bool // no counter before
		counted, lasting, also bool // recorded of lasting requests, and of unreplicated ones
	}{
		{"check", ten, bucket.Check, 1, false, true, true, false},
		{"first check", ten, bucket.Check, 1, true, true, true, false},
		{"check of 0", ten, bucket.Check, 0, false, false, false, false},
		{"denied check", ten, bucket.Check, 100, false, false, false, false},
		{"first check, denied", ten, bucket.Check, 100, true, false, false, false},
		{"denied check that counts", denied, bucket.Check, 100, false, true, true, false},
		{"denied check that counts, first", denied, bucket.Check, 100, true, true, true, false},
		{"denied check under new limits", other, bucket.Check, 100, false, true, true, false},
		{"equal limits", bucketOf(10), bucket.Check, 100, false, false, false, false},
		{"charge", ten, bucket.Charge, 100, false, true, true, false},
		{"charge of 0", ten, bucket.Charge, 0, false, false, false, false},
		{"refund", ten, bucket.Refund, 1, false, true, true, false},
		{"refund of nothing", ten, bucket.Refund, 1, true, false, false, false},
		{"read", ten, bucket.Read, 1, false, false, false, false},
		{"read under new limits", other, bucket.Read, 1, false, false, false, false},
		{"reset", ten, bucket.Reset, 0, false, true, true, true},
		{"reset of nothing", ten, bucket.Reset, 0, true, true, true, true},
		{"unlimited", free, bucket.Check, 1, true, false, false, false},
		{"unlimited reset", free, bucket.Reset, 0, false, true, true, true},
		{"blocked", block, bucket.Check, 1, true, false, false, false},
	} {
		for _, what := range []bucket.Recording{bucket.RecordNothing, bucket.RecordLasting, bucket.RecordAll} {
			for i := range 4 {
				unreplicated, do := i&1 != 0, i&2 != 0
				table := smallTable(t)
				r := &bucket.Request{Limits: c.limits, Cost: 1, Verb: bucket.Charge}
				if !c.fresh {
					if !slices.Contains([]*bucket.Limits{ten, denied}, c.limits) {
						r.Limits = ten
					}
					table.Do(day, r)
				}
				table.Record(0, what, 0)
				_, _, _ = table.Drain(0, nil)
				r.Limits, r.Verb, r.Cost, r.Unreplicated = c.limits, c.verb, c.cost, unreplicated
				_, before, _ := table.Try(day, &bucket.Request{Limits: ten, Verb: bucket.Read}, nil)
				if do {
					table.Do(day, r)
					r = &bucket.Request{Limits: ten, Verb: bucket.Read}
				}
				_, seq, v := table.Try(day, r, nil)
				if counted := seq != before; v != bucket.Decided || counted != c.counted || counted && seq != before+1 {
					t.Errorf("%s: change %d after %d (%d), counted should be %v", c.name, seq, before, v, c.counted)
				}
				want := c.counted && (what == bucket.RecordAll || what == bucket.RecordLasting && c.lasting && (!unreplicated || c.also))
				if got := len(changedShards(table)) == 1; got != want {
					t.Errorf("%s, unreplicated %v, recording %d: changed is %v", c.name, unreplicated, what, got)
				}
				keys, last, since := table.Drain(0, nil)
				if got := len(keys) == 1 && since == day; got != want || last != seq {
					t.Errorf("%s, unreplicated %v, recording %d: drained %d keys up to %d since %d", c.name, unreplicated, what, len(keys), last, since)
				}
				if len(changedShards(table)) != 0 {
					t.Errorf("%s: changed after it was drained", c.name)
				}
			}
		}
	}
}

// TestDrainHasEachKeyOnce: however often a key changes, and whether it has a counter or not.
func TestDrainHasEachKeyOnce(t *testing.T) {
	table, ks := mustTable(t, bucket.Config{Shards: 1, MaxEntries: 4}), keys(20)
	table.Record(0, bucket.RecordAll, 0)
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	for range 3 { // the caps evict most of them in between
		for _, k := range ks {
			table.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 1})
			table.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 1})
		}
	}
	if list, _, _ := table.Drain(0, nil); len(list) != 20 {
		t.Errorf("%d keys, want 20", len(list))
	}
	for _, k := range ks {
		table.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 1})
	}
	table.Do(day, &bucket.Request{Key: ks[3], Limits: limits, Verb: bucket.Reset})
	table.Do(day, &bucket.Request{Key: ks[3], Limits: limits, Verb: bucket.Reset})
	var gone bucket.KeyAt
	list, seq, _ := table.Drain(0, []bucket.KeyAt{gone})
	if list[0] != gone || len(list) != 21 || seq != 142 {
		t.Errorf("%d keys up to %d, want the one given and 20 more, up to 142", len(list), seq)
	}
	for _, k := range ks {
		if !slices.ContainsFunc(list, func(x bucket.KeyAt) bool { return x.Key == k }) {
			t.Errorf("key %v is missing", k)
		}
	}
	list, seq, since := table.Drain(0, nil)
	if len(list) != 0 || seq != 142 || since != math.MaxInt64 {
		t.Errorf("drained again: %d keys up to %d since %d", len(list), seq, since)
	}
}

// TestDrainAfterImport: a key that changes, is imported over and changes again has changed once.
func TestDrainAfterImport(t *testing.T) {
	for _, c := range algorithms {
		for _, merge := range []bool{false, true} {
			from, to := smallTable(t), smallTable(t)
			r := &bucket.Request{Limits: mustLimits(t, per(c.algorithm, 10, time.Hour)), Cost: 1}
			var rc bucket.Receipt
			from.Do(day, r)
			to.Record(0, bucket.RecordAll, 0)
			to.DoHeld(day, r, &rc)
			hand(t, from, to, day, day, merge)
			to.Do(day, r)
			if list, _, _ := to.Drain(0, nil); len(list) != 1 {
				t.Errorf("%s, merge %v: %d keys", c.name, merge, len(list))
			}
		}
	}
}

// TestMergeIsRecorded: a merge that changes a counter is a change, one that does not is none, and no import is.
func TestMergeIsRecorded(t *testing.T) {
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	spent := func(cost int64) *bucket.Table {
		table := smallTable(t)
		table.Do(day, &bucket.Request{Limits: limits, Cost: cost})
		return table
	}
	for _, c := range []struct {
		here, there int64
		merge, want bool
	}{
		{0, 3, true, true}, {2, 3, true, true}, {3, 3, true, false}, {4, 3, true, false}, {4, 0, true, false},
		{0, 3, false, false}, {2, 3, false, false}, {4, 0, false, false},
	} {
		to := spent(c.here)
		to.Record(0, bucket.RecordLasting, time.Millisecond)
		hand(t, spent(c.there), to, day, day, c.merge)
		keys, seq, since := to.Drain(0, nil)
		first := uint64(min(c.here, 1)) // the charge from before
		if got := len(keys) == 1 && since == day && seq == first+1; got != c.want || !got && seq != first {
			t.Errorf("%+v: %d keys, change %d", c, len(keys), seq)
		}
	}
}

// TestJournalStaysSmall: one key that comes and goes a million times does not fill the memory.
func TestJournalStaysSmall(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	table.Record(0, bucket.RecordAll, 0)
	r := &bucket.Request{Limits: limits, Verb: bucket.Reset}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 1_000_000 {
		table.Do(day, r)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes for a million resets of one key", grown)
	}
	if list, _, _ := table.Drain(0, nil); len(list) != 1 {
		t.Errorf("%d keys", len(list))
	}
}

// TestRecord: another recording keeps the journal, none empties it.
func TestRecord(t *testing.T) {
	table, r := smallTable(t), &bucket.Request{Limits: mustLimits(t, per(bucket.TokenBucket, 10, time.Hour)), Cost: 1}
	table.Record(0, bucket.RecordLasting, time.Millisecond)
	table.Do(day, r)
	table.Record(0, bucket.RecordAll, time.Millisecond)
	if _, _, v := table.Try(day+int64(time.Hour), r, nil); v != bucket.Behind || len(changedShards(table)) != 1 {
		t.Errorf("recording more: verdict %d, changed %v", v, changedShards(table))
	}
	table.Record(0, bucket.RecordNothing, 0)
	if list, _, since := table.Drain(0, nil); len(list) != 0 || since != math.MaxInt64 {
		t.Errorf("recording nothing any more: %d keys", len(list))
	}
	table.Record(0, bucket.RecordAll, time.Millisecond)
	if _, _, v := table.Try(day+int64(time.Hour), r, nil); v != bucket.Decided {
		t.Errorf("recording again: verdict %d", v)
	}
	if list, _, since := table.Drain(0, nil); len(list) != 1 || since != day+int64(time.Hour) {
		t.Errorf("recording again: %d keys since %d", len(list), since-day)
	}
}

// TestActivated: the first change since a journal was empty can be waited for, and no others are told of.
func TestActivated(t *testing.T) {
	table, limits := mustTable(t, bucket.Config{Shards: 2}), mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	for s := range 2 {
		table.Record(s, bucket.RecordAll, 0)
	}
	charge := func(shard int) {
		table.Do(day, &bucket.Request{Key: bucket.Key{Lo: uint64(shard)}, Limits: limits, Cost: 1})
	}
	activated := func(want bool) {
		t.Helper()
		select {
		case <-table.Activated():
			if !want {
				t.Error("activated")
			}
		default:
			if want {
				t.Error("not activated")
			}
		}
	}
	activated(false)
	charge(0)
	charge(1)
	activated(true)
	activated(false)
	charge(0)
	activated(false) // the journal has an entry already
	table.Drain(0, nil)
	charge(0)
	activated(true)
}

// TestChangedOfManyShards: all of those that have changed, and no others.
func TestChangedOfManyShards(t *testing.T) {
	const shards = 200
	table, limits := mustTable(t, bucket.Config{Shards: shards}), mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	var want []int
	for s := range shards {
		if s != 100 {
			table.Record(s, bucket.RecordAll, 0)
		}
	}
	for _, s := range []int{0, 1, 63, 64, 100, 127, 128, 199} {
		table.Do(day, &bucket.Request{Key: bucket.Key{Lo: uint64(s)}, Limits: limits, Cost: 1})
		if s != 100 {
			want = append(want, s)
		}
	}
	if got := changedShards(table); !slices.Equal(got, want) {
		t.Errorf("changed are %v, want %v", got, want)
	}
	// Draining while it goes on is allowed.
	table.Changed(func(s int) { table.Drain(s, nil) })
	if got := changedShards(table); len(got) != 0 {
		t.Errorf("changed are %v", got)
	}
}
