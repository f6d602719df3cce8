package bucket_test

import (
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// diverged is two copies of a key: the earlier owner's, whose last changes no other node has, and
// that of the later owner, which began without them. All limits are far away.
type diverged struct {
	t              *rapid.T
	limits         *bucket.Limits
	earlier, later *bucket.Table
	now            int64
	ids            []uint64
	ended          map[uint64]bool // by the earlier owner's last changes
	last           int64           // units that these have charged or reserved
}

const mostOfDiverged = 1 << 30

// step does something at an owner. It returns how many units were charged or reserved, at most.
func (h *diverged) step(at *bucket.Table, last bool) int64 {
	units := rapid.Int64Range(1, 9).Draw(h.t, "units")
	what := rapid.SampledFrom([]string{"check", "reserve", "reserve", "wait", "spend", "extend", "settle", "cancel"}).Draw(h.t, "what")
	switch what {
	case "check":
		at.Do(h.now, &bucket.Request{Limits: h.limits, Cost: units})
		return units
	case "wait":
		h.now += rapid.Int64Range(0, int64(900*time.Millisecond)).Draw(h.t, "wait")
		return 0
	case "reserve":
		h.ids = append(h.ids, uint64(len(h.ids)+1))
		h.about(at, bucket.Reserve, h.ids[len(h.ids)-1], units, rapid.IntRange(0, 2).Draw(h.t, "release") == 0)
		return units
	}
	if len(h.ids) == 0 {
		return 0
	}
	id := rapid.SampledFrom(h.ids).Draw(h.t, "whose")
	verb := map[string]bucket.Verb{"spend": bucket.Spend, "extend": bucket.Extend, "settle": bucket.Settle, "cancel": bucket.Cancel}[what]
	if verb == bucket.Spend {
		units = min(units, 2)
	}
	h.about(at, verb, id, units, false)
	if last && (verb == bucket.Settle || verb == bucket.Cancel) {
		h.ended[id] = true
	}
	return units
}

// about is aboutReservation, with a Once for the verbs that have one.
func (h *diverged) about(at *bucket.Table, verb bucket.Verb, id uint64, units int64, release bool) bucket.Reserved {
	x := &bucket.Reservation{ID: id, Least: 1, MaxOpen: 9999, For: 2 * time.Second, Release: release}
	r := &bucket.Request{Limits: h.limits, Cost: units, Verb: verb, Reservation: x}
	if verb == bucket.Cancel {
		r.Limits = nil
	}
	at.Do(h.now, r)
	return x.Reserved
}

// clone returns a copy of the table.
func (h *diverged) clone(of *bucket.Table) *bucket.Table {
	to := largeTable(h.t)
	hand(h.t, of, to, h.now, h.now, false)
	return to
}

// counts returns how many units of the table count once all deadlines have passed, and how many
// are charged now.
func (h *diverged) counts(of *bucket.Table) (then, charged int64) {
	table, r := h.clone(of), &bucket.Request{Limits: h.limits}
	charged = mostOfDiverged - left(table, h.now, r)
	if _, units := table.Granted(h.now, bucket.Key{}); units > 0 {
		charged -= units
	}
	return mostOfDiverged - left(table, h.now+int64(3*time.Second), r), charged
}

// TestMergedWithAnEarlierOwner: the state of an earlier owner is merged with that of the later one,
// whichever node has which, at once or in pieces.
//
//   - Nothing that the later owner counts is lost, nor what the earlier one has charged.
//   - Nothing counts twice: but for the last changes of the earlier owner, no more counts than at
//     the later one. So what is reserved counts as the later owner has settled or spent it.
//   - Reservations have the units and the deadline that the later owner has given them, unless the
//     last changes have ended them.
//   - A second merge changes nothing.
func TestMergedWithAnEarlierOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &diverged{
			t: t, limits: mustLimits(t, per(bucket.FixedWindow, mostOfDiverged, time.Hour)),
			earlier: largeTable(t), now: day, ended: map[uint64]bool{},
		}
		for range rapid.IntRange(0, 12).Draw(t, "steps before") {
			h.step(h.earlier, false)
		}
		h.later = h.clone(h.earlier)
		for range rapid.IntRange(0, 3).Draw(t, "last steps of the earlier owner") {
			h.last += h.step(h.earlier, true)
		}
		_, charged := h.counts(h.earlier)
		h.earlier.Seal(0)
		for range rapid.IntRange(0, 12).Draw(t, "steps of the later owner") {
			h.step(h.later, false)
		}
		h.now += rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "until the merge")
		if len(h.ended) > 0 { // else what has ended could depend on who first looks
			left(h.later, h.now, &bucket.Request{Limits: h.limits})
		}
		alone := h.clone(h.later)
		most, _ := h.counts(h.later)
		known := h.clone(h.later)
		for id := range h.ended { // which the later owner has not yet heard of
			h.about(known, bucket.Settle, id, 0, false)
		}
		least, _ := h.counts(known)

		merge, to := h.merging()
		merge()
		got, _ := h.counts(to)
		if least = max(least, charged); got < least || got > most+h.last {
			t.Fatalf("%d count, want %d to %d", got, least, most+h.last)
		}
		merge()
		if again, _ := h.counts(to); again != got {
			t.Fatalf("%d count after a second merge, %d before", again, got)
		}
		to.Open(0, 1)
		for _, id := range h.ids {
			x, want := h.about(to, bucket.Settle, id, 0, false), h.about(alone, bucket.Settle, id, 0, false)
			if !h.ended[id] && !want.Unknown && x != want {
				t.Fatalf("reservation %d is settled: %+v, want %+v", id, x, want)
			}
		}
	})
}

