package bucket_test

import (
	"bytes"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
)

// importSeeds are limits as tapes, with images of counters under them.
func importSeeds(f *testing.F) {
	for _, seed := range fuzzSeeds {
		for _, former := range []bool{false, true} {
			b := tape(seed)
			limits := b.limits()
			if limits == nil {
				f.Fatalf("seed %v has no limits", seed)
			}
			table := smallTable(f)
			r := &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Charge}
			table.Do(day, r)
			table.Do(day+1500, r)
			if former {
				l := leaseRequest(limits, 3, limits.LongestLease())
				table.Grant(day+1500, l)
				table.Grant(day+1600, l)
			}
			if former {
				r.Limits = mustLimits(f, per(bucket.SlidingLog, 3, 1e9))
				table.Do(day+2000, r)
			}
			im := exported(table, day+2000, 0)
			f.Add(seed, im.Data, day+2000, im.Counters, former)
			f.Add(seed, im.Data, int64(0), im.Counters, !former)
		}
	}
}

// FuzzImport: no bytes make Import panic or a counter that cannot be used, and what it has taken is handed
// on without a difference.
func FuzzImport(f *testing.F) {
	importSeeds(f)
	f.Fuzz(func(t *testing.T, list, data []byte, now int64, n int, merge bool) {
		b := tape(list)
		limits := b.limits()
		if limits == nil {
			return
		}
		former := mustLimits(t, per(bucket.SlidingLog, 3, 1e9))
		im := &bucket.Image{Limits: []*bucket.Limits{limits, former, nil}}
		table, again := smallTable(t), smallTable(t)
		err := table.Import(now, 0, im, data, n, merge)
		if once := table.Stats().Entries; err == nil && merge && table.Import(now, 0, im, data, n, true) == nil && table.Stats().Entries != once {
			t.Fatalf("%d counters, then %d", once, table.Stats().Entries)
		}
		out := exported(table, now, 0)
		if s := table.Stats(); int64(out.Counters) != s.Entries || (s.Bytes > 0) != (s.Entries > 0) {
			t.Fatalf("%+v, %d counters exported", s, out.Counters)
		}
		if err := again.Import(now, 0, out, out.Data, out.Counters, false); err != nil {
			t.Fatalf("what was exported is rejected: %v", err)
		}
		if again.Stats().Expired > 0 {
			return // free counters were dropped, as at every insert
		}
		if next := exported(again, now, 0); !bytes.Equal(next.Data, out.Data) {
			t.Fatalf("exported %x, then %x", out.Data, next.Data)
		}
		for _, k := range table.Keys(0, nil) {
			useImported(t, &b, k.Counter(), now, []*bucket.Limits{limits, former}, table, again)
		}
	})
}

// useImported asks two tables the same, which must answer the same.
func useImported(t *testing.T, b *tape, key bucket.Key, now int64, sets []*bucket.Limits, tables ...*bucket.Table) {
	for i := range 12 {
		r := &bucket.Request{Key: key, Limits: sets[i/3%2], Cost: int64(i % 4), Verb: bucket.Verb(i % 4)}
		if i > 0 {
			now = max(now, now+int64(b.byte())*int64(r.Limits.At(0).Period/16)) // unless that wraps
		}
		first := tables[0].Do(now, r)
		wellFormed(t, r.Limits, r.Verb, first)
		if second := tables[1].Do(now, r); second != first {
			t.Fatalf("at %d, %s of %d: %+v, handed on %+v", now, r.Verb, r.Cost, first, second)
		}
	}
}
