package bucket_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestKeysOf: only counters of chosen limits are listed that were used since then, and all that have grants.
func TestKeysOf(t *testing.T) {
	table := mustTable(t, bucket.Config{Shards: 1})
	limit := per(bucket.FixedWindow, 100, 24*time.Hour)
	eu, err := bucket.NewLimitsAt("d", "eu", limit)
	if err != nil {
		t.Fatal(err)
	}
	us, err := bucket.NewLimitsAt("d", "us", limit)
	if err != nil {
		t.Fatal(err)
	}
	at := func(minute int64) int64 { return day + minute*int64(time.Minute) }
	for i, l := range []*bucket.Limits{eu, eu, us, eu} {
		table.Do(at(int64(i)), &bucket.Request{Key: bucket.Key{Lo: uint64(i)}, Limits: l, Cost: 1})
	}
	g, _, _ := table.Grant(at(0), &bucket.LeaseRequest{Key: bucket.Key{Lo: 0}, Limits: eu, Want: 5, Part: 1, Whole: 1, For: time.Hour})
	if g.Units != 5 {
		t.Fatalf("%+v", g)
	}
	ofEU := func(l *bucket.Limits) bool { return l.Home() == "eu" }
	for _, c := range []struct {
		since    int64
		counters int // in an image: that of key 0, its grant, and others
	}{{day, 4}, {at(1), 4}, {at(2), 3}, {at(3), 3}, {at(4), 2}} {
		var im bucket.Image
		table.Export(at(5), 0, table.KeysOf(0, c.since, ofEU, nil), &im)
		if im.Counters != c.counters {
			t.Errorf("since %v: %d counters, want %d", time.Duration(c.since-day), im.Counters, c.counters)
		}
	}
}

// TestMergeOpen: an open shard takes counters, a sealed one does not.
func TestMergeOpen(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 10, 24*time.Hour))
	from, to := mustTable(t, bucket.Config{Shards: 1}), mustTable(t, bucket.Config{Shards: 1})
	r := &bucket.Request{Limits: limits, Cost: 4}
	from.Do(day, r)
	im := exported(from, day, 0)
	to.Seal(0)
	if err := to.MergeOpen(day, 0, im, im.Data, im.Counters); !errors.Is(err, bucket.ErrSealed) || !to.Sealed(0) || to.Has(r.Key) {
		t.Errorf("sealed: %v, %v", err, to.Sealed(0))
	}
	to.Open(0, 0)
	for range 2 {
		if err := to.MergeOpen(day, 0, im, im.Data, im.Counters); err != nil || to.Sealed(0) {
			t.Errorf("open: %v", err)
		}
	}
	if d := to.Do(day, &bucket.Request{Limits: limits, Verb: bucket.Read}); d.Remaining != 6 {
		t.Errorf("%d left, want 6", d.Remaining)
	}
}