// merging draws how the two are merged, and returns that and the table that gets the merged state.
func (h *diverged) merging() (merge func(), to *bucket.Table) {
	to = h.later
	if rapid.Bool().Draw(h.t, "it is fetched") { // by the earlier owner, which is to be the next one
		to = largeTable(h.t)
		to.Seal(0)
		hand(h.t, h.later, to, h.now, h.now, false)
		to.Lapse(h.now, 0)
	}
	most := rapid.SampledFrom([]int{1, 3, 1000}).Draw(h.t, "keys of a portion")
	return func() { mergePortions(h.t, h.earlier, to, h.now, most) }, to
}

// mergePortions merges what from has into to, in portions of so many keys.
func mergePortions(t failer, from, to *bucket.Table, now int64, most int) {
	t.Helper()
	if err := to.Merge(now, 0, portions(from, now, most)); err != nil {
		t.Fatalf("merging: %v", err)
	}
}

// portions exports what the table has in portions of so many keys.
func portions(from *bucket.Table, now int64, most int) (list []bucket.Portion) {
	for keys := from.Keys(0, nil); len(keys) > 0; {
		n, im := min(most, len(keys)), new(bucket.Image)
		from.Export(now, 0, keys[:n], im)
		list = append(list, bucket.Portion{At: now, Image: im, Data: im.Data, Counters: im.Counters})
		keys = keys[n:]
	}
	return list
}

