package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestSpendRecords: however often units of a reservation are spent, it has a constant number of
// records, none once it is settled, here and at a replica. A repeated Spend is recognized while 15
// others came since, also after a handoff, and by the next owner.
func TestSpendRecords(t *testing.T) {
	for _, end := range []string{"settled", "expired", "released", "a slot"} {
		t.Run(end, func(t *testing.T) {
			limits := mustLimits(t, per(bucket.FixedWindow, 1_000_000, time.Hour))
			if end == "a slot" {
				limits = mustLimits(t, bucket.Limit{Algorithm: bucket.Concurrency, Count: 1_000_000})
			}
			table, replica, now := largeTable(t), largeTable(t), day
			table.Record(0, bucket.RecordAll, 0)
			replica.Seal(0)
			follow := func() {
				keys, seq, _ := table.Drain(0, nil)
				handKeys(t, table, replica, keys, now, now, false)
				replica.Open(0, seq)
				replica.Seal(0)
			}
			x := &bucket.Reservation{ID: 1, Least: 1, MaxOpen: 9, For: 200 * time.Second, Release: end == "released", Fresh: true}
			do := func(table *bucket.Table, verb bucket.Verb, once uint64) int64 {
				cost := int64(1)
				if verb == bucket.Reserve {
					cost = 500_000
				}
				if d := table.Do(now, &bucket.Request{Limits: limits, Cost: cost, Verb: verb, Once: once, Reservation: x}); !d.Allowed {
					t.Fatalf("%+v, %+v", d, x.Reserved)
				}
				return x.Reserved.Units
			}
			do(table, bucket.Reserve, 5)
			const spends = 100_000
			for i := range uint64(spends) {
				do(table, bucket.Spend, 2*i+100)
				if now += int64(time.Millisecond); i%1000 == 0 {
					follow()
				}
			}
			follow()
			few := func(what string, most int64) {
				t.Helper()
				for name, each := range map[string]*bucket.Table{"the owner": table, "the replica": replica} {
					if s := each.Stats(); s.Entries > most || s.Bytes > 4096 {
						t.Errorf("%s: %s has %d records in %d bytes, want at most %d", what, name, s.Entries, s.Bytes, most)
					}
				}
			}
			few("spent", 19)
			other := largeTable(t)
			hand(t, table, other, now, now, false)
			behind := largeTable(t)
			hand(t, table, behind, now, now, false)
			for i := range uint64(3) { // these the next owner has heard of only later
				do(table, bucket.Spend, 2*(spends+i)+100)
			}
			hand(t, table, behind, now, now, true)
			for i := range uint64(16) {
				for name, each := range map[string]*bucket.Table{"a copy": other, "one that was behind": behind} {
					n := spends - 1 - i
					if name != "a copy" {
						n += 3
					}
					before := do(each, bucket.Extend, 0)
					if after := do(each, bucket.Spend, 2*n+100); after != before {
						t.Errorf("%s: spend %d before the last is repeated: %d left, then %d", name, i, before, after)
					}
				}
			}
			switch end {
			case "settled", "a slot":
				do(table, bucket.Settle, 0)
			default:
				now += int64(200 * time.Second)
			}
			table.Sweep(now, 0)
			follow()
			few(end, 2)
		})
	}
}

// TestCanceledRecords: of reservations that another key denies nothing is left once their requests
// cannot come any more.
func TestCanceledRecords(t *testing.T) {
	table, limits := largeTable(t), mustLimits(t, per(bucket.FixedWindow, 1000, time.Hour))
	do := func(now int64, verb bucket.Verb, id uint64, limits *bucket.Limits) {
		table.Do(now, &bucket.Request{Limits: limits, Cost: 3, Verb: verb, Once: id, Reservation: &bucket.Reservation{
			ID: id, Least: 3, MaxOpen: 9, For: time.Hour, Fresh: true,
		}})
	}
	now := day
	for id := uint64(1); id <= 10_000; id++ {
		if id%2 == 0 { // else it comes too late
			do(now, bucket.Reserve, id, limits)
		}
		do(now, bucket.Cancel, id, limits)
		do(now, bucket.Reserve, id, limits)
		now += int64(10 * time.Millisecond)
	}
	if n := left(table, now, &bucket.Request{Limits: limits}); n != 1000 {
		t.Errorf("%d left of 1000", n)
	}
	table.Sweep(now, 0)
	if s := table.Stats(); s.Entries > 1001 {
		t.Errorf("at 100 a second: %d records in %d bytes", s.Entries, s.Bytes)
	}
	now += int64(10 * time.Second)
	table.Sweep(now, 0)
	if s := table.Stats(); s.Entries > 1 {
		t.Errorf("10 s later: %d records in %d bytes", s.Entries, s.Bytes)
	}
}

func largeTable(t failer) *bucket.Table { return mustTable(t, bucket.Config{Shards: 1}) }
