package bucket_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// exported returns an image of all that is in the shard of from.
func exported(from *bucket.Table, now int64, shard int) *bucket.Image {
	im := new(bucket.Image)
	from.Export(now, shard, from.Keys(shard, nil), im)
	return im
}

// TestImportReplaces: what is there is replaced, and removed where the exporter had nothing; a merge leaves that alone.
func TestImportReplaces(t *testing.T) {
	ks, limits := keys(3), mustLimits(t, per(bucket.SlidingLog, 10, time.Hour))
	from, to := smallTable(t), smallTable(t)
	from.Do(day, &bucket.Request{Key: ks[1], Limits: limits, Cost: 7})
	for _, k := range ks {
		to.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 5})
	}
	for merge, want := range map[bool][3]int64{true: {5, 3, 5}, false: {10, 3, 5}} {
		table := smallTable(t)
		hand(t, to, table, day, day, false)
		handKeys(t, from, table, bucket.At(ks[:2]...), day, day, merge)
		var got [3]int64
		entries := int64(0)
		for i, k := range ks {
			if got[i] = left(table, day, &bucket.Request{Key: k, Limits: limits}); got[i] < 10 {
				entries++
			}
		}
		if s := table.Stats(); got != want || s.Entries != entries {
			t.Errorf("merge %v: %v left in %d counters, want %v", merge, got, s.Entries, want)
		}
		if n := table.DropShard(0); int64(n) != entries || table.Stats().Bytes != 0 {
			t.Errorf("merge %v: %d counters dropped, %+v", merge, n, table.Stats())
		}
	}
}

// TestImportStaysWithinTheCaps: a table that is too small keeps what was used last.
func TestImportStaysWithinTheCaps(t *testing.T) {
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	from, ks := mustTable(t, bucket.Config{Shards: 1}), keys(500)
	for i, k := range ks {
		from.Do(day+int64(i), &bucket.Request{Key: k, Limits: limits, Cost: 1})
	}
	im := exported(from, day+1000, 0)
	for _, merge := range []bool{false, true} {
		to := mustTable(t, bucket.Config{Shards: 1, MaxEntries: 100})
		if err := to.Import(day+1000, 0, im, im.Data, im.Counters, merge); err != nil {
			t.Fatal(err)
		}
		if got := to.Keys(0, nil); !slices.EqualFunc(got, ks[400:], func(a bucket.KeyAt, b bucket.Key) bool { return a.Key == b }) {
			t.Errorf("%d keys, want the last 100, in their order", len(got))
		}
	}
	// Other shards give way if this one has nothing more to give.
	two := mustTable(t, bucket.Config{Shards: 2, MaxEntries: 10})
	half := mustTable(t, bucket.Config{Shards: 2})
	for _, k := range ks {
		half.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 1})
	}
	for shard := range 2 {
		im := exported(half, day, shard)
		if err := two.Import(day, shard, im, im.Data, im.Counters, false); err != nil || two.Stats().Entries > 10 {
			t.Errorf("shard %d: %+v, %v", shard, two.Stats(), err)
		}
	}
}

// TestImportWithoutLimits: counters and former limits that this node has no limits for are left out.
func TestImportWithoutLimits(t *testing.T) {
	ks := keys(3)
	known, unknown := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour)), mustLimits(t, per(bucket.SlidingLog, 10, time.Hour))
	from := smallTable(t)
	for i, l := range []*bucket.Limits{known, unknown, unknown} {
		from.Do(day, &bucket.Request{Key: ks[i], Limits: l, Cost: 3})
	}
	from.Do(day, &bucket.Request{Key: ks[2], Limits: known, Cost: 1}) // the other is a former one now
	im := exported(from, day, 0)
	im.Limits[slices.Index(im.Limits, unknown)] = nil
	for _, merge := range []bool{false, true} {
		to := smallTable(t)
		if err := to.Import(day, 0, im, im.Data, im.Counters, merge); err != nil {
			t.Fatal(err)
		}
		if s := to.Stats(); s.Entries != 2 {
			t.Fatalf("%d counters, want 2", s.Entries)
		}
		for i, want := range map[int]int64{0: 7, 2: 6} {
			if got := left(to, day, &bucket.Request{Key: ks[i], Limits: known, Cost: 1}); got != want {
				t.Errorf("key %d: %d left, want %d", i, got, want)
			}
		}
	}
}
