package model

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/bucket"
	_ "github.com/sluicecluster/sluice/test/seeded"
)

// story is what a caller saw of one key that a real table decided.
type story struct {
	limit                     bucket.Limit
	asked                     int64
	admitted, denied, unknown []Span
}

// charges are all that may have been charged.
func (s *story) charges() []Span { return slices.Concat(s.admitted, s.unknown) }

func anyLimit(t *rapid.T) bucket.Limit {
	l := bucket.Limit{
		Algorithm: rapid.SampledFrom([]bucket.Algorithm{
			bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue, bucket.FixedWindow,
			bucket.SlidingLog, bucket.SlidingCounter, bucket.SlidingWindow,
		}).Draw(t, "algorithm"),
		Count:  rapid.Int64Range(1, 20).Draw(t, "count"),
		Period: time.Duration(rapid.Int64Range(int64(time.Second), int64(time.Hour)).Draw(t, "period")),
	}
	switch l.Algorithm {
	case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
		l.Burst = rapid.Int64Range(0, 20).Draw(t, "burst")
	case bucket.FixedWindow:
		l.Align = rapid.SampledFrom([]bucket.Align{bucket.AlignEpoch, bucket.AlignFirstHit}).Draw(t, "align")
	case bucket.SlidingWindow:
		l.SubWindows = rapid.Int32Range(2, 70).Draw(t, "sub_windows")
	}
	return l
}

// tell lets a table decide checks at increasing times and notes what a caller would know: the times
// to the nanosecond if vague is 0, else some time around them. The table's clock is off by offset, and faster by
// ppm. With lost, some checks get no answer, and of those some are not decided.
func tell(t *rapid.T, limit bucket.Limit, offset, ppm, vague int64, lost bool) *story {
	limits, err := bucket.NewLimits(limit)
	if err != nil {
		t.Fatal(err)
	}
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	start := 1_700_000_000*second + rapid.Int64Range(0, int64(limit.Period)).Draw(t, "start")
	s := &story{limit: limit, asked: start}
	now := start
	for range rapid.IntRange(1, 120).Draw(t, "checks") {
		now += 1 + rapid.Int64Range(0, int64(limit.Period)/limit.Count*3/2).Draw(t, "gap")*rapid.Int64Range(0, 1).Draw(t, "pause")
		span := Span{now, now}
		if vague > 0 {
			span.From = max(start, now-rapid.Int64Range(0, vague).Draw(t, "before"))
			span.To = now + rapid.Int64Range(0, vague).Draw(t, "after")
		}
		fate := 9
		if lost {
			fate = rapid.IntRange(0, 9).Draw(t, "fate")
		}
		if fate == 0 { // never arrived, and the caller cannot know
			s.unknown = append(s.unknown, Span{span.From, Open})
			continue
		}
		clock := now + offset + (now-start)/million*ppm
		d := table.Do(clock, &bucket.Request{Limits: limits, Cost: 1})
		switch {
		case fate == 1:
			s.unknown = append(s.unknown, Span{span.From, Open})
		case d.Allowed:
			s.admitted = append(s.admitted, span)
		default:
			s.denied = append(s.denied, span)
		}
	}
	return s
}

func TestNeverAFalseAlarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := anyLimit(t)
		offset := rapid.Int64Range(-second/4, second/4).Draw(t, "offset")
		ppm := rapid.Int64Range(-500, 500).Draw(t, "ppm")
		vague := rapid.SampledFrom([]int64{0, 1000, second / 10, int64(limit.Period) / 2, 2 * int64(limit.Period)}).Draw(t, "vague")
		s := tell(t, limit, offset, ppm, vague, true)

		// The clocks may be apart by the offset and by what they have drifted to in the end.
		last := s.asked
		for _, span := range slices.Concat(s.admitted, s.denied) {
			last = max(last, span.To)
		}
		most := second/4 + (last-s.asked)/million*500 + 1
		m, err := New(limit, Clocks{Error: time.Duration(most), Drift: 501})
		if err != nil {
			t.Skip(err) // such clocks say nothing about so short a window
		}
		if over := m.Over(s.asked, s.admitted); over > 0 {
			t.Errorf("%+v: over by %d", limit, over)
		}
		if missing, which := m.Under(s.charges(), s.denied); missing > 0 {
			t.Errorf("%+v: %d units free at the denial %v", limit, missing, s.denied[which])
		}
	})
}

// With exact times, whatever is admitted beside a denial is one too many.
func TestOneMoreIsCaught(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := anyLimit(t)
		s := tell(t, limit, 0, 0, 0, false)
		m := mustNew(t, limit, Clocks{})
		if over := m.Over(s.asked, s.admitted); over > 0 {
			t.Fatalf("%+v: over by %d before anything is wrong", limit, over)
		}
		var certain []Span
		for _, d := range s.denied {
			switch {
			case limit.Algorithm == bucket.SlidingWindow: // it denies some that the log would admit
			case limit.Align == bucket.AlignFirstHit && d.To-s.asked >= int64(limit.Period):
				// Who can tell when a later window began?
			default:
				certain = append(certain, d)
			}
		}
		if len(certain) == 0 {
			t.Skip("no denial is certain")
		}
		extra := rapid.SampledFrom(certain).Draw(t, "extra")
		if over := m.Over(s.asked, append(s.admitted, extra)); over < 1 {
			t.Errorf("%+v: one more at %v was not found", limit, extra)
		}
	})
}

// With exact times, an admission that had been a denial would have been wrong.
func TestOneLessIsCaught(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := anyLimit(t)
		s := tell(t, limit, 0, 0, 0, false)
		m := mustNew(t, limit, Clocks{})
		var certain []int
		for i := range s.admitted {
			switch limit.Algorithm {
			case bucket.FixedWindow, bucket.SlidingCounter, bucket.SlidingWindow:
				// What counts of older windows is not known; before the count is reached, it does not matter.
				if int64(i) < limit.Count {
					certain = append(certain, i)
				}
			default:
				certain = append(certain, i)
			}
		}
		if len(certain) == 0 {
			t.Skip("no admission is certain")
		}
		i := rapid.SampledFrom(certain).Draw(t, "less")
		less := s.admitted[i]
		charges := slices.Delete(slices.Clone(s.admitted), i, i+1)
		if missing, _ := m.Under(charges, append(s.denied, less)); missing < 1 {
			t.Errorf("%+v: the denial at %v was not found", limit, less)
		}
	})
}
