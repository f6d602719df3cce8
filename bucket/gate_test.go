package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestGate follows one shard's gate of 50 ms. Times are milliseconds.
func TestGate(t *testing.T) {
	table := smallTable(t)
	limits := mustLimits(t, per(bucket.TokenBucket, 1000, time.Hour))
	at := func(ms int64) int64 { return day + ms*int64(time.Millisecond) }
	try := func(ms int64, unreplicated bool, want bucket.Verdict) {
		t.Helper()
		r := &bucket.Request{Limits: limits, Cost: 1, Unreplicated: unreplicated}
		before := left(table, at(ms), r)
		_, _, v := table.Try(at(ms), r, nil)
		if v != want {
			t.Errorf("at %d ms, unreplicated %v: verdict %d, want %d", ms, unreplicated, v, want)
		}
		if charged := left(table, at(ms), r) != before; charged != (want == bucket.Decided) {
			t.Errorf("at %d ms: charged is %v", ms, charged)
		}
	}
	drain := func(wantMs int64) {
		t.Helper()
		want := int64(math.MaxInt64)
		if wantMs >= 0 {
			want = at(wantMs)
		}
		if _, _, since := table.Drain(0, nil); since != want {
			t.Errorf("drained since %d, want %d", since, want)
		}
	}
	table.Record(0, bucket.RecordLasting, 50*time.Millisecond)
	try(0, true, bucket.Decided) // unreplicated changes do not count
	try(200, false, bucket.Decided)
	try(210, false, bucket.Decided)
	try(250, false, bucket.Decided) // exactly 50 ms
	try(251, false, bucket.Behind)
	try(251, true, bucket.Decided)
	drain(200)
	try(251, false, bucket.Behind) // drained is not confirmed
	table.Confirm(0, at(240))
	try(252, false, bucket.Decided)
	table.Confirm(0, math.MaxInt64)
	try(302, false, bucket.Decided) // the one at 252 is not drained yet
	try(303, false, bucket.Behind)
	drain(252)
	table.Confirm(0, at(290))
	try(303, false, bucket.Decided)
	try(341, false, bucket.Behind)
	drain(303)
	try(341, false, bucket.Behind) // 290 is older than 303
	drain(-1)
	table.Confirm(0, math.MaxInt64)
	try(1000, false, bucket.Decided)
	try(500, false, bucket.Decided) // a clock that steps back
	table.Record(0, bucket.RecordLasting, 0)
	try(9000, false, bucket.Decided)
	table.Record(0, bucket.RecordLasting, time.Millisecond)
	try(9000, false, bucket.Behind)
	free := &bucket.Request{Limits: mustLimits(t, bucket.Limit{Unlimited: true}), Cost: 1}
	if d, _, v := table.Try(at(9000), free, nil); v != bucket.Decided || !d.Allowed {
		t.Errorf("unlimited: %+v, verdict %d", d, v)
	}
	drain(1000)
	if table.DropShard(0); len(changedShards(table)) != 0 {
		t.Error("changed after it was dropped")
	}
	if _, seq, v := table.Try(at(9500), &bucket.Request{Limits: limits, Cost: 1}, nil); v != bucket.Decided || seq != 1 {
		t.Errorf("after the shard was dropped: verdict %d, change %d, want the first", v, seq)
	}
}
