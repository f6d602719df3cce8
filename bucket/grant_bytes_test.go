package bucket

import (
	"testing"
	"time"
)

// TestGrantedBytes: whatever makes leases come and go, the table knows how much memory its counters take.
func TestGrantedBytes(t *testing.T) {
	log := mustLimits(t,
		Limit{Algorithm: SlidingLog, Count: 1000, Period: time.Hour}, Limit{Algorithm: FixedWindow, Count: 1000, Period: time.Hour},
	)
	window := mustLimits(t, Limit{Algorithm: FixedWindow, Count: 1000, Period: 2 * time.Hour})
	table, other := mustTable(t, Config{Shards: 1}), mustTable(t, Config{Shards: 1})
	now, l := int64(time.Hour), &LeaseRequest{Limits: log, Want: 10, Part: 1, Whole: 1, For: time.Second}
	var rc Receipt
	var ids []uint64
	grant := func() {
		g, _, _ := table.Grant(now, l)
		if g.Units == 0 {
			t.Fatalf("nothing granted: %+v", g)
		}
		ids = append(ids, g.ID)
		now += int64(time.Millisecond)
	}
	do := func(verb Verb, limits *Limits) { table.Do(now, &Request{Limits: limits, Cost: 1, Verb: verb}) }
	move := func(merge bool) {
		hand(t, table, other, now, 0, At(Key{}), merge)
		table, other = other, table
	}
	for i, step := range []func(){
		grant, grant, grant,
		func() { table.Return(now, Key{}, ids[1], 5) },
		func() { table.DoHeld(now, &Request{Limits: log, Cost: 1}, &rc) },
		func() { now += int64(2 * time.Second); table.GiveBack(now, &rc) }, // all leases have ended
		grant, grant,
		func() { now += int64(2 * time.Second); do(Check, log) },
		grant,
		func() { // so many that their block has a page of its own
			l.Want = 1
			for range 250 {
				grant()
			}
		},
		grant, grant,
		func() { table.Return(now, Key{}, ids[len(ids)-1], 1); l.Want = 10 },
		func() { do(Check, window) },
		func() { do(Refund, window) },
		func() { do(Check, log) },
		grant,
		func() { do(Reset, log) },
		grant,
		func() { move(false) }, grant, func() { move(true) }, grant,
		func() { now += int64(2 * time.Second); table.Return(now, Key{}, ids[len(ids)-1], 5) },
		func() { do(Read, log) }, func() { do(Reset, log) },
	} {
		step()
		for _, x := range []*Table{table, other} {
			want := int64(x.shards[0].mu.store.grants) * LeastBytes
			if c := x.counterOf(Key{}); c != nil {
				want += c.bytes()
			}
			if got := x.Stats().Bytes - x.Stats().SetBytes; got != want || x.shards[0].mu.store.bytes != want {
				t.Fatalf("step %d: %d bytes in the table and %d in the shard, the counter has %d", i, got, x.shards[0].mu.store.bytes, want)
			}
		}
	}
	if table.Stats().Entries != 0 {
		t.Error("the counter is still there after the reset: nothing is granted any more")
	}
}
