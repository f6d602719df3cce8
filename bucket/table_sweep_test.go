package bucket_test

import (
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestSweepRemovesExactlyTheFree compares Sweep with the exact account of every
// key, and shows that no decision after it differs.
func TestSweepRemovesExactlyTheFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []bucket.Limit
		for range rapid.IntRange(1, 3).Draw(t, "limits") {
			l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm, true).Draw(t, "limit")
			genOptions(t, &l)
			list = append(list, l)
		}
		limits := mustLimits(t, list...)
		const shards = 3
		table := mustTable(t, bucket.Config{Shards: shards, MaxEntries: 1000})
		ks := keys(12)
		accounts := make([]*account, len(ks))
		for i := range accounts {
			accounts[i] = newAccount(limits)
		}
		now := genStart.Draw(t, "start")
		for range 4 {
			for range rapid.IntRange(1, 15).Draw(t, "checks") {
				now += genStep(t, now, limits.At(0), bucket.Decision{})
				i := rapid.IntRange(0, len(ks)-1).Draw(t, "key")
				r := &bucket.Request{Key: ks[i], Limits: limits, Cost: rapid.Int64Range(0, 3).Draw(t, "cost")}
				r.Verb = genVerb(t, accounts[i], now, r.Cost)
				d := table.Do(now, r)
				accounts[i].compare(t, accounts[i].do(now, r), d)
			}
			now += genStep(t, now, limits.At(0), bucket.Decision{})
			removed := 0
			before := table.Stats()
			for s := range shards {
				removed += table.Sweep(now, s)
			}
			after := table.Stats()
			live := int64(0)
			for _, a := range accounts {
				if !a.free(now) {
					live++
				}
			}
			if after.Entries != live || before.Entries-after.Entries != int64(removed) {
				t.Fatalf("at %d: %d of %d removed, %d left, %d are live", now, removed, before.Entries, after.Entries, live)
			}
			if after.Expired != before.Expired+uint64(removed) {
				t.Fatalf("%d removed, expired went from %d to %d", removed, before.Expired, after.Expired)
			}
		}
	})
}

func (a *account) free(now int64) bool {
	for _, m := range a.models {
		if !m.free(now) || m.limit.MinInterval+m.limit.BlockFor > 0 && !m.rested(now) {
			return false
		}
	}
	return true
}

// TestResetForgetsOneKey: and not the one beside it.
func TestResetForgetsOneKey(t *testing.T) {
	table, limits, ks := smallTable(t), mustLimits(t, per(bucket.FixedWindow, 3, time.Hour)), keys(2)
	for _, k := range ks {
		table.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 3})
	}
	if d := table.Do(day, &bucket.Request{Key: ks[0], Limits: limits, Verb: bucket.Reset}); !d.Allowed || d.Remaining != 3 {
		t.Errorf("reset: %+v", d)
	}
	for i, k := range ks {
		if d := table.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 3}); d.Allowed != (i == 0) {
			t.Errorf("key %d: %+v", i, d)
		}
	}
}

// TestRenew: a charge that begins anew is one change, and no reader sees the counter without what it had.
func TestRenew(t *testing.T) {
	table, limits := smallTable(t), mustLimits(t, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1000, Period: time.Hour, Align: bucket.AlignFirstHit})
	read := &bucket.Request{Key: bucket.Key{Hi: 1}, Limits: limits, Verb: bucket.Read}
	charge := &bucket.Request{Key: read.Key, Limits: limits, Verb: bucket.Charge, Cost: 7}
	for i, cost := range []int64{7, 8} { // the first time there is no counter
		charge.Cost = cost
		now := day + int64(i)*int64(20*time.Minute)
		_, before, _ := table.Try(now, read, nil)
		seq, v := table.Renew(now, charge)
		d, _, _ := table.Try(now, read, nil)
		if v != bucket.Decided || seq != before+1 || d.Remaining != 1000-cost || d.ResetAfter != time.Hour || table.Stats().Entries != 1 {
			t.Errorf("%v, change %d after %d: %+v, %d counters", v, seq, before, d, table.Stats().Entries)
		}
	}
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for range 2000 {
			table.Renew(day, charge)
		}
	})
	for range 2000 {
		if d := table.Do(day, read); d.Remaining != 1000-8 {
			t.Fatalf("%+v while the counter is renewed", d)
		}
	}
	renewing.Wait()
}

// TestDropShard: it forgets the keys of the shard only, and each once.
func TestDropShard(t *testing.T) {
	const shards = 5
	table, limits, ks := mustTable(t, bucket.Config{Shards: shards}), mustLimits(t, per(bucket.SlidingLog, 1, time.Hour)), keys(500)
	var in [shards]int
	for _, k := range ks {
		table.Do(day, &bucket.Request{Key: k, Limits: limits, Cost: 1})
		in[k.Shard(shards)]++
	}
	if n, again := table.DropShard(2), table.DropShard(2); n != in[2] || again != 0 {
		t.Errorf("dropped %d, then %d; the shard had %d", n, again, in[2])
	}
	if s := table.Stats(); s.Entries != int64(500-in[2]) || s.EvictedLive != 0 {
		t.Errorf("after the drop: %+v", s)
	}
	for _, k := range ks {
		if table.Has(k) != (k.Shard(shards) != 2) {
			t.Fatalf("key in shard %d: it is there %v", k.Shard(shards), table.Has(k))
		}
	}
	for s := range shards {
		table.DropShard(s)
	}
	if s := table.Stats(); s.Entries != 0 || s.Bytes != 0 {
		t.Errorf("after dropping all shards: %+v", s)
	}
}