// TestMergedStories: the smallest schedules of what an earlier owner's state, which is merged into the later owner's, says of
// reservations of 6 units for 2 s. Before the merge the earlier one has charged more, so that its counter is the one that counts.
func TestMergedStories(t *testing.T) {
	type call struct {
		verb  bucket.Verb
		units int64
	}
	const settle, spend, extend, reserve = bucket.Settle, bucket.Spend, bucket.Extend, bucket.Reserve
	for _, c := range []struct {
		name           string
		ids            int // reservations
		earlier, later []call
		wait           time.Duration
		// charged and held are how many units are after the merge, beside the 100 that the earlier owner has charged.
		charged, held int64
	}{
		{"settled", 1, nil, []call{{settle, 2}}, 0, 2, 0},
		{"settled, and its deadline passes", 1, nil, []call{{settle, 2}}, 3 * time.Second, 2, 0},
		{"settled for nothing", 1, nil, []call{{settle, 0}}, 3 * time.Second, 0, 0},
		{"settled for more", 1, nil, []call{{settle, 9}}, 3 * time.Second, 9, 0},
		{"settled by the earlier owner", 1, []call{{settle, 2}}, nil, 3 * time.Second, 2, 0},
		{"settled by both", 1, []call{{settle, 2}}, []call{{settle, 2}}, 0, 2, 0},
		{"settled by both, differently", 1, []call{{settle, 2}}, []call{{settle, 5}}, 0, 5, 0},
		{"spent by the earlier owner", 1, []call{{spend, 1}}, nil, 0, 1, 6},
		{"spent in part", 1, nil, []call{{spend, 2}}, 0, 2, 4},
		{"spent in part, and its deadline passes", 1, nil, []call{{spend, 2}}, 3 * time.Second, 6, 0},
		{"spent and settled", 1, nil, []call{{spend, 2}, {settle, 1}}, 0, 1, 0},
		{"extended", 1, nil, []call{{extend, 3}}, 1500 * time.Millisecond, 0, 9},
		{"extended by fewer units, as if they were spent", 1, nil, []call{{extend, -4}}, 0, 4, 2},
		{"neither", 1, nil, nil, 0, 0, 6},
		{"its deadline passes", 1, nil, nil, 3 * time.Second, 6, 0},
		{"many, in portions", 70, nil, []call{{settle, 1}}, 3 * time.Second, 70, 0},
		{"many deadlines pass", 70, nil, nil, 3 * time.Second, 420, 0},
		{"many others of the earlier owner", 70, []call{{reserve, 4}}, nil, 0, 0, 700},
		{"many others of it, and their deadlines pass", 70, []call{{reserve, 4}}, nil, 3 * time.Second, 700, 0},
	} {
		for _, algorithm := range []bucket.Algorithm{bucket.FixedWindow, bucket.TokenBucket, bucket.SlidingLog, bucket.SlidingCounter} {
			for _, most := range []int{1, 7, 1000} {
				limits := mustLimits(t, per(algorithm, 10_000, 10_000*time.Hour))
				earlier, later, now := largeTable(t), largeTable(t), day
				do := func(at *bucket.Table, verb bucket.Verb, units int64) {
					for id := range uint64(c.ids) {
						if units == 4 { // another reservation
							id += 1000
						}
						aboutReservation(at, now, limits, verb, id+1, units, false)
					}
				}
				do(earlier, reserve, 6)
				hand(t, earlier, later, now, now, false)
				earlier.Do(now, &bucket.Request{Limits: limits, Cost: 100})
				now += int64(time.Second)
				for _, x := range c.earlier {
					do(earlier, x.verb, x.units)
				}
				earlier.Seal(0)
				for _, x := range c.later {
					do(later, x.verb, x.units)
				}
				now += int64(c.wait)
				for range 2 { // the second time changes nothing
					mergePortions(t, earlier, later, now, most)
					count := 10_000 - left(later, now, &bucket.Request{Limits: limits})
					if _, held := later.Granted(now, bucket.Key{}); count-held != 100+c.charged || held != c.held {
						t.Errorf("%s, %s, %d keys of a portion: %d charged and %d held, want %d and %d",
							c.name, algorithm, most, count-held, held, 100+c.charged, c.held)
					}
				}
			}
		}
	}
}

// TestMergedAfterASweep: outcomes that are forgotten between the listing of the earlier owner's
// keys and their export do not keep the grants after them from being settled.
func TestMergedAfterASweep(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 10_000, time.Hour))
	earlier, later, now := largeTable(t), largeTable(t), day
	const n, ended = 20, 3
	for id := range uint64(n) {
		aboutReservation(earlier, now, limits, bucket.Reserve, id+1, 6, false)
		if id >= ended {
			x := &bucket.Reservation{ID: id + 1, For: time.Hour}
			earlier.Do(now, &bucket.Request{Verb: bucket.Extend, Reservation: x})
		} else {
			aboutReservation(earlier, now, limits, bucket.Settle, id+1, 0, false)
		}
	}
	hand(t, earlier, later, now, now, false)
	earlier.Do(now, &bucket.Request{Limits: limits, Cost: 1000})
	earlier.Seal(0)
	for id := uint64(ended); id < n; id++ {
		aboutReservation(later, now, limits, bucket.Settle, id+1, 6, false)
	}
	now += int64(20 * time.Minute)
	keys, im := earlier.Keys(0, nil), new(bucket.Image)
	if swept := earlier.Sweep(now, 0); swept != ended {
		t.Fatalf("%d are swept, want %d", swept, ended)
	}
	earlier.Export(now, 0, keys, im)
	list := []bucket.Portion{{At: now, Image: im, Data: im.Data, Counters: im.Counters}}
	if err := later.Merge(now, 0, list); err != nil {
		t.Fatal(err)
	}
	want := int64(10_000 - 1000 - (n-ended)*6)
	if got := left(later, now, &bucket.Request{Limits: limits}); got != want {
		t.Errorf("%d left, want %d", got, want)
	}
}

