package bucket_test

import (
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestCopyFollowsJournal replays what a journal says: after every Drain the copy decides as the table does.
func TestCopyFollowsJournal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, copied, ks := smallTable(t), smallTable(t), keys(3)
		var sets []*bucket.Limits
		n := rapid.IntRange(1, 2).Draw(t, "sets")
		for range n {
			// Table and copy forget free counters at different times, and with them the last check. That matters only to
			// another set of limits with an interval.
			sets = append(sets, genSet(t, func(l bucket.Limit) bool { return n == 1 || l.MinInterval+l.BlockFor == 0 }))
		}
		table.Record(0, bucket.RecordAll, 0)
		copied.Record(0, bucket.RecordAll, 0) // and importing is no change
		h := newLife(genStart.Draw(t, "start"), sets, table)
		h.onward, h.noLeases, h.keys = true, true, ks // a denied check moves a counter's time, and is no change
		for i := range 25 {
			h.step(t)
			if i < 24 && rapid.IntRange(0, 3).Draw(t, "level") > 0 {
				continue
			}
			drained, _, _ := table.Drain(0, nil)
			handKeys(t, table, copied, drained, h.now, h.now, false)
			if len(changedShards(table))+len(changedShards(copied)) > 0 {
				t.Fatalf("there are changes after all were drained")
			}
			for _, key := range ks {
				for _, set := range sets {
					for _, cost := range []int64{1, 3, 9} {
						r := &bucket.Request{Key: key, Limits: set, Cost: cost, Verb: bucket.Read}
						if got, want := copied.Do(h.now, r), table.Do(h.now, r); got != want {
							t.Fatalf("at %d, cost %d: the copy says %+v, the table %+v", h.now, cost, got, want)
						}
					}
				}
			}
		}
	})
}
