package bucket

import (
	"fmt"
	"testing"
	"time"
)

// TestLook: every limit of a key is told, and looking changes nothing.
func TestLook(t *testing.T) {
	table := mustTable(t, Config{Shards: 3})
	limits := mustLimits(t,
		Limit{Algorithm: FixedWindow, Count: 10, Period: time.Minute, Align: AlignFirstHit},
		Limit{Algorithm: TokenBucket, Count: 1000, Period: 1000 * time.Second},
	)
	const now = int64(1_700_000_000) * int64(time.Second)
	key := Key{Hi: 1, Lo: 2}
	look := func(after time.Duration) string { return fmt.Sprint(table.Look(now+int64(after), key, limits)) }
	spend := func(verb Verb, cost int64) string {
		table.Do(now, &Request{Key: key, Limits: limits, Cost: cost, Verb: verb})
		return look(0)
	}
	for i, s := range [][2]string{ // limit, spent, remaining and reset after of each
		{look(0), "[{10 0 10 0s} {1000 0 1000 0s}] false"},
		{spend(Check, 4), "[{10 4 6 1m0s} {1000 4 996 4s}] true"},
		{look(3 * time.Second), "[{10 4 6 57s} {1000 1 999 1s}] true"},
		{look(0), "[{10 4 6 1m0s} {1000 4 996 4s}] true"}, // looking ahead has not moved it
		{spend(Charge, 9), "[{10 13 0 1m0s} {1000 13 987 13s}] true"},
	} {
		if s[0] != s[1] {
			t.Errorf("step %d: %s, want %s", i, s[0], s[1])
		}
	}
	if stats := table.Stats(); stats.Entries != 1 {
		t.Errorf("%d counters", stats.Entries)
	}
	key, limits = Key{Hi: 1, Lo: 3}, mustLimits(t, Limit{Algorithm: TokenBucket, Count: 1000, Period: time.Second})
	g, _, _ := table.Grant(now, &LeaseRequest{Key: key, Limits: limits, Want: 100, Part: 1, Whole: 1, For: 100 * time.Millisecond})
	if list, _ := table.Look(now, key, limits); g.Units != 100 || list[0].Limit != 1000 || list[0].Spent != 100 || list[0].Remaining != 900 {
		t.Errorf("%d are granted: %+v", g.Units, list)
	}
}