// TestMergedSettledBefore: what the later owner has settled in an earlier window counts there.
func TestMergedSettledBefore(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 100, time.Minute))
	for _, ago := range []time.Duration{0, 5 * time.Minute} {
		for _, deadline := range []time.Duration{time.Minute, time.Hour} {
			earlier, later, now := largeTable(t), largeTable(t), day
			x := &bucket.Reservation{ID: 1, Least: 1, MaxOpen: 9, For: deadline}
			earlier.Do(now, &bucket.Request{Limits: limits, Cost: 50, Verb: bucket.Reserve, Reservation: x})
			hand(t, earlier, later, now, now, false)
			earlier.Seal(0)
			aboutReservation(later, now, limits, bucket.Settle, 1, 50, false)
			now += int64(ago)
			r := &bucket.Request{Limits: limits}
			want := left(later, now, r)
			mergePortions(t, earlier, later, now, 1000)
			if got := left(later, now, r); got != want {
				t.Errorf("settled %v ago, reserved for %v: %d left, want %d", ago, deadline, got, want)
			}
		}
	}
}

// TestMergedAfterGiveBack: an owner that has lost quorum, and gives back a charge, does not end
// reservations, which the later owner has settled.
func TestMergedAfterGiveBack(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 100, time.Hour))
	earlier, later, now := largeTable(t), largeTable(t), day
	aboutReservation(earlier, now, limits, bucket.Reserve, 1, 6, false)
	hand(t, earlier, later, now, now, false)
	now += int64(time.Second)
	aboutReservation(later, now, limits, bucket.Settle, 1, 1, false)
	var rc bucket.Receipt
	if _, charged := earlier.DoHeld(now, &bucket.Request{Limits: limits, Cost: 50}, &rc); !charged {
		t.Fatal("not charged")
	}
	now += int64(2 * time.Second) // past the deadline
	earlier.GiveBack(now, &rc)
	earlier.Seal(0)
	mergePortions(t, earlier, later, now, 1000)
	if got := left(later, now, &bucket.Request{Limits: limits}); got != 99 {
		t.Errorf("%d left, want 99", got)
	}
}

// TestExportedWhileSettled: an image has each unit that is settled while it is exported once: as
// reserved or as charged.
func TestExportedWhileSettled(t *testing.T) {
	const n = 20_000
	limits := mustLimits(t, per(bucket.FixedWindow, 2*n, time.Hour))
	table, restored := largeTable(t), largeTable(t)
	for id := range uint64(n) {
		r := &bucket.Reservation{ID: id + 1, Least: 1, MaxOpen: n, For: time.Minute}
		table.Do(day, &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Reserve, Reservation: r})
	}
	keys := table.Keys(0, nil)
	var settling sync.WaitGroup
	settling.Go(func() {
		for id := range uint64(n) {
			table.Do(day, &bucket.Request{Limits: limits, Cost: 1, Verb: bucket.Settle, Reservation: &bucket.Reservation{ID: id + 1}})
		}
	})
	var im bucket.Image
	table.Export(day, 0, keys, &im)
	settling.Wait()
	if err := restored.Import(day, 0, &im, im.Data, im.Counters, false); err != nil {
		t.Fatal(err)
	}
	if got := left(restored, day, &bucket.Request{Limits: limits}); got != n {
		t.Errorf("%d left, want %d", got, n)
	}
}
