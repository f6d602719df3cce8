package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// FuzzGrant plays any sequence of leases, returns, checks, changes of limits, handoffs and merges, with any limits and times. Nothing
// panics, every answer is well formed, no more comes back than was granted, and a grant takes away its units.
func FuzzGrant(f *testing.F) {
	for _, seed := range fuzzSeeds {
		f.Add(seed)
	}
	f.Add([]byte{0, 0, 6, 12, 0, 0, 5, 0, 9, 0, 1, 3, 1, 0, 3, 0, 9, 0, 2, 12, 1, 4, 0, 5, 0, 0, 1, 9})
	f.Add([]byte{0, 3, 6, 12, 0, 15, 0, 9, 0, 3, 1, 1, 6, 0, 4, 0, 3, 2, 1, 0, 0, 12, 1, 1})
	f.Add([]byte{0, 4, 6, 12, 0, 15, 0, 9, 0, 3, 1, 1, 5, 0, 6, 0, 0, 9, 1, 2, 0, 0, 12, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		run := &fuzzGranting{t: t, tape: data, table: smallTable(t), other: smallTable(t)}
		if run.limits = run.tape.limits(); run.limits == nil {
			return
		}
		run.now = run.tape.number()
		for n := 0; n < 60 && len(run.tape) > 0; n++ {
			run.step()
		}
	})
}

type fuzzGranting struct {
	t            *testing.T
	tape         tape
	table, other *bucket.Table
	limits       *bucket.Limits
	now          int64
	grants       []bucket.Grant
}

func (run *fuzzGranting) step() {
	t := run.t
	switch op := run.tape.byte(); op % 8 {
	case 0, 1:
		run.grant()
	case 2:
		if len(run.grants) > 0 {
			g := run.grants[int(run.tape.byte())%len(run.grants)]
			unspent := run.tape.number()
			if back, _, _ := run.table.Return(run.now, bucket.Key{}, g.ID, unspent); back < 0 || back > g.Units || back > max(0, unspent) {
				t.Fatalf("%d came back of %+v with %d unspent", back, g, unspent)
			}
		}
	case 3:
		r := &bucket.Request{Limits: run.limits, Verb: bucket.Verb(run.tape.byte() % 5), Cost: run.tape.number(), Drain: op&64 != 0}
		wellFormed(t, run.limits, r.Verb, run.table.Do(run.now, r))
	case 4:
		if l := run.tape.limits(); l != nil {
			run.limits = l
		}
	case 5: // hand it on, or merge it
		to := run.tape.number()
		hand(t, run.table, run.other, run.now, to, op&64 != 0)
		run.table, run.other, run.now = run.other, run.table, to
	case 6:
		run.now = run.tape.number()
	case 7:
		run.now += int64(run.tape.byte()) * int64(run.limits.At(0).Period/64)
	}
	read := run.table.Do(run.now, &bucket.Request{Limits: run.limits, Verb: bucket.Read})
	wellFormed(t, run.limits, bucket.Read, read)
	if n, units := run.table.Granted(run.now, bucket.Key{}); n < 0 || n > 60 || units < int64(n) {
		t.Fatalf("%d grants of %d units", n, units)
	}
}

func (run *fuzzGranting) grant() {
	t := run.t
	l := &bucket.LeaseRequest{
		Limits: run.limits, Want: run.tape.number(), Part: run.tape.number(), Whole: run.tape.number(),
		Reserve: run.tape.number(), For: time.Duration(run.tape.number()),
	}
	read := &bucket.Request{Limits: run.limits, Verb: bucket.Read}
	before := run.table.Do(run.now, read)
	g, _, _ := run.table.Grant(run.now, l)
	wellFormed(t, run.limits, bucket.Read, g.Decision)
	after := run.table.Do(run.now, read)
	switch {
	case g.RetryAfter < 0 || (g.RetryAfter == 0) != (g.Units > 0):
		t.Fatalf("retry after %d: %+v", g.RetryAfter, g)
	case g.Units == 0:
		if after != before {
			t.Fatalf("nothing granted, but %+v is %+v now", before, after)
		}
		return
	case g.Units > l.Want || g.For > l.For || g.For < bucket.LeastLease || !g.Decision.Allowed || !run.limits.Grantable(l.For):
		t.Fatalf("%+v of %+v", g, *l)
	case after.Allowed && !before.Allowed, after.Index == before.Index && after.Remaining > before.Remaining-g.Units:
		t.Fatalf("%d granted: %+v is %+v now", g.Units, before, after)
	}
	run.grants = append(run.grants, g)
}
