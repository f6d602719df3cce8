package snapshot

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestEveryFieldOfALimit sets each field alone, so that one that is new in bucket.Limit and not
// written is noticed.
func TestEveryFieldOfALimit(t *testing.T) {
	fields := reflect.TypeFor[bucket.Limit]()
	for i := range fields.NumField() {
		var l bucket.Limit
		switch f := reflect.ValueOf(&l).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("Europe/Berlin")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Uint8:
			f.SetUint(1)
		default:
			f.SetInt(77)
		}
		text, err := encodeMode.Marshal(l)
		do(t, err)
		var back bucket.Limit
		if err := decodeMode.Unmarshal(text, &back); err != nil || back != l {
			t.Errorf("%s: %+v became %+v, %v", fields.Field(i).Name, l, back, err)
		}
	}
}

// TestEveryAlgorithm writes a set for each algorithm and option and reads it again.
func TestEveryAlgorithm(t *testing.T) {
	var sets [][]bucket.Limit
	for a := bucket.TokenBucket; a <= bucket.SlidingWindow; a++ {
		sets = append(sets, []bucket.Limit{{Algorithm: a, Count: 1 << 62, Period: bucket.MinPeriod, Soft: 3, MinInterval: 5, CountDenied: true, Cost: 9}})
	}
	for u := bucket.Minute; u <= bucket.Year; u++ {
		sets = append(sets, []bucket.Limit{{Algorithm: bucket.FixedWindow, Align: bucket.AlignCalendar, Unit: u, Zone: "Asia/Tokyo"}})
	}
	sets = append(sets,
		[]bucket.Limit{{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Period: bucket.MaxPeriod}},
		[]bucket.Limit{{Algorithm: bucket.TokenBucket, Refill: bucket.RefillInterval, Period: time.Hour, Burst: 3}},
		[]bucket.Limit{{Algorithm: bucket.SlidingWindow, SubWindows: 3600, Period: time.Hour}},
		slices.Repeat([]bucket.Limit{{Algorithm: bucket.SlidingLog, LogEntries: 65536, Period: time.Hour}}, bucket.MaxLimits),
	)
	c := example()
	c.Parts[0].Images = []image{{sets, []byte{1}, 1}}
	r, err := open(encode(t, c), c.want())
	do(t, err)
	got, err := read(r)
	do(t, err)
	same(t, got, c)
	if r.Unknown() != 0 {
		t.Errorf("%d sets are unknown", r.Unknown())
	}
}

// TestUnlimitedIsWrittenBare: what is ignored beside it may be anything, and need not come back.
func TestUnlimitedIsWrittenBare(t *testing.T) {
	odd, err := bucket.NewLimits(bucket.Limit{Unlimited: true, Algorithm: 200, Zone: "\xff", Unit: 99, Count: -1})
	do(t, err)
	n := newNumbering()
	_, text, err := n.number(odd)
	do(t, err)
	if back := parseLimits(text); back == nil || back.Len() != 1 || back.At(0) != (bucket.Limit{Unlimited: true}) {
		t.Errorf("%+v", back)
	}
}

// TestLimitsOfANewerProgram: a set with something new is nil in the images and is counted; the
// rest of the snapshot is there.
func TestLimitsOfANewerProgram(t *testing.T) {
	type fields map[string]any
	limit := func(change fields) fields {
		f := fields{"Algorithm": "fixed_window", "Count": 7, "Period": 1_000_000}
		maps.Copy(f, change)
		return f
	}
	set := func(list ...fields) fields { return fields{"Limits": list} }
	known := cbored(t, set(limit(nil)))
	for _, text := range [][]byte{
		cbored(t, set(limit(fields{"Grace": 3}))),
		cbored(t, set(limit(fields{"Algorithm": "adaptive"}))),
		cbored(t, set(limit(fields{"Algorithm": "token_bucket", "Refill": "hourly"}))),
		cbored(t, set(limit(fields{"Algorithm": "token_bucket", "Period": 1}))),
		cbored(t, set(fields{"Algorithm": "fixed_window", "Align": "calendar", "Unit": "day", "Zone": "Mars/Olympus_Mons"})),
		cbored(t, set(limit(fields{"Count": "seven"}))),
		cbored(t, []int{}), cbored(t, fields{}), cbored(t, nil), nil, known[1:], known[:len(known)-1], cbored(t, set()),
		cbored(t, fields{"Domain": 7, "Limits": []fields{limit(nil)}}),
	} {
		c := example()
		c.Parts = nil
		m := newMachine(nil)
		w, err := newWriter(m, fileName, c.Header, func() {})
		do(t, err)
		do(t, w.Section(example().Parts[0].Section))
		for i, text := range [][]byte{text, known} {
			do(t, w.records.record(kindLimits, i, text))
		}
		w.totals.Images, w.totals.Counters = 1, 2
		do(t, w.records.record(kindImage, imageHead{2, []uint32{2, 1, 0}}, []byte("data")))
		do(t, w.Commit())

		r, err := open(m.names[fileName].data, c.want())
		do(t, err)
		got, err := read(r)
		do(t, err)
		list := []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: 7, Period: time.Millisecond}}
		c.Parts = []part{{example().Parts[0].Section, []image{{[][]bucket.Limit{list, nil, nil}, []byte("data"), 2}}}}
		same(t, got, c)
		if r.Unknown() != 1 {
			t.Errorf("%x: %d sets are unknown, want 1", text, r.Unknown())
		}
	}
}

// TestSetsAreWrittenOnce: images share sets, whether or not they share the pointers.
func TestSetsAreWrittenOnce(t *testing.T) {
	c := example()
	for range 50 {
		im := c.Parts[0].Images[0]
		im.Limits = [][]bucket.Limit{slices.Clone(im.Limits[0]), im.Limits[1]}
		c.Parts[0].Images = append(c.Parts[0].Images, im)
	}
	sets := 0
	for _, r := range records(encode(t, c))[1:] {
		if kind(r[0]) == kindLimits {
			sets++
		}
	}
	if sets != 2 {
		t.Errorf("%d sets were written, want 2", sets)
	}
}

// TestManySets: with more sets than are numbered at a time, every image still gets its own.
func TestManySets(t *testing.T) {
	c := example()
	c.Parts = c.Parts[:1]
	c.Parts[0].Images = nil
	n := int64(0)
	for _, sets := range []int{maxSets / 2, maxSets, 10, 2 * maxSets, 1, 0, 3} {
		im := image{Data: fmt.Append(nil, sets), Counters: 1}
		for range sets {
			n++
			im.Limits = append(im.Limits, []bucket.Limit{{Algorithm: bucket.FixedWindow, Count: n % 40_000, Period: time.Hour}})
		}
		c.Parts[0].Images = append(c.Parts[0].Images, im)
	}
	r, err := open(encode(t, c), c.want())
	do(t, err)
	got, err := read(r)
	do(t, err)
	if !reflect.DeepEqual(got, c) {
		t.Error("sets were mixed up")
	}
	if len(r.sets) > maxSets {
		t.Errorf("%d sets are kept to the end", len(r.sets))
	}
}

func cbored(t *testing.T, v any) []byte {
	t.Helper()
	b, err := encodeMode.Marshal(v)
	do(t, err)
	return b
}
