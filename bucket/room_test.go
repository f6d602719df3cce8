package bucket

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTooLargeIsLeftOutAlone: a counter that no message takes seems to be missing, and its neighbours are exported.
func TestTooLargeIsLeftOutAlone(t *testing.T) {
	limits := mustLimits(t, Limit{Algorithm: SlidingLog, Count: 1 << 40, Period: time.Hour, LogEntries: 4096})
	from, to := mustTable(t, Config{Shards: 1}), mustTable(t, Config{Shards: 1})
	keys := []Key{{Lo: 1}, {Lo: 2}, {Lo: 3}}
	for now := range int64(4096) {
		from.Do(now+1, &Request{Key: keys[1], Limits: limits, Cost: 1})
	}
	for _, k := range []Key{keys[0], keys[2]} {
		from.Do(5000, &Request{Key: k, Limits: limits, Cost: 1})
	}
	to.Do(5000, &Request{Key: keys[1], Limits: limits, Cost: 1}) // an older copy
	var im Image
	if n, large := from.ExportSome(5000, 0, At(keys...), &im, ImageBounds{Counter: 4096}); n != 3 || large != 1 {
		t.Fatalf("%d exported, %d of them too large", n, large)
	}
	if err := to.Import(5000, 0, &im, im.Data, im.Counters, false); err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if has := to.Has(k); has != (i != 1) {
			t.Errorf("counter %d is there: %v", i, has)
		}
	}
}

// TestCounterIsBounded: whatever limits a key is asked with, one after the other, and merged from another node, it keeps few former
// sets of them and no more entries than one key may.
func TestCounterIsBounded(t *testing.T) {
	const many = 1000 // longer than the longest sub-window, and than small logs
	rapid.Check(t, func(t *rapid.T) {
		tables := []*Table{mustTable(t, Config{Shards: 1}), mustTable(t, Config{Shards: 1})}
		most, now := rapid.SampledFrom([]int32{1024, MaxLogEntries}).Draw(t, "most"), int64(1)
		r := &Request{}
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			var list []Limit
			for range rapid.IntRange(1, 4).Draw(t, "limits") {
				l := Limit{Count: 1 << 40, Period: time.Duration(rapid.IntRange(1, 9).Draw(t, "hours")) * time.Hour}
				if rapid.Bool().Draw(t, "log") {
					l.Algorithm, l.LogEntries = SlidingLog, rapid.Int32Range(1, most).Draw(t, "entries")
				} else {
					l.Algorithm, l.SubWindows = SlidingWindow, rapid.Int32Range(2, 1000).Draw(t, "sub-windows")
				}
				list = append(list, l)
			}
			var err error
			if r.Limits, err = NewLimits(list...); err != nil {
				continue
			}
			table := tables[rapid.IntRange(0, 1).Draw(t, "table")]
			r.Verb = rapid.SampledFrom([]Verb{Check, Charge}).Draw(t, "verb")
			r.Cost = rapid.SampledFrom([]int64{1, 1 << 50}).Draw(t, "cost")
			for range rapid.SampledFrom([]int{1, many}).Draw(t, "times") {
				now += int64(time.Hour) / 3000
				table.Do(now, r)
			}
			if rapid.IntRange(0, 3).Draw(t, "merge") == 0 {
				hand(t, tables[0], tables[1], now, 0, tables[0].Keys(0, nil), true)
			}
			for _, table := range tables {
				checkBounds(t, table)
			}
		}
	})
}

func checkBounds(t *rapid.T, table *Table) {
	c := table.counterOf(Key{})
	if c == nil {
		return
	}
	entries, bound, sets := 0, fewEntries, map[*Limits]bool{}
	for i := range c.limits.plans {
		entries += int(c.at(i).span().n)
	}
	if c.limits.entries > fewEntries {
		bound = MaxKeyEntries
	}
	for _, x := range c.shadows() {
		entries += int(x.state.span().n)
		sets[x.limits] = true
		if x.limits.entries > fewEntries {
			bound = MaxKeyEntries
		}
	}
	if bound += len(c.shadows()); entries > bound { // each former limit keeps one at least
		t.Fatalf("%d entries, want at most %d", entries, bound)
	}
	if len(sets) > maxFormer || len(c.shadows()) > maxShadows {
		t.Fatalf("%d shadows of %d sets", len(c.shadows()), len(sets))
	}
	if got, want := table.Stats().Bytes-table.Stats().SetBytes, c.bytes(); got != want {
		t.Fatalf("%d bytes accounted, the counter has %d", got, want)
	}
}
