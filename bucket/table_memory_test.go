package bucket

import (
	"runtime"
	"testing"
	"time"
	"weak"
)

// spreadKey returns key n of keys in all shards.
func spreadKey(n int) Key {
	return Key{Hi: uint64(n)*0x9e3779b97f4a7c15 + 1, Lo: uint64(n) * 0xbf58476d1ce4e5b9}
}

const memoryNow = int64(1e18)

// TestUnusedSetsAreCollected: nothing keeps a set of limits alive that no counter refers to.
func TestUnusedSetsAreCollected(t *testing.T) {
	table := mustTable(t, Config{Shards: 4})
	var refs []weak.Pointer[Limits]
	for n := range 1000 {
		l := mustLimits(t, Limit{Algorithm: TokenBucket, Count: int64(1000 + n), Period: time.Second})
		refs = append(refs, weak.Make(l))
		table.Do(memoryNow, &Request{Key: spreadKey(n), Limits: l, Cost: 1})
	}
	for s := range 4 {
		table.Sweep(memoryNow+int64(time.Hour), s)
	}
	runtime.GC()
	alive := 0
	for _, w := range refs {
		if w.Value() != nil {
			alive++
		}
	}
	if s := table.Stats(); alive > 20 || s.Sets != 0 { // the last ones may be in registers or buffers
		t.Errorf("%d of 1000 sets are alive, %d are in use", alive, s.Sets)
	}
	runtime.KeepAlive(table)
}

// TestFormerSetsCount: sets of limits that are in use only as former limits give way too when there are too many.
func TestFormerSetsCount(t *testing.T) {
	const most = 500
	table := mustTable(t, Config{Shards: 1, MaxSets: most, MaxEntries: 1e6})
	set := func(n int) *Limits {
		return mustLimits(t, Limit{Algorithm: FixedWindow, Count: 1000, Period: time.Duration(n+1) * time.Hour})
	}
	shared, sent, highest := set(0), 0, int64(0)
	for n := range 10_000 {
		table.Do(memoryNow, &Request{Key: spreadKey(n), Limits: shared, Cost: 1})
	}
	for n := range 1000 {
		key := spreadKey(1e6 + n)
		for range maxFormer {
			sent++
			table.Do(memoryNow, &Request{Key: key, Limits: set(sent), Cost: 1, Verb: Charge})
		}
		table.Do(memoryNow, &Request{Key: key, Limits: shared, Cost: 2000, Verb: Charge})
		highest = max(highest, table.Stats().Sets)
	}
	if highest > 4*most {
		t.Errorf("%d sets were in use, where the cap is %d", highest, most)
	}
}

// TestImportedAgainIsUsed: on a replica, a counter whose changes arrive again and again outlives those that come once.
func TestImportedAgainIsUsed(t *testing.T) {
	const hot, room = 100, 1000
	owner, replica := mustTable(t, Config{Shards: 1}), mustTable(t, Config{Shards: 1, MaxEntries: room})
	l, now := mustLimits(t, Limit{Algorithm: FixedWindow, Count: 1 << 30, Period: 1000 * time.Hour}), memoryNow
	change := func(k Key) {
		now += 1000
		owner.Do(now, &Request{Key: k, Limits: l, Cost: 1})
		hand(t, owner, replica, now, 0, At(k), false)
	}
	missing := 0
	for n := range 10 * room {
		h := spreadKey(1e6 + n%hot)
		if n >= hot && !replica.Has(h) {
			missing++
		}
		change(h)
		change(spreadKey(n))
	}
	if missing > 0 {
		t.Errorf("counters in constant use were missing %d times", missing)
	}
}

// TestNearlyEmptyPagesAreGivenBack: a few counters that stay, among many of their size that go, keep no more memory than they need.
func TestNearlyEmptyPagesAreGivenBack(t *testing.T) {
	const most = 2 << 20
	table, now, key, stay := mustTable(t, Config{Shards: 1, MaxBytes: most}), memoryNow, 0, 0
	for _, limits := range []int{2, 3, 5, 7, 11, 15} {
		set := func(period time.Duration) *Limits {
			list := make([]Limit, limits)
			for i := range list {
				list[i] = Limit{Algorithm: TokenBucket, Count: 10, Period: period + time.Duration(i)}
				if i == 0 {
					list[i] = Limit{Algorithm: SlidingLog, Count: 10, Period: period}
				}
			}
			return mustLimits(t, list...)
		}
		short, long := set(time.Second), set(10_000*time.Hour)
		page := slabBytes / blockSizes[classOf(headBytes+stateBytes*limits)]
		for i := 0; table.Stats().Bytes < most*95/100; i++ {
			l := short
			if i%page == 0 {
				l = long
				stay++
			}
			key++
			table.Do(now, &Request{Key: spreadKey(key), Limits: l, Cost: 1})
		}
		now += int64(time.Minute)
		table.Sweep(now, 0)
		table.Sweep(now, 0)
		s := table.Stats()
		if got := table.OffHeap(); int(s.Entries) != stay || got > 3*s.Bytes+1<<20 {
			t.Errorf("%d limits: %d counters of %d KiB take %d KiB", limits, s.Entries, s.Bytes>>10, got>>10)
		}
	}
	sh := &table.shards[0]
	for n := range sh.mu.store.n {
		r := Request{Key: sh.mu.store.at(n).key, Limits: sh.lookLocked(n).limits, Cost: 10}
		if d := table.Do(now, &r); d.Allowed {
			t.Fatalf("counter %d has lost what was spent: %+v", n, d)
		}
	}
}

// TestLossLeavesTheLog: a check that only reads, under a loss that the clock has yet to reach, changes no counter.
func TestLossLeavesTheLog(t *testing.T) {
	table, key := mustTable(t, Config{Shards: 1}), spreadKey(1)
	r := Request{Key: key, Limits: mustLimits(t, Limit{Algorithm: SlidingLog, Count: 10, Period: time.Hour}), Cost: 8}
	table.Do(memoryNow, &r)
	table.SetLost(0, memoryNow+int64(time.Minute), memoryNow+int64(2*time.Hour)) // the clock was set back since
	r.Verb, r.DenyLost = Read, true
	table.Do(memoryNow, &r)
	table.SetLost(0, 0, 0)
	r.Verb = Check
	if d := table.Do(memoryNow+10, &r); d.Allowed {
		t.Errorf("8 more of 10 units after 8 were spent: %+v", d)
	}
}
