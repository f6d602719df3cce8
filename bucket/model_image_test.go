package bucket_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// genAny draws a limit of any algorithm and alignment, of few units, with any options.
func genAny(t *rapid.T) bucket.Limit {
	return genAnyOf(t, rapid.SampledFrom(algorithms).Draw(t, "algorithm").algorithm)
}

func genAnyOf(t *rapid.T, algorithm bucket.Algorithm) bucket.Limit {
	l := genLimit(algorithm, true).Draw(t, "limit")
	genOptions(t, &l)
	stepped := l.Algorithm == bucket.FixedWindow || l.Refill == bucket.RefillInterval
	if stepped && rapid.IntRange(0, 2).Draw(t, "calendar") == 0 {
		l.Align, l.Period = bucket.AlignCalendar, time.Hour // a measure for steps; the unit counts
		l.Unit = rapid.SampledFrom([]bucket.Unit{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month}).Draw(t, "unit")
		l.Zone = rapid.SampledFrom([]string{"", "Europe/Berlin", "Australia/Lord_Howe"}).Draw(t, "zone")
	}
	if l.Algorithm == bucket.SlidingLog {
		l.LogEntries = rapid.SampledFrom([]int32{0, 1, 2, 5}).Draw(t, "log entries")
		l.CountDenied = rapid.Bool().Draw(t, "count denied")
	}
	return l
}

func aligned(l bucket.Limit) bool {
	switch l.Algorithm {
	case bucket.SlidingCounter, bucket.SlidingWindow:
		return true
	}
	return (l.Algorithm == bucket.FixedWindow || l.Refill == bucket.RefillInterval) && l.Align != bucket.AlignFirstHit
}

// genSet draws one to three limits that keep passes.
func genSet(t *rapid.T, keep func(bucket.Limit) bool) *bucket.Limits {
	var list []bucket.Limit
	for range rapid.IntRange(1, 3).Draw(t, "limits") {
		list = append(list, rapid.Custom(genAny).Filter(keep).Draw(t, "any limit"))
	}
	return mustLimits(t, list...)
}

func anyLimit(bucket.Limit) bool { return true }

// life plays requests of several sets of limits on one key of one or more tables, each with a clock of its own.
type life struct {
	sets   []*bucket.Limits
	tables []*bucket.Table
	// ahead is by how much the clock of each table is ahead of now.
	ahead []int64
	// keys are those that are asked for, lifeKey only if empty.
	keys []bucket.Key
	now  int64
	last bucket.Decision
	held [][]*bucket.Receipt
	// granted are the grants of each table.
	granted [][]bucket.Grant
	// onward keeps now from stepping back.
	onward bool
	// noLeases leaves leases out.
	noLeases bool
}

// lifeKey is the key that lax asks for.
var lifeKey bucket.Key

func newLife(now int64, sets []*bucket.Limits, tables ...*bucket.Table) *life {
	return &life{sets: sets, tables: tables, ahead: make([]int64, len(tables)), now: now, held: make([][]*bucket.Receipt, len(tables)), granted: make([][]bucket.Grant, len(tables))}
}

// move lets time pass, now and then a little of it backwards.
func (h *life) move(t *rapid.T) {
	step := genStep(t, h.now, h.sets[0].At(int(h.last.Index)%h.sets[0].Len()), h.last)
	if !h.onward && rapid.IntRange(0, 7).Draw(t, "back") == 0 {
		step = -step / 2
	}
	h.now += step
}

