package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestNoAllocation: a check of a key that has a counter allocates nothing, admitted, denied or given back (with a receipt that has been
// used before), and neither does a read, or a denial of a key without one.
func TestNoAllocation(t *testing.T) {
	type row struct {
		name   string
		limits []bucket.Limit
	}
	var rows []row
	for _, c := range algorithms {
		l := per(c.algorithm, 100, time.Minute)
		rows = append(rows, row{c.name, []bucket.Limit{l}})
		l.MinInterval, l.CountDenied = time.Second, true
		rows = append(rows, row{c.name + " with an interval", []bucket.Limit{l}})
	}
	rows = append(rows,
		row{"refill in steps", []bucket.Limit{{Algorithm: bucket.TokenBucket, Count: 100, Period: time.Minute, Refill: bucket.RefillInterval}}},
		row{"calendar", []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: 100, Align: bucket.AlignCalendar, Unit: bucket.Day, Zone: "America/New_York"}}},
		row{"several", []bucket.Limit{per(bucket.FixedWindow, 50, time.Minute), per(bucket.SlidingLog, 500, time.Hour), per(bucket.TokenBucket, 100, time.Hour)}},
	)
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			table, limits := smallTable(t), mustLimits(t, c.limits...)
			now, allowed, denied := day, 0, 0
			do := func(verb bucket.Verb, cost int64) {
				now += int64(100 * time.Millisecond)
				if table.Do(now, &bucket.Request{Limits: limits, Cost: cost, Verb: verb}).Allowed {
					allowed++
				} else {
					denied++
				}
			}
			for range 3000 { // logs and rings reach their size
				do(bucket.Check, 1)
			}
			if allowed == 0 || denied == 0 && len(c.limits) == 1 {
				t.Fatalf("%d allowed, %d denied: both are to be tried", allowed, denied)
			}
			for _, x := range []struct {
				what string
				verb bucket.Verb
				cost int64
			}{
				{"check", bucket.Check, 1}, {"hopeless check", bucket.Check, 1000}, {"check of 0", bucket.Check, 0},
				{"read", bucket.Read, 1}, {"charge", bucket.Charge, 1},
			} {
				if n := testing.AllocsPerRun(1000, func() { do(x.verb, x.cost) }); n != 0 {
					t.Errorf("%s: %v allocations", x.what, n)
				}
			}
			held, charges := &bucket.Request{Limits: limits, Cost: 1}, 0
			var rc bucket.Receipt
			n := testing.AllocsPerRun(100, func() {
				now += int64(24 * time.Hour)
				if _, charged := table.DoHeld(now, held, &rc); charged {
					charges++
					table.GiveBack(now, &rc)
				}
			})
			if n != 0 || charges == 0 {
				t.Errorf("give back: %v allocations, %d charges", n, charges)
			}
			if life := limits.LongestLease(); life > 0 {
				grant(t, table, now, limits, 1, life)
				if n := testing.AllocsPerRun(30, func() { table.Do(now, held) }); n != 0 {
					t.Errorf("check beside a lease: %v allocations", n)
				}
			}
			other := &bucket.Request{Key: bucket.Key{Hi: 7}, Limits: limits, Cost: 1, Verb: bucket.Read}
			if n := testing.AllocsPerRun(100, func() { table.Do(now, other) }); n != 0 {
				t.Errorf("read of a key without a counter: %v allocations", n)
			}
			other.Verb, other.Cost = bucket.Check, 1000
			if limits.At(0).CountDenied {
				return // such a denial makes a counter
			}
			if n := testing.AllocsPerRun(100, func() { table.Do(now, other) }); n != 0 {
				t.Errorf("denial of a key without a counter: %v allocations", n)
			}
		})
	}
}

// TestNoAllocationRecorded: nor does a check allocate whose change is recorded, once the journal and the
// slice that it is drained into have their size.
func TestNoAllocationRecorded(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, per(bucket.TokenBucket, 1<<20, time.Minute))
	table.Record(0, bucket.RecordLasting, time.Hour)
	ks, rc := keys(30), bucket.Receipt{}
	var drained []bucket.KeyAt
	now := day
	use := func() {
		for range 3 {
			for _, k := range ks {
				if _, _, v := table.Try(now, &bucket.Request{Key: k, Limits: limits, Cost: 1}, &rc); v != bucket.Decided {
					t.Fatal("not decided")
				}
				now++
			}
		}
		table.Changed(func(shard int) { drained, _, _ = table.Drain(shard, drained[:0]) })
		table.Confirm(0, math.MaxInt64)
		if len(drained) != len(ks) {
			t.Fatalf("%d keys drained", len(drained))
		}
	}
	use()
	if n := testing.AllocsPerRun(100, use); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNoAllocationCopied: keeping a copy level allocates nothing where no log is kept.
func TestNoAllocationCopied(t *testing.T) {
	for _, limits := range []*bucket.Limits{
		mustLimits(t, per(bucket.TokenBucket, 1000, time.Minute)),
		mustLimits(t, per(bucket.FixedWindow, 1<<40, time.Minute), per(bucket.SlidingCounter, 1<<40, time.Hour)),
	} {
		table, copied, ks := smallTable(t), smallTable(t), keys(30)
		at := bucket.At(ks...)
		var im bucket.Image
		now := day
		follow := func() {
			for _, k := range ks {
				table.Do(now, &bucket.Request{Key: k, Limits: limits, Cost: 1})
				now += 1e6
			}
			im = bucket.Image{Limits: im.Limits[:0], Data: im.Data[:0]}
			table.Export(now, 0, at, &im)
			if err := copied.Import(now, 0, &im, im.Data, im.Counters, false); err != nil {
				t.Fatal(err)
			}
		}
		follow()
		if n := testing.AllocsPerRun(100, follow); n != 0 {
			t.Errorf("%d limits: %v allocations", limits.Len(), n)
		}
	}
}

// TestExportAllocations: the buffer of an image grows once for all grants of a counter, and not
// under the lock of the shard.
func TestExportAllocations(t *testing.T) {
	limits, table := mustLimits(t, per(bucket.FixedWindow, math.MaxInt32, time.Hour)), largeTable(t)
	for id := range uint64(5000) {
		aboutReservation(table, day, limits, bucket.Reserve, id+1, 1, false)
	}
	keys := table.Keys(0, nil)
	for _, room := range []bucket.ImageBounds{{Whole: math.MaxInt}, {Bytes: 1 << 10, Whole: 12 << 20}} {
		allocations := testing.AllocsPerRun(10, func() {
			var im bucket.Image
			table.ExportSome(day, 0, keys, &im, room)
		})
		if allocations > 5 {
			t.Errorf("%+v: %v allocations for %d keys, want 5 at most", room, allocations, len(keys))
		}
	}
}
