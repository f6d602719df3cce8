package bucket_test

import (
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// replica is a table, its copy, and how the copy is kept level.
type replica struct {
	table, copied *bucket.Table
	sets          []*bucket.Limits
	keys          []bucket.Key
	now           int64
	held          []*bucket.Receipt
	seq           uint64
}

// change does one random thing and checks that it is counted if the key's answer has changed.
func (p *replica) change(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "give back") == 0 && len(p.held) > 0 {
		i := rapid.IntRange(0, len(p.held)-1).Draw(t, "which")
		p.table.GiveBack(p.now, p.held[i])
		p.held = slices.Delete(p.held, i, i+1)
		return
	}
	r := &bucket.Request{
		Key: rapid.SampledFrom(p.keys).Draw(t, "key"), Limits: rapid.SampledFrom(p.sets).Draw(t, "set"),
		Cost: rapid.Int64Range(0, 4).Draw(t, "cost"),
		Verb: rapid.SampledFrom([]bucket.Verb{
			bucket.Check, bucket.Check, bucket.Check, bucket.Check, bucket.Read, bucket.Charge, bucket.Refund, bucket.Reset,
		}).Draw(t, "verb"),
	}
	genAsk(t, r)
	rc := new(bucket.Receipt)
	d, seq, v := p.table.Try(p.now, r, rc)
	if v != bucket.Decided || seq < p.seq || rc.Charged() && (seq == p.seq || !d.Allowed) {
		t.Fatalf("%s: %+v, change %d after %d, verdict %d", r.Verb, d, seq, p.seq, v)
	}
	p.seq = seq
	if rc.Charged() {
		p.held = append(p.held, rc)
	}
}

// level brings the copy level and compares it with the table.
func (p *replica) level(t *rapid.T) {
	keys, _, _ := p.table.Drain(0, nil)
	var im bucket.Image
	p.table.Export(p.now, 0, keys, &im)
	if err := p.copied.Import(p.now, 0, &im, im.Data, im.Counters, false); err != nil {
		t.Fatalf("import: %v", err)
	}
	if len(changedShards(p.table))+len(changedShards(p.copied)) > 0 {
		t.Fatalf("there are changes after all were drained")
	}
	for _, key := range p.keys {
		for _, set := range p.sets {
			for _, cost := range []int64{1, 3, 9} {
				r := &bucket.Request{Key: key, Limits: set, Cost: cost, Verb: bucket.Read}
				if got, want := p.copied.Do(p.now, r), p.table.Do(p.now, r); got != want {
					t.Fatalf("at %d, cost %d: the copy says %+v, the table %+v", p.now, cost, got, want)
				}
			}
		}
	}
}

// TestCopyFollowsJournal replays what a journal says: after every Drain the copy decides as the table does.
func TestCopyFollowsJournal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &replica{table: smallTable(t), copied: smallTable(t), keys: keys(3), now: genStart.Draw(t, "start")}
		n := rapid.IntRange(1, 2).Draw(t, "sets")
		for range n {
			// Table and copy forget free counters at different times, and with them the last check. That matters only to
			// another set of limits with an interval.
			p.sets = append(p.sets, genSet(t, func(l bucket.Limit) bool { return n == 1 || l.MinInterval+l.BlockFor == 0 }))
		}
		p.table.Record(0, bucket.RecordAll, 0)
		p.copied.Record(0, bucket.RecordAll, 0) // and importing is no change
		for range 25 {
			// Never back: a denied check moves a counter's time, and is no change.
			p.now += genStep(t, p.now, p.sets[0].At(0), bucket.Decision{})
			p.change(t)
			if rapid.IntRange(0, 3).Draw(t, "level") == 0 {
				p.level(t)
			}
		}
		p.level(t)
	})
}