// step does one random thing, the same in all tables, and fails t unless all decide alike.
func (h *life) step(t *rapid.T) {
	h.move(t)
	if rapid.IntRange(0, 7).Draw(t, "give back") == 0 && len(h.held[0]) > 0 {
		for i, table := range h.tables {
			table.GiveBack(h.now+h.ahead[i], h.held[i][0])
			h.held[i] = h.held[i][1:]
		}
		return
	}
	if !h.noLeases && rapid.IntRange(0, 4).Draw(t, "grant") == 0 {
		h.grant(t)
		return
	}
	if n := len(h.granted[0]); n > 0 && rapid.IntRange(0, 4).Draw(t, "return") == 0 {
		h.giveBackGranted(t, rapid.IntRange(0, n-1).Draw(t, "which"))
		return
	}
	r := &bucket.Request{
		Key: lifeKey, Limits: rapid.SampledFrom(h.sets).Draw(t, "set"), Cost: rapid.Int64Range(0, 5).Draw(t, "cost"),
		Verb: rapid.SampledFrom([]bucket.Verb{
			bucket.Check, bucket.Check, bucket.Check, bucket.Check, bucket.Check, bucket.Check,
			bucket.Read, bucket.Charge, bucket.Refund, bucket.Reset,
		}).Draw(t, "verb"),
	}
	if len(h.keys) > 0 {
		r.Key = rapid.SampledFrom(h.keys).Draw(t, "key")
	}
	genAsk(t, r)
	var first bucket.Decision
	for i, table := range h.tables {
		rc := new(bucket.Receipt)
		d, _, _ := table.Try(h.now+h.ahead[i], r, rc)
		if rc.Charged() && !d.Allowed {
			t.Fatalf("charged, and %+v", d)
		}
		h.held[i] = append(h.held[i], rc)
		if i == 0 {
			first = d
			continue
		}
		if d != first {
			t.Fatalf("at %d, %s of %d: %+v, the original: %+v", h.now, r.Verb, r.Cost, d, first)
		}
	}
	h.last = first
}

// grant asks all tables for the same lease request, and fails t unless all grant the same. Limits with unit costs are left out: other limits
// start with the units that they have spent, but hold what they have granted by the cost of checks.
func (h *life) grant(t *rapid.T) {
	for _, set := range h.sets {
		for i := range set.Len() {
			if set.At(i).Cost > 1 {
				return
			}
		}
	}
	set := rapid.SampledFrom(h.sets).Draw(t, "set")
	l := genLeaseRequest(t, set)
	l.Key = lifeKey
	var first bucket.Grant
	for i, table := range h.tables {
		g, _, _ := table.Grant(h.now+h.ahead[i], l)
		if g.Units > 0 {
			h.granted[i] = append(h.granted[i], g)
		}
		if g.ID = 0; i == 0 {
			first = g
		} else if g != first {
			t.Fatalf("at %d, lease request of %d: %+v, the original: %+v", h.now, l.Want, g, first)
		}
	}
}

// giveBackGranted returns some of grant i to all tables, and fails t unless the same comes back.
func (h *life) giveBackGranted(t *rapid.T, i int) {
	unspent := rapid.Int64Range(0, h.granted[0][i].Units).Draw(t, "unspent")
	var first int64
	for k, table := range h.tables {
		back, _, _ := table.Return(h.now+h.ahead[k], lifeKey, h.granted[k][i].ID, unspent)
		if k == 0 {
			first = back
		} else if back != first {
			t.Fatalf("at %d, of %+v returning %d gives %d, the original: %d", h.now, h.granted[k][i], unspent, back, first)
		}
	}
}

// genLeaseRequest draws a lease request that l can grant, if there is one.
func genLeaseRequest(t *rapid.T, l *bucket.Limits) *bucket.LeaseRequest {
	leaseRequest := &bucket.LeaseRequest{
		Limits: l, Want: rapid.Int64Range(1, 8).Draw(t, "want"), Part: rapid.Int64Range(1, 4).Draw(t, "part"), Whole: 4,
		Reserve: rapid.Int64Range(-1, 1).Draw(t, "reserve"), For: time.Second,
		Across: rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Hour}).Draw(t, "across"),
	}
	if longest := l.LongestFarLease(); longest > 0 {
		leaseRequest.For = time.Duration(rapid.Int64Range(int64(bucket.LeastLease), int64(longest)).Draw(t, "for"))
	}
	return leaseRequest
}

// hand exports all that is in from at now and imports it into to at there. Both have one shard.
func hand(t failer, from, to *bucket.Table, now, there int64, merge bool) {
	t.Helper()
	handKeys(t, from, to, from.Keys(0, nil), now, there, merge)
}

// handKeys is hand for some of the keys.
func handKeys(t failer, from, to *bucket.Table, keys []bucket.KeyAt, now, there int64, merge bool) {
	t.Helper()
	var im bucket.Image
	from.Export(now, 0, keys, &im)
	if err := to.Import(there, 0, &im, im.Data, im.Counters, merge); err != nil {
		t.Fatalf("importing what was exported: %v", err)
	}
}

