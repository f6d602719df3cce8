package bucket_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// aboutReservation reserves for two seconds, or settles, and returns what has become of it.
func aboutReservation(table *bucket.Table, now int64, limits *bucket.Limits, verb bucket.Verb, id uint64, units int64, release bool) bucket.Reserved {
	r := &bucket.Request{
		Limits: limits, Cost: units, Verb: verb,
		Reservation: &bucket.Reservation{ID: id, Least: 1, MaxOpen: 9999, For: 2 * time.Second, Release: release},
	}
	table.Do(now, r)
	return r.Reservation.Reserved
}

// TestMergedInALaterWindow: units of a reservation whose deadline has passed in an earlier window
// do not count in that of the merge, whichever side has noticed.
func TestMergedInALaterWindow(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 20, time.Minute))
	r := &bucket.Request{Limits: limits}
	for _, noticed := range []string{"neither", "from", "to"} {
		from, to, now := smallTable(t), smallTable(t), day
		aboutReservation(from, now, limits, bucket.Reserve, 9, 6, false)
		hand(t, from, to, now, now, false)
		now += int64(3 * time.Second)
		switch noticed {
		case "from":
			left(from, now, r)
		case "to":
			left(to, now, r)
		}
		from.Seal(0)
		to.Seal(0)
		now += int64(time.Minute)
		hand(t, from, to, now, now, true)
		to.Open(0, 1)
		if got := left(to, now, r); got != 20 {
			t.Errorf("%s has noticed: %d left of 20, want 20", noticed, got)
		}
	}
}

// TestMergedExtended: of a reservation that only one side has extended, the longer deadline counts,
// and its units are charged nowhere before.
func TestMergedExtended(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 20, time.Hour))
	for longer := range 2 {
		tables, now := []*bucket.Table{smallTable(t), smallTable(t)}, day
		from, to := tables[0], tables[1]
		aboutReservation(from, now, limits, bucket.Reserve, 9, 6, false)
		hand(t, from, to, now, now, false)
		aboutReservation(tables[longer], now+int64(time.Second), limits, bucket.Extend, 9, 0, false)
		from.Seal(0)
		to.Seal(0)
		now += int64(2500 * time.Millisecond)
		hand(t, from, to, now, now, true)
		to.Open(0, 1)
		n := left(to, now, &bucket.Request{Limits: limits})
		if x := aboutReservation(to, now, limits, bucket.Settle, 9, 4, false); n != 14 || x.Late || x.Unknown || x.Returned != 2 {
			t.Errorf("extended by %d: %d left of 20, want 14; settled: %+v", longer, n, x)
		}
	}
}

// TestLapse: what Lapse charges in a sealed shard is what the shard charges once it is open, and a
// shard that is open, or that has no grant whose deadline has passed, stays as it is.
func TestLapse(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 10_000, time.Hour))
	table, now := largeTable(t), day
	for id := range uint64(3000) { // more than end with one decision
		aboutReservation(table, now, limits, bucket.Reserve, id+1, 1, id%3 == 0)
	}
	grant(t, table, now, limits, 5, time.Second)
	same := func(what string) {
		t.Helper()
		before := exported(table, now, 0)
		table.Lapse(now, 0)
		if after := exported(table, now, 0); !bytes.Equal(before.Data, after.Data) {
			t.Errorf("%s: Lapse has changed the shard", what)
		}
	}
	table.Seal(0)
	same("no deadline has passed")
	table.Open(0, 1)
	now += int64(3 * time.Second)
	same("open")
	table.Seal(0)
	table.Lapse(now, 0)
	same("a second time")
	moved := largeTable(t)
	hand(t, table, moved, now, now, false)
	if got := left(moved, now, &bucket.Request{Limits: limits}); got != 10_000-2000-5 {
		t.Errorf("%d left of 10000, want %d", got, 10_000-2000-5)
	}
	if grants, units := moved.Granted(now, bucket.Key{}); grants != 0 || units != 0 {
		t.Errorf("%d grants of %d units are open", grants, units)
	}
	if got := aboutReservation(moved, now, limits, bucket.Settle, 2, 1, false); !got.Late || got.Unknown {
		t.Errorf("settled late: %+v", got)
	}
}

// TestLeaveAfterDeadline: a reservation whose deadline has passed counts no more after Leave.
func TestLeaveAfterDeadline(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 20, time.Hour))
	table, now := smallTable(t), day
	aboutReservation(table, now, limits, bucket.Reserve, 9, 6, false)
	now += int64(3 * time.Second)
	table.Leave(now, bucket.Key{}, limits, []int64{15})
	if got := left(table, now, &bucket.Request{Limits: limits}); got != 15 {
		t.Errorf("%d left, want 15", got)
	}
}

// TestMergedReservationsOnce: two copies of a key reserve and charge apart from each other, and one
// is merged into the other, whichever of the deadlines have passed. What either has charged or
// reserved counts, all of it at most once, callers can settle late, and a second merge changes
// nothing.
func TestMergedReservationsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 1 << 30
		limits := mustLimits(t, per(bucket.FixedWindow, most, time.Hour))
		tables, now := []*bucket.Table{smallTable(t), smallTable(t)}, day
		var ids []uint64
		sum := int64(0) // of all units that count
		step := func(table *bucket.Table) {
			units := rapid.Int64Range(1, 9).Draw(t, "units")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				table.Do(now, &bucket.Request{Limits: limits, Cost: units})
				sum += units
			case 1:
				release := rapid.Bool().Draw(t, "release")
				ids = append(ids, uint64(len(ids)+1))
				aboutReservation(table, now, limits, bucket.Reserve, ids[len(ids)-1], units, release)
				if !release {
					sum += units
				}
			case 2:
				now += rapid.Int64Range(0, int64(time.Second)).Draw(t, "wait")
			}
		}
		for range rapid.IntRange(0, 10).Draw(t, "steps of both") {
			step(tables[0])
		}
		hand(t, tables[0], tables[1], now, now, false)
		for range rapid.IntRange(0, 20).Draw(t, "steps of one") {
			step(tables[rapid.IntRange(0, 1).Draw(t, "table")])
		}
		now += rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "until the merge")
		from, to := tables[0], tables[1]
		from.Seal(0)
		if rapid.Bool().Draw(t, "sealed") {
			to.Seal(0)
		}
		merge := func() { hand(t, from, to, now, now, true) }
		if rapid.Bool().Draw(t, "in pieces") {
			most := rapid.IntRange(1, 8).Draw(t, "keys of a portion")
			merge = func() { mergePortions(t, from, to, now, most) }
		}
		// What is reserved until then counts if the deadline charges it.
		later, r := now+int64(2*time.Second), &bucket.Request{Limits: limits}
		used := func(of *bucket.Table) int64 {
			table := smallTable(t)
			hand(t, of, table, now, now, false)
			return most - left(table, later, r)
		}
		least := max(used(from), used(to))
		merge()
		got := used(to)
		if got < least || got > sum {
			t.Fatalf("%d count, want %d to %d", got, least, sum)
		}
		merge()
		if again := used(to); again != got {
			t.Fatalf("%d count after the second merge, %d before", again, got)
		}
		to.Open(0, 1)
		for _, id := range ids {
			if x := aboutReservation(to, later, limits, bucket.Settle, id, 0, false); !x.Late || x.Unknown {
				t.Fatalf("reservation %d, settled late: %+v", id, x)
			}
		}
	})
}
