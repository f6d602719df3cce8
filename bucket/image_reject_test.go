package bucket_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestImportRejects: what no Export has made is rejected with what is wrong, and leaves no counter behind.
func TestImportRejects(t *testing.T) {
	limits := mustLimits(t, per(bucket.TokenBucket, 10, time.Hour), per(bucket.SlidingLog, 10, time.Hour), per(bucket.SlidingWindow, 10, time.Hour))
	from, r := smallTable(t), &bucket.Request{Limits: limits, Cost: 1}
	from.Do(day, r)
	from.Do(day+int64(time.Minute), r)
	good := exported(from, day+int64(time.Hour)/2, 0)
	rejected := func(what string, im *bucket.Image, data []byte, n int, reason string) {
		t.Helper()
		to := smallTable(t)
		err := to.Import(day+int64(time.Hour)/2, 0, im, data, n, false)
		var wrong *bucket.ImportError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: error %v, want one that says: %s", what, err, reason)
		}
		if n == 1 && len(data) < len(good.Data) && to.Stats().Entries != 0 {
			t.Errorf("%s: a counter was imported", what)
		}
	}
	for n := range good.Data {
		rejected("cut short", good, good.Data[:n], 1, "it ")
	}
	rejected("longer", good, append(slices.Clone(good.Data), 0), 1, "follow the last counter")
	rejected("more", good, good.Data, 2, "too early")
	rejected("less", good, good.Data, 0, "follow the last counter")
	rejected("no limits", &bucket.Image{}, good.Data, 1, "limits are not in the image")
	other := *good
	other.Limits = []*bucket.Limits{mustLimits(t, per(bucket.TokenBucket, 10, time.Hour))}
	rejected("fewer limits", &other, good.Data, 1, "longer than its limits need")
	other.Limits = []*bucket.Limits{mustLimits(t, per(bucket.TokenBucket, 10, time.Hour), per(bucket.SlidingLog, 10, time.Minute/2), per(bucket.SlidingWindow, 10, time.Hour))}
	rejected("a shorter log", &other, good.Data, 1, "has expired")
	to := mustTable(t, bucket.Config{Shards: 2})
	var wrong *bucket.ImportError
	if err := to.Import(day, 1, good, good.Data, 1, false); !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, "another shard") {
		t.Errorf("another shard: %v", err)
	}
	if err := to.Import(day, 0, good, nil, math.MinInt, false); err != nil {
		t.Errorf("fewer than no counters: %v", err)
	}
}

// written returns the image of one counter of zero key with these numbers behind its length.
func written(numbers ...uint64) []byte {
	var body []byte
	for _, n := range numbers {
		body = binary.AppendUvarint(body, n)
	}
	data := append(make([]byte, 16), 1) // the first limits
	return append(binary.AppendUvarint(data, uint64(len(body))), body...)
}