var genAhead = rapid.OneOf(
	rapid.Int64Range(-1000, 1000), rapid.Int64Range(-int64(time.Hour), int64(time.Hour)),
	rapid.SampledFrom([]int64{0, 1, -1, int64(10 * year), -int64(10 * year)}),
)

// TestImportedDecidesAlike: after an export and an import under one clock, the copy decides like the original, whatever limits,
// changes of limits and give-backs came before. What is not aligned does so on any clock.
func TestImportedDecidesAlike(t *testing.T) {
	alike := func(ahead *rapid.Generator[int64], keep func(bucket.Limit) bool) func(*testing.T) {
		return rapid.MakeCheck(func(t *rapid.T) {
			var sets []*bucket.Limits
			for range rapid.IntRange(1, 3).Draw(t, "sets") {
				sets = append(sets, genSet(t, keep))
			}
			h := newLife(genStart.Draw(t, "start"), sets, smallTable(t))
			for range rapid.IntRange(1, 20).Draw(t, "before") {
				h.step(t)
			}
			h.move(t)
			by, original, granted, copied := ahead.Draw(t, "ahead"), h.tables[0], h.granted[0], smallTable(t)
			hand(t, original, copied, h.now, h.now+by, false)
			h = newLife(h.now, sets, original, copied)
			h.ahead[1], h.granted = by, [][]bucket.Grant{granted, slices.Clone(granted)}
			for range 15 {
				h.step(t)
			}
		})
	}
	t.Run("one clock", alike(rapid.Just(int64(0)), anyLimit))
	t.Run("another clock", alike(genAhead, func(l bucket.Limit) bool {
		// Longer ones end beyond what an int64 can say, earlier on one clock than on the other. Logs that are too short
		// merge entries in slots of the clock.
		return !aligned(l) && l.LogError() == 0 && l.Period <= 30*24*time.Hour
	}))
}

// TestImportedCountsAsLong: whatever the importer's clock shows, what has been spent counts for as long as it would have on the
// exporter's.
func TestImportedCountsAsLong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := genSet(t, func(l bucket.Limit) bool { return l.Period <= 30*24*time.Hour && l.Refill != bucket.RefillInterval })
		from, now := smallTable(t), genStart.Draw(t, "start")
		for range rapid.IntRange(1, 12).Draw(t, "charges") {
			now += genStep(t, now, set.At(0), bucket.Decision{})
			from.Do(now, &bucket.Request{Limits: set, Cost: rapid.Int64Range(1, 3).Draw(t, "cost"), Verb: bucket.Charge})
		}
		now += genStep(t, now, set.At(0), bucket.Decision{})
		ahead := genAhead.Draw(t, "ahead")
		to := smallTable(t)
		hand(t, from, to, now, now+ahead, false)
		for range 8 {
			for _, cost := range []int64{1, 2, 5, 12} {
				r := &bucket.Request{Limits: set, Cost: cost, Verb: bucket.Read}
				if d, want := to.Do(now+ahead, r), from.Do(now, r); d != want {
					t.Fatalf("at %d, %d ahead, cost %d: %+v, the original: %+v", now, ahead, cost, d, want)
				}
			}
			now += genStep(t, now, set.At(0), bucket.Decision{})
		}
	})
}

// TestImportedLate: a copy that is imported some time after the export is never more permissive, and one that is
// imported as of the time of the export has aged as the original has.
func TestImportedLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sets := []*bucket.Limits{genSet(t, anyLimit), genSet(t, anyLimit)}
		h := newLife(genStart.Draw(t, "start"), sets, smallTable(t))
		for range rapid.IntRange(1, 15).Draw(t, "before") {
			h.step(t)
		}
		exported := h.now
		h.onward = true
		h.move(t)
		late, aged := smallTable(t), smallTable(t)
		hand(t, h.tables[0], late, exported, h.now, false)
		hand(t, h.tables[0], aged, exported, exported, false)
		for range 6 {
			for _, set := range sets {
				lax(t, h.now, set, late, h.tables[0], "imported late")
				lax(t, h.now, set, aged, h.tables[0], "imported as of then")
				lax(t, h.now, set, h.tables[0], aged, "than as of then")
			}
			h.move(t)
		}
	})
}
