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

// TestWindowsKeepTheirTimeLeft: half of the limit is spent at 1:00:30 on the exporter's clock. Whatever the importer's clock shows,
// it counts for as long as it would have there.
func TestWindowsKeepTheirTimeLeft(t *testing.T) {
	fixed := per(bucket.FixedWindow, 10, time.Minute)
	first := with(fixed, firstHit)
	calendar := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Align: bucket.AlignCalendar, Unit: bucket.Minute}
	stepped := bucket.Limit{Algorithm: bucket.TokenBucket, Count: 10, Period: time.Minute, Refill: bucket.RefillInterval}
	type row struct {
		at   string // when it is imported
		ask  string // when it is asked
		left int64
	}
	epoch := []row{
		{"1:00:30", "1:00:59.9", 5}, {"1:00:30", "1:01:00", 10}, {"0:59:40", "1:00:09.9", 5}, {"0:59:40", "1:00:10", 10},
		{"1:01:15", "1:01:44.9", 5}, {"1:01:15", "1:01:45", 10}, {"0:01:00", "0:01:30", 10},
	}
	for _, c := range []struct {
		name   string
		limit  bucket.Limit
		answer []row
	}{
		{"fixed", fixed, epoch}, {"calendar", calendar, epoch}, {"steps", stepped, epoch},
		{"first hit", first, []row{
			{"1:00:30", "1:01:29.9", 5}, {"1:00:30", "1:01:30", 10}, {"0:59:00", "0:59:59.9", 5}, {"0:59:00", "1:00:00", 10}, {"5:00:00", "5:00:59.9", 5},
		}},
		{"sliding counter", per(bucket.SlidingCounter, 10, time.Minute), []row{
			{"1:00:30", "1:01:00", 5}, {"1:00:30", "1:01:30", 8}, {"1:00:30", "1:02:00", 10},
			{"0:59:07", "0:59:37", 5}, {"0:59:07", "1:00:07", 8}, {"0:59:07", "1:00:37", 10}, {"5:00:00", "5:01:00", 8},
		}},
		{"sliding window", per(bucket.SlidingWindow, 10, time.Minute), []row{
			{"1:00:30", "1:01:30.9", 5}, {"1:00:30", "1:01:31", 10}, {"0:59:00.7", "1:00:01.6", 5}, {"0:59:00.7", "1:00:01.7", 10}, {"5:00:00", "5:01:01", 10},
		}},
		{"log", per(bucket.SlidingLog, 10, time.Minute), []row{
			{"1:00:30", "1:01:29.9", 5}, {"1:00:30", "1:01:30", 10}, {"0:59:00", "0:59:59.9", 5}, {"0:59:00", "1:00:00", 10},
		}},
		{"bucket", per(bucket.TokenBucket, 10, time.Minute), []row{
			{"1:00:30", "1:00:30", 5}, {"1:00:30", "1:00:36", 6}, {"0:59:00", "0:59:06", 6}, {"5:00:00", "5:00:30", 10},
		}},
	} {
		limits := mustLimits(t, c.limit)
		from, r := smallTable(t), &bucket.Request{Limits: limits, Cost: 5}
		from.Do(clock(t, "1:00:30"), r)
		im := exported(from, clock(t, "1:00:30"), 0)
		for _, x := range c.answer {
			to := smallTable(t)
			if err := to.Import(clock(t, x.at), 0, im, im.Data, im.Counters, false); err != nil {
				t.Fatal(err)
			}
			if got := left(to, clock(t, x.ask), r); got != x.left {
				t.Errorf("%s, imported at %s, asked at %s: %d left, want %d", c.name, x.at, x.ask, got, x.left)
			}
		}
	}
}

// TestImportReplaces: what is there is replaced, removed where the exporter had nothing, and left
// alone where nothing is said.
func TestImportReplaces(t *testing.T) {
	ks := keys(4)
	for _, c := range algorithms {
		limits := mustLimits(t, per(c.algorithm, 10, time.Hour))
		from, to := smallTable(t), smallTable(t)
		spend := func(table *bucket.Table, key bucket.Key, cost int64) {
			table.Do(day, &bucket.Request{Key: key, Limits: limits, Cost: cost})
		}
		same := smallTable(t) // that has always had these counters
		for i, cost := range []int64{1, 2, 0, 5} {
			if cost > 0 {
				spend(same, ks[i], cost)
			}
			if i < 2 {
				spend(from, ks[i], cost)
			}
			if i != 1 {
				spend(to, ks[i], 5)
			}
		}
		var im bucket.Image
		from.Export(day, 0, bucket.At(ks[:3]...), &im)
		if err := to.Import(day, 0, &im, im.Data, im.Counters, false); err != nil || im.Counters != 3 || len(im.Limits) != 1 {
			t.Fatalf("%s: %d counters of %d limits, %v", c.name, im.Counters, len(im.Limits), err)
		}
		for i, want := range []int64{9, 8, 10, 5} {
			if got := left(to, day, &bucket.Request{Key: ks[i], Limits: limits, Cost: 1}); got != want {
				t.Errorf("%s, key %d: %d left, want %d", c.name, i, got, want)
			}
		}
		if got, want := to.Stats(), same.Stats(); got.Entries != want.Entries || got.Bytes != want.Bytes {
			t.Errorf("%s: %+v, want the entries and bytes of %+v", c.name, got, want)
		}
		// Merging, what is missing there says nothing.
		if err := to.Import(day, 0, &im, im.Data, im.Counters, true); err != nil || to.Stats().Entries != 3 {
			t.Errorf("%s: merged again: %+v, %v", c.name, to.Stats(), err)
		}
		if n := to.DropShard(0); n != 3 || to.Stats().Bytes != 0 {
			t.Errorf("%s: %d counters dropped, %+v", c.name, n, to.Stats())
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
