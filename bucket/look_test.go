package bucket

import (
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
	look := func(at int64) []Standing {
		list, known := table.Look(at, key, limits)
		if !known {
			t.Error("there is no counter")
		}
		return list
	}
	free, known := table.Look(now, key, limits)
	if known || free[0] != (Standing{Limit: 10, Remaining: 10}) || free[1].Remaining != 1000 {
		t.Errorf("nothing spent: %+v, known %v", free, known)
	}
	table.Do(now, &Request{Key: key, Limits: limits, Cost: 4})
	if got := look(now); got[0] != (Standing{10, 4, 6, time.Minute}) || got[1] != (Standing{1000, 4, 996, 4 * time.Second}) {
		t.Errorf("%+v", got)
	}
	if got := look(now + int64(3*time.Second)); got[0].ResetAfter != 57*time.Second || got[1].Spent != 1 {
		t.Errorf("3 s later: %+v", got)
	}
	if got := look(now); got[1].Spent != 4 { // looking ahead has not moved it
		t.Errorf("looked at again: %+v", got)
	}
	table.Do(now, &Request{Key: key, Limits: limits, Cost: 9, Verb: Charge})
	if got := look(now)[0]; got.Spent != 13 || got.Remaining != 0 {
		t.Errorf("in debt: %+v", got)
	}
	if stats := table.Stats(); stats.Entries != 1 {
		t.Errorf("%d counters", stats.Entries)
	}

	granted := Key{Hi: 1, Lo: 3}
	one := mustLimits(t, Limit{Algorithm: TokenBucket, Count: 1000, Period: time.Second})
	g, _, _ := table.Grant(now, &LeaseRequest{Key: granted, Limits: one, Want: 100, Part: 1, Whole: 1, For: 100 * time.Millisecond})
	if g.Units != 100 {
		t.Fatalf("granted %+v", g)
	}
	list, _ := table.Look(now, granted, one)
	if s := list[0]; s.Limit != 1000 || s.Spent != 100 || s.Remaining != 900 {
		t.Errorf("100 are granted: %+v", s)
	}
}
