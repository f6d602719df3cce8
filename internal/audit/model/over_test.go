package model

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

const second = int64(time.Second)

// at is a decision known to the nanosecond, in units of a second.
func at(seconds ...float64) (out []Span) {
	for _, s := range seconds {
		t := int64(s * float64(second))
		out = append(out, Span{t, t})
	}
	return out
}

// between is n decisions made at some time from a to b.
func between(a, b float64, n int) (out []Span) {
	for range n {
		out = append(out, Span{int64(a * float64(second)), int64(b * float64(second))})
	}
	return out
}

type tester interface {
	Helper()
	Fatal(args ...any)
}

func mustNew(t tester, l bucket.Limit, c Clocks) *Model {
	t.Helper()
	m, err := New(l, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestOver(t *testing.T) {
	minute := func(a bucket.Algorithm, align bucket.Align, burst int64) bucket.Limit {
		return bucket.Limit{Algorithm: a, Align: align, Count: 3, Burst: burst, Period: time.Minute}
	}
	var (
		token    = minute(bucket.TokenBucket, 0, 0)
		burst    = minute(bucket.LeakyBucket, 0, 5)
		firstHit = minute(bucket.FixedWindow, bucket.AlignFirstHit, 0)
		epoch    = minute(bucket.FixedWindow, bucket.AlignEpoch, 0)
		log      = minute(bucket.SlidingLog, 0, 0)
		window   = minute(bucket.SlidingWindow, 0, 0)
		counter  = minute(bucket.SlidingCounter, 0, 0)
	)
	apart := Clocks{Error: time.Second}
	for _, c := range []struct {
		name     string
		limit    bucket.Limit
		clocks   Clocks
		admitted []Span
		want     int64
	}{
		{"nothing", token, Clocks{}, nil, 0},
		{"token: the burst at once", token, Clocks{}, at(5, 5, 5), 0},
		{"token: one more", token, Clocks{}, at(5, 5, 5, 5), 1},
		{"token: one more just before it is back", token, Clocks{}, at(5, 5, 5, 24.999999999), 1},
		{"token: one more when it is back", token, Clocks{}, at(5, 5, 5, 25), 0},
		{"token: it may be back", token, Clocks{}, slices.Concat(at(5, 5, 5), between(6, 25, 1)), 0},
		{"token: it cannot be back", token, Clocks{}, slices.Concat(at(5, 5, 5), between(6, 24, 1)), 1},
		{"token: the first may be old", token, Clocks{}, slices.Concat(between(5, 44, 1), at(30, 30, 44)), 0},
		{"token: two more", token, Clocks{}, at(5, 5, 5, 5, 5), 2},
		{"token: idle time saves no more than the burst", token, Clocks{}, at(5, 500, 500, 500, 500), 1},
		{"token: faster clocks", token, Clocks{Drift: 1000}, at(5, 5, 5, 24.99), 0},
		{"token: not as fast as that", token, Clocks{Drift: 1000}, at(5, 5, 5, 24.9), 1},
		{"leaky: its own burst", burst, Clocks{}, at(5, 5, 5, 5, 5, 25), 0},
		{"leaky: one more", burst, Clocks{}, at(5, 5, 5, 5, 5, 24), 1},

		{"first hit: the count", firstHit, Clocks{}, at(5, 30, 60), 0},
		{"first hit: one more in the first window", firstHit, Clocks{}, at(5, 30, 60, 61), 1},
		{"first hit: the window may have begun when it was first asked", firstHit, Clocks{}, at(10, 30, 60, 65), 0},
		{"first hit: two windows close together", firstHit, Clocks{}, at(5, 64, 64, 66, 66, 66), 0},
		{"first hit: three windows as close", firstHit, Clocks{}, at(5, 64, 64, 66, 66, 66, 67), 1},

		{"epoch: the count", epoch, Clocks{}, at(5, 30, 59), 0},
		{"epoch: one more", epoch, Clocks{}, at(5, 30, 58, 59), 1},
		{"epoch: the next window", epoch, Clocks{}, at(5, 30, 59, 60), 0},
		{"epoch: who knows which window", epoch, Clocks{}, slices.Concat(at(5, 30, 58), between(59, 60, 1)), 0},
		{"epoch: too many for both windows", epoch, Clocks{}, slices.Concat(at(5, 58), between(59, 61, 4), at(62)), 1},
		{"epoch: clocks that are apart", epoch, apart, at(5, 30, 58, 59), 0},
		{"epoch: not that far", epoch, apart, at(5, 30, 50, 58), 1},
		{"epoch: clocks do not fill two windows thrice", epoch, apart, at(58, 58, 58, 59, 60, 61, 62), 1},

		{"log: the count", log, Clocks{}, at(5, 30, 59), 0},
		{"log: the first has just expired", log, Clocks{}, at(5, 30, 59, 65), 0},
		{"log: it has not", log, Clocks{}, at(5, 30, 59, 64.999999999), 1},
		{"log: it may have", log, Clocks{}, slices.Concat(at(5, 30, 59), between(60, 65, 1)), 0},
		{"log: a long call may be older", log, Clocks{}, slices.Concat(between(5, 70, 1), at(66, 67, 68)), 0},
		{"window: one more", window, Clocks{}, at(5, 30, 59, 64), 1},
		{"window: clocks that are apart", window, apart, at(5, 30, 59, 64), 0},
		{"window: not that far", window, apart, at(5, 30, 59, 62), 1},

		{"counter: the count", counter, Clocks{}, at(5, 30, 59), 0},
		{"counter: one more", counter, Clocks{}, at(5, 30, 58, 59), 1},
		{"counter: a third of three is left", counter, Clocks{}, at(5, 30, 58, 100, 100), 0},
		{"counter: with one more", counter, Clocks{}, at(5, 30, 58, 100, 100, 100), 1},
		{"counter: clocks that are apart", counter, apart, at(5, 30, 58, 99, 99, 99), 1},
		{"counter: rounding down leaves room", counter, apart, at(5, 30, 58, 99.5, 99.5, 100), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mustNew(t, c.limit, c.clocks)
			if got := m.Over(5*second, c.admitted); got != c.want {
				t.Errorf("over by %d, want %d", got, c.want)
			}
		})
	}
}

// The tree must say what comparing all pairs of times says.
func TestFlowAgainstAllPairs(t *testing.T) {
	const huge = int64(1) << 30
	for _, spans := range [][]Span{
		at(1, 2, 3, 4, 4, 4, 5, 20), slices.Concat(between(0, 10, 3), between(2, 4, 3)), between(1, 1, 9),
		slices.Concat(between(0, 1, 5), between(3, 9, 5), at(10, 10)),
	} {
		for _, rate := range []struct{ n, p int64 }{{1, second}, {3, second}, {huge, huge * huge}, {1000, 7}, {1 << 62, 3}} {
			for burst := range int64(8) {
				sorted := sortedByEnd(spans)
				want := int64(0)
				for _, a := range spans {
					for _, b := range spans {
						if b.To < a.From {
							continue
						}
						count := int64(0)
						for _, s := range spans {
							if s.From >= a.From && s.To <= b.To {
								count++
							}
						}
						want = max(want, count-addSat(burst, mulDiv(b.To-a.From, rate.n, rate.p)))
					}
				}
				got := overFlow(sorted, burst, rate.n, rate.p)
				if rate.n >= huge { // times are coarser, for the cluster's good
					if got > want {
						t.Errorf("%v, burst %d, %v: over by %d, all pairs say %d", spans, burst, rate, got, want)
					}
				} else if got != want {
					t.Errorf("%v, burst %d, %v: over by %d, all pairs say %d", spans, burst, rate, got, want)
				}
			}
		}
	}
}