// TestImportChecksStates: a state that its limit cannot have is rejected. The numbers are those of image.go: age, shadows, and for each limit when it last admitted and what it has spent.
func TestImportChecksStates(t *testing.T) {
	minute := uint64(time.Minute)
	fixed, month := per(bucket.FixedWindow, 10, time.Minute), per(bucket.FixedWindow, 10, 0)
	first := fixed
	first.Align = bucket.AlignFirstHit
	month.Align, month.Unit = bucket.AlignCalendar, bucket.Month
	flow, log, bins := per(bucket.TokenBucket, 10, time.Minute), per(bucket.SlidingLog, 10, time.Minute), per(bucket.SlidingWindow, 10, time.Minute)
	counter := per(bucket.SlidingCounter, 10, time.Minute)
	for _, c := range []struct {
		limit   bucket.Limit
		numbers []uint64
		reason  string // empty: it is taken
	}{
		{flow, []uint64{0, 0, 0, 3, 5}, ""},
		{flow, []uint64{math.MaxUint64, 0, math.MaxUint64, 3, 5}, ""},
		{flow, []uint64{0, 0, 0, 1 << 63, 5}, "amount is too large"},
		{flow, []uint64{0, 0, 0, 3, minute}, "part of a unit"},
		{flow, []uint64{0, 0, 0, 0, 0}, "longer"},
		{first, []uint64{0, 0, 0, 3, minute}, ""},
		{first, []uint64{0, 0, 0, 3, minute + 1}, "too far away"},
		{first, []uint64{0, 0, 0, 3, 0}, "has been passed"},
		{fixed, []uint64{0, 0, 0, 3, minute}, ""},
		{fixed, []uint64{0, 0, 0, 3, minute + minute/2}, ""}, // behind one of another clock
		{fixed, []uint64{0, 0, 0, 3, minute + minute/2 + 1}, "too far away"},
		{fixed, []uint64{0, 0, 0, 3, 0}, "has been passed"},
		{fixed, []uint64{0, 0, 0, 0, 0}, ""}, // nothing spent, and no window
		{month, []uint64{0, 0, 0, 3, 1e9}, ""},
		{month, []uint64{0, 0, 0, 3, uint64(50 * 24 * time.Hour)}, "too far away"},
		{log, []uint64{0, 0, 0, 2, 9, 1, 9, 1}, ""},
		{log, []uint64{0, 0, 0, 1, minute - 1, 1}, ""},
		{log, []uint64{0, 0, 0, 1, minute, 1}, "has expired"},
		{log, []uint64{0, 0, 0, 1, 9, 0}, "no cost"},
		{log, []uint64{0, 0, 0, 2, 9, 1, 0, 1}, "one time"},
		{log, []uint64{0, 0, 0, 2, 9, 1, 10, 1}, "in the future"},
		{log, []uint64{0, 0, 0, 3, 9, 1}, "too many entries"},
		{log, []uint64{0, 0, 0, 1 << 60, 9, 1}, "too many entries"},
		{bins, []uint64{0, 0, 0, 1, minute + 1e9 - 1, 1}, ""},
		{bins, []uint64{0, 0, 0, 1, minute + 1e9, 1}, "has expired"},
		{bins, []uint64{0, 0, 0, 2, 2e9, 1, 2 * 2, 1}, ""},       // two sub-windows
		{bins, []uint64{0, 0, 0, 2, 2e9, 1, 2*1e9 + 1, 1}, ""},   // a second
		{bins, []uint64{0, 0, 0, 2, 2e9, 1, 2 * 3, 1}, "future"}, // three sub-windows
		{bins, []uint64{0, 0, 0, 2, 2e9, 1, 1, 1}, "one time"},
		{counter, []uint64{0, 0, 0, 3, 4, minute - 1}, ""},
		{counter, []uint64{0, 0, 0, 3, 4, minute}, "older than it lasts"},
		{counter, []uint64{0, 0, 0, 0, 0}, ""},
		{flow, []uint64{0, 1, 0, 3, 5, 0, 0, 3, 0, 3, 5}, ""},
		{flow, []uint64{0, 1, 0, 3, 5, 0, 1, 3, 0, 3, 5}, "no such place"},
		{flow, []uint64{0, 1, 0, 3, 5, 7, 0, 3, 0, 3, 5}, "former limits are not in the image"},
		{flow, []uint64{0, 1, 0, 3, 5, 1, 0, 3, 0, 3, 5}, "counts nothing"},
		{flow, []uint64{0, 1, 0, 3, 5, 2, 7, 3, 0, 3, 5}, ""}, // not known here, so not looked at
		{flow, []uint64{0, 1, 0, 3, 5, 0, 0, 4, 0, 3, 5, 0}, "longer than its former"},
		{flow, []uint64{0, 17, 0, 3, 5}, "too many former"},
		{flow, grantOf(4, 0), ""},
		{flow, grantOf(0, 0), "a grant has no units"},
		{flow, grantOf(1<<63, 0), "amount is too large"},
		{flow, grantOf(4, 1), ""},        // a reservation
		{flow, grantOf(0, 1+3*8+32), ""}, // released
		{flow, grantOf(4, 3), "unknown use"},
		{flow, grantOf(4, 8), "unknown use"},
		{flow, grantOf(4, 32), "unknown use"},
		{flow, grantOf(4, 1+64*8191), ""},
		{flow, grantOf(4, 64<<34-64), ""},
		{flow, grantOf(4, 64<<34), "unknown attributes"},
		{flow, append(grantOf(4, 0), 0), "longer"},
		{flow, grantOf(4, 0)[:11], "it ends"},
		{flow, grantOf(4, 0)[:5], "it ends"},
	} {
		im := &bucket.Image{Limits: []*bucket.Limits{mustLimits(t, c.limit), mustLimits(t, bucket.Limit{Unlimited: true}), nil}}
		for _, merge := range []bool{false, true} {
			to := smallTable(t)
			err := to.Import(day, 0, im, written(c.numbers...), 1, merge)
			switch {
			case c.reason == "" && err != nil, c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
				t.Errorf("%v %v: error %v, want %q", c.limit.Algorithm, c.numbers, err, c.reason)
			case err != nil && to.Stats().Entries > 0:
				t.Errorf("%v %v: rejected and imported", c.limit.Algorithm, c.numbers)
			}
		}
	}
}

// grantOf are the numbers of a grant for a minute, as it is written.
func grantOf(units, attributes uint64) []uint64 {
	return append(append([]uint64{zigzag(-int64(time.Minute)), 64, 7}, make([]uint64, 7)...), units, attributes)
}

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

// TestImageForm: what Export writes, number by number; see image.go.
func TestImageForm(t *testing.T) {
	minute := uint64(time.Minute)
	for _, c := range []struct {
		limit   bucket.Limit
		granted uint64
		want    []uint64
	}{
		{per(bucket.TokenBucket, 10, time.Minute), 0, []uint64{2, 0, 0, 3, 0}},
		{per(bucket.FixedWindow, 10, time.Minute), 0, []uint64{2, 0, 0, 3, minute}},
		{per(bucket.SlidingCounter, 10, time.Minute), 0, []uint64{2, 0, 0, 3, 0, 0}},
		{per(bucket.SlidingWindow, 10, time.Minute), 0, []uint64{2, 0, 0, 1, 0, 3}},
		{per(bucket.TokenBucket, 10, time.Minute), 4, []uint64{2, 0, 0, 3, 0}},
		{per(bucket.FixedWindow, 10, time.Minute), 4, []uint64{2, 0, 0, 3, minute}},
	} {
		table, limits := smallTable(t), mustLimits(t, c.limit)
		table.Do(day, &bucket.Request{Limits: limits, Cost: 3})
		want := written(c.want...)
		if c.granted > 0 {
			g := grant(t, table, day, limits, int64(c.granted), time.Second)
			want = binary.LittleEndian.AppendUint64(want, g.ID*0x9e3779b97f4a7c15)
			numbers := append(append([]uint64{zigzag(1 - int64(time.Second)), 64}, make([]uint64, 8)...), c.granted, 0)
			want = append(want, written(numbers...)[8:]...)
		}
		if im := exported(table, day+1, 0); !bytes.Equal(im.Data, want) {
			t.Errorf("%s, %v granted: %x, want %x", c.limit.Algorithm, c.granted, im.Data, want)
		}
	}
}
