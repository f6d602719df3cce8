package bucket_test

import (
	"math"
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

// TestWhatIsAChange: each of these requests is counted and recorded, or not. Unreplicated ones are recorded only with RecordAll, but for a
// reset.
func TestWhatIsAChange(t *testing.T) {
	bucketOf := func(count int64) *bucket.Limits { return mustLimits(t, per(bucket.TokenBucket, count, time.Hour)) }
	ten, other, block := bucketOf(10), bucketOf(20), bucketOf(0)
	denied := mustLimits(t, with(per(bucket.SlidingLog, 10, time.Hour), func(l *bucket.Limit) { l.CountDenied = true }))
	free := mustLimits(t, bucket.Limit{Unlimited: true})
	for _, c := range []struct {
		name    string
		limits  *bucket.Limits
		r       bucket.Request
		fresh   bool // no counter before
		counted bool
	}{
		{"check", ten, bucket.Request{Cost: 1}, false, true},
		{"first check", ten, bucket.Request{Cost: 1}, true, true},
		{"check of 0", ten, bucket.Request{}, false, false},
		{"denied check", ten, bucket.Request{Cost: 100}, false, false},
		{"first check, denied", ten, bucket.Request{Cost: 100}, true, false},
		{"denied check that counts", denied, bucket.Request{Cost: 100}, false, true},
		{"denied check that counts, first", denied, bucket.Request{Cost: 100}, true, true},
		{"denied check under new limits", other, bucket.Request{Cost: 100}, false, true},
		{"denied check that drains", ten, bucket.Request{Cost: 100, Drain: true}, false, true},
		{"denied check that drains, first", ten, bucket.Request{Cost: 100, Drain: true}, true, true},
		{"denied check that drains nothing", block, bucket.Request{Cost: 100, Drain: true}, true, false},
		{"equal limits", bucketOf(10), bucket.Request{Cost: 100}, false, false},
		{"charge", ten, bucket.Request{Cost: 100, Verb: bucket.Charge}, false, true},
		{"charge of 0", ten, bucket.Request{Verb: bucket.Charge}, false, false},
		{"refund", ten, bucket.Request{Cost: 1, Verb: bucket.Refund}, false, true},
		{"refund of nothing", ten, bucket.Request{Cost: 1, Verb: bucket.Refund}, true, false},
		{"read", ten, bucket.Request{Cost: 1, Verb: bucket.Read}, false, false},
		{"read under new limits", other, bucket.Request{Cost: 1, Verb: bucket.Read}, false, false},
		{"reset", ten, bucket.Request{Verb: bucket.Reset}, false, true},
		{"reset of nothing", ten, bucket.Request{Verb: bucket.Reset}, true, true},
		{"unlimited", free, bucket.Request{Cost: 1}, true, false},
		{"unlimited reset", free, bucket.Request{Verb: bucket.Reset}, false, true},
		{"blocked", block, bucket.Request{Cost: 1}, true, false},
	} {
		for _, what := range []bucket.Recording{bucket.RecordNothing, bucket.RecordLasting, bucket.RecordAll} {
			for i := range 4 {
				unreplicated, do := i&1 != 0, i&2 != 0
				table := smallTable(t)
				if !c.fresh {
					before := ten
					if c.limits == denied {
						before = denied
					}
					table.Do(day, &bucket.Request{Limits: before, Cost: 1, Verb: bucket.Charge})
				}
				table.Record(0, what, 0)
				r, read := c.r, bucket.Request{Limits: ten, Verb: bucket.Read}
				r.Limits, r.Unreplicated = c.limits, unreplicated
				_, before, _ := table.Try(day, &read, nil)
				if do {
					table.Do(day, &r)
					r = read
				}
				_, seq, v := table.Try(day, &r, nil)
				if counted := seq != before; v != bucket.Decided || counted != c.counted || counted && seq != before+1 {
					t.Errorf("%s: change %d after %d (%d), counted should be %v", c.name, seq, before, v, c.counted)
				}
				lasting := !unreplicated || c.r.Verb == bucket.Reset
				want := c.counted && (what == bucket.RecordAll || what == bucket.RecordLasting && lasting)
				if got := len(changedShards(table)) == 1; got != want {
					t.Errorf("%s, unreplicated %v, recording %d: changed is %v", c.name, unreplicated, what, got)
				}
				keys, last, since := table.Drain(0, nil)
				if got := len(keys) == 1 && since == day; got != want || last != seq || len(changedShards(table)) != 0 {
					t.Errorf("%s, unreplicated %v, recording %d: drained %d keys up to %d since %d", c.name, unreplicated, what, len(keys), last, since)
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
	change := func(times int, verb bucket.Verb, ks ...bucket.Key) {
		for i := range times * len(ks) { // the caps evict most of them in between
			table.Do(day, &bucket.Request{Key: ks[i%len(ks)], Limits: limits, Cost: 1, Verb: verb})
		}
	}
	change(6, bucket.Check, ks...)
	if list, _, _ := table.Drain(0, nil); len(list) != 20 {
		t.Errorf("%d keys, want 20", len(list))
	}
	change(1, bucket.Check, ks...)
	change(2, bucket.Reset, ks[3])
	list, seq, _ := table.Drain(0, make([]bucket.KeyAt, 1))
	if list[0] != (bucket.KeyAt{}) || len(list) != 21 || seq != 142 {
		t.Errorf("%d keys up to %d, want the one given and 20 more, up to 142", len(list), seq)
	}
	for _, k := range ks {
		if !slices.ContainsFunc(list, func(x bucket.KeyAt) bool { return x.Key == k }) {
			t.Errorf("key %v is missing", k)
		}
	}
	if list, seq, since := table.Drain(0, nil); len(list) != 0 || seq != 142 || since != math.MaxInt64 {
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

// TestJournalStaysSmall: one key that comes and goes again and again does not fill the memory.
func TestJournalStaysSmall(t *testing.T) {
	table := smallTable(t)
	table.Record(0, bucket.RecordAll, 0)
	r := &bucket.Request{Limits: mustLimits(t, per(bucket.TokenBucket, 10, time.Hour)), Verb: bucket.Reset}
	if n := testing.AllocsPerRun(100_000, func() { table.Do(day, r) }); n != 0 {
		t.Errorf("%v allocations a reset", n)
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
	for i, c := range []struct {
		charged []uint64 // shards
		want    bool
	}{{nil, false}, {[]uint64{0, 1}, true}, {nil, false}, {[]uint64{0}, false}} { // at last the journal has an entry already
		for _, shard := range c.charged {
			table.Do(day, &bucket.Request{Key: bucket.Key{Lo: shard}, Limits: limits, Cost: 1})
		}
		if got := len(table.Activated()) > 0; got != c.want {
			t.Errorf("step %d: activated %v", i, got)
		} else if got {
			<-table.Activated()
		}
	}
	table.Drain(0, nil)
	table.Do(day, &bucket.Request{Limits: limits, Cost: 1})
	if len(table.Activated()) == 0 {
		t.Error("not activated after the journal was drained")
	}
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
