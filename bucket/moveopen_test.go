package bucket_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
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

// mergeOpen merges all that from has into to, as a region that passes on a role has it done.
func mergeOpen(t failer, from, to *bucket.Table, now int64) {
	t.Helper()
	im := exported(from, now, 0)
	if err := to.MergeOpen(now, 0, im, im.Data, im.Counters); err != nil {
		t.Fatalf("merging into an open shard: %v", err)
	}
}

// TestMovedReservation: a region that passes on a role extends or spends a reservation of 6 units
// after it has sent it. The next portion tells the other region, which admits no more than it did.
func TestMovedReservation(t *testing.T) {
	for _, window := range []time.Duration{time.Second, time.Hour} {
		for _, c := range []struct {
			verb             bucket.Verb
			units            int64
			held, left, over int64 // there, and how many units are left after a settlement of 9
		}{
			{bucket.Extend, 3, 9, 11, 11}, {bucket.Extend, 0, 6, 14, 11}, {bucket.Extend, -2, 6, 14, 11},
		} {
			limits := mustLimits(t, per(bucket.FixedWindow, 20, window))
			from, to, now := largeTable(t), largeTable(t), day
			aboutReservation(from, now, limits, bucket.Reserve, 1, 6, false)
			mergeOpen(t, from, to, now)
			now += int64(1500 * time.Millisecond)
			aboutReservation(from, now, limits, c.verb, 1, c.units, false)
			for range 2 {
				mergeOpen(t, from, to, now)
			}
			now += int64(time.Second) // past the deadline of before
			r := &bucket.Request{Limits: limits}
			n := left(to, now, r)
			if _, held := to.Granted(now, r.Key); held != c.held || n != c.left {
				t.Errorf("window %v, extended by %d: %d held and %d left, want %d and %d", window, c.units, held, n, c.held, c.left)
			}
			aboutReservation(to, now, limits, bucket.Settle, 1, 9, false)
			if n := left(to, now, r); n != c.over {
				t.Errorf("window %v, extended by %d: %d left after a settlement of 9, want %d", window, c.units, n, c.over)
			}
		}
	}
}

// TestMovedWhileDeciding: what a region passes on counts at least as much in the other region,
// whatever it does between the first portion and the last one.
func TestMovedWhileDeciding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &diverged{
			t: t, limits: mustLimits(t, per(bucket.FixedWindow, mostOfDiverged, time.Hour)),
			earlier: largeTable(t), later: largeTable(t), now: day, ended: map[uint64]bool{},
		}
		for range rapid.IntRange(1, 3).Draw(t, "portions") {
			for range rapid.IntRange(0, 6).Draw(t, "steps") {
				h.step(h.earlier, false)
			}
			mergeOpen(t, h.earlier, h.later, h.now)
		}
		want, charged := h.counts(h.earlier)
		if got, there := h.counts(h.later); got < want || there < charged {
			t.Fatalf("%d units count and %d are charged, want %d and %d at least", got, there, want, charged)
		}
	})
}
