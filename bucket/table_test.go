package bucket_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// keys draws n keys as a keyed hash would spread them, the same ones every time.
func keys(n int) []bucket.Key {
	source := rand.New(rand.NewPCG(1, 2))
	list := make([]bucket.Key, n)
	for i := range list {
		list[i] = bucket.Key{Hi: source.Uint64(), Lo: source.Uint64()}
	}
	return list
}

func TestTableConfig(t *testing.T) {
	for _, c := range []bucket.Config{
		{Shards: 0}, {Shards: -1}, {Shards: 1, MaxEntries: -1}, {Shards: 1, MaxBytes: -1},
	} {
		if _, err := bucket.NewTable(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// TestTableStaysWithinEntries floods tables of all proportions with new keys, as
// an attacker with an IPv6 prefix would.
func TestTableStaysWithinEntries(t *testing.T) {
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))
	for _, c := range []bucket.Config{
		{Shards: 1, MaxEntries: 1}, {Shards: 1, MaxEntries: 100}, {Shards: 7, MaxEntries: 100},
		{Shards: 64, MaxEntries: 64}, {Shards: 100, MaxEntries: 150}, {Shards: 16, MaxEntries: 5000}, {Shards: 1021, MaxEntries: 100},
	} {
		table := mustTable(t, c)
		for i, k := range keys(20_000) {
			table.Do(day+int64(i), &bucket.Request{Key: k, Limits: limits, Cost: 1})
			if s := table.Stats(); i%97 == 0 && s.Entries > int64(c.MaxEntries) {
				t.Fatalf("%+v: %d entries after %d keys", c, s.Entries, i+1)
			}
		}
		s := table.Stats()
		if s.Entries > int64(c.MaxEntries) || s.Entries == 0 {
			t.Errorf("%+v: %d entries", c, s.Entries)
		}
		if s.Inserted != 20_000 || s.EvictedLive != 20_000-uint64(s.Entries) || s.EvictedExpired+s.Expired != 0 {
			t.Errorf("%+v: every key that left was live: %+v", c, s)
		}
	}
}

// TestTableStaysWithinBytes floods with counters of all sizes, new and growing.
func TestTableStaysWithinBytes(t *testing.T) {
	for _, c := range algorithms {
		limits := mustLimits(t, per(c.algorithm, 1000, time.Hour), per(c.algorithm, 2000, 2*time.Hour))
		for _, shards := range []int{1, 8} {
			config := bucket.Config{Shards: shards, MaxBytes: 1 << 20}
			table := mustTable(t, config)
			for i, k := range keys(20_000) {
				for range 1 + i%3 {
					table.Do(day+int64(i), &bucket.Request{Key: k, Limits: limits, Cost: 1})
				}
				if s := table.Stats(); i%97 == 0 && s.Bytes > config.MaxBytes {
					t.Fatalf("%s: %d bytes after %d keys", c.name, s.Bytes, i+1)
				}
			}
			s := table.Stats()
			if s.Bytes > config.MaxBytes || s.Bytes < config.MaxBytes/4 || s.Entries == 0 {
				t.Errorf("%s, %d shards: %+v", c.name, shards, s)
			}
			if s.Inserted != uint64(s.Entries)+s.EvictedLive+s.EvictedExpired+s.Expired {
				t.Errorf("%s, %d shards: what came is not what left and what stayed: %+v", c.name, shards, s)
			}
		}
	}
}

// TestTableCountsGrowingLogs: the memory of a few counters that grow is counted
// and capped too.
func TestTableCountsGrowingLogs(t *testing.T) {
	l := per(bucket.SlidingLog, 1<<40, time.Hour)
	l.LogEntries = 65_536
	limits := mustLimits(t, l)
	table := mustTable(t, bucket.Config{Shards: 1, MaxBytes: 1 << 20})
	r := &bucket.Request{Limits: limits, Cost: 1}
	table.Do(day, r)
	one := table.Stats().Bytes
	for i := range int64(1000) {
		table.Do(day+i, r)
	}
	if got := table.Stats().Bytes; got < one+8*900 {
		t.Errorf("a log of 1000 entries counts %d bytes, one of a single entry %d", got, one)
	}
	for i := range int64(200_000) {
		r.Key.Hi = uint64(i % 5)
		table.Do(day+1000+i, r)
		if s := table.Stats(); i%997 == 0 && s.Bytes > 1<<20 {
			t.Fatalf("%d bytes in %d entries", s.Bytes, s.Entries)
		}
	}
}

// TestTableEvictsOldestAndCountsLife: the least recently used leave first; those that were free again are counted apart.
func TestTableEvictsOldestAndCountsLife(t *testing.T) {
	table, ks := mustTable(t, bucket.Config{Shards: 1, MaxEntries: 10}), keys(20)
	check := func(now int64, period time.Duration, ks ...bucket.Key) (allowed int) {
		for _, k := range ks {
			if table.Do(now, &bucket.Request{Key: k, Limits: mustLimits(t, per(bucket.FixedWindow, 1, period)), Cost: 1}).Allowed {
				allowed++
			}
		}
		return allowed
	}
	check(day, time.Second, ks[:5]...)
	check(day, time.Hour, ks[5:10]...)
	now := day + int64(time.Minute)
	check(now, time.Hour, ks[10:15]...) // five free ones make room
	if s := table.Stats(); s.EvictedLive != 0 || s.EvictedExpired+s.Expired != 5 || s.Entries != 10 {
		t.Errorf("five that were free have left: %+v", s)
	}
	if n := check(now, time.Hour, ks[5:15]...); n > 0 {
		t.Errorf("%d counters that were live have been forgotten", n)
	}
	check(now, time.Hour, ks[15]) // now something live has to go: the oldest, ks[5]
	if s := table.Stats(); s.EvictedLive != 1 {
		t.Errorf("one live counter was evicted: %+v", s)
	}
	if others, oldest := check(now, time.Hour, ks[6:16]...), check(now, time.Hour, ks[5]); others != 0 || oldest != 1 {
		t.Errorf("forgotten are %d of the others and %d of the least recently used", others, oldest)
	}
}

// TestManyGoroutinesSpendTheLimitOnce: whatever runs concurrently, one key admits exactly its limit, even under several limits, each check
// tells another remainder, and charges that are given back in between do not count.
func TestManyGoroutinesSpendTheLimitOnce(t *testing.T) {
	const workers, each, limit = 16, 500, 1000
	for _, c := range algorithms {
		t.Run(c.name, func(t *testing.T) {
			table := mustTable(t, bucket.Config{Shards: 4})
			limits := mustLimits(t, per(c.algorithm, limit, time.Hour), per(bucket.FixedWindow, 2*limit, 24*time.Hour))
			var admitted atomic.Int64
			var told [limit]atomic.Int64
			var wait sync.WaitGroup
			for w := range workers {
				wait.Go(func() {
					for i := range each {
						r := &bucket.Request{Limits: limits, Cost: 1}
						if d := table.Do(day, r); d.Allowed {
							admitted.Add(1)
							told[d.Remaining].Add(1)
						}
						r.Key = bucket.Key{Hi: 1, Lo: uint64(1 + i%50)}
						var rc bucket.Receipt
						if _, charged := table.DoHeld(day, r, &rc); charged {
							table.GiveBack(day, &rc)
						}
						switch {
						case i%100 == 0:
							table.Sweep(day, i/100%4)
							table.Stats()
						case w == 0 && i%100 == 50:
							r.Verb = bucket.Reset
							table.Do(day, r)
						}
					}
				})
			}
			wait.Wait()
			if admitted.Load() != limit {
				t.Errorf("%d admitted, want %d", admitted.Load(), limit)
			}
			for n := range told {
				if told[n].Load() != 1 {
					t.Fatalf("%d checks were told that %d are left", told[n].Load(), n)
				}
			}
			for s := range 4 {
				table.Sweep(day, s)
			}
			if s := table.Stats(); s.Entries != 1 {
				t.Errorf("what was given back still counts somewhere: %+v", s)
			}
		})
	}
}
