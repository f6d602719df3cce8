package timing

import (
	"slices"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-1, 0, 50 * time.Microsecond, 50*time.Microsecond + 1, time.Hour} {
		h.Observe(d)
	}
	s := h.Snapshot()
	if len(s.Counts) != len(s.Bounds)+1 || !slices.IsSorted(s.Bounds) {
		t.Fatalf("%d counts, bounds %v", len(s.Counts), s.Bounds)
	}
	if s.Counts[0] != 3 || s.Counts[1] != 1 || s.Counts[len(s.Counts)-1] != 1 || s.Count() != 5 {
		t.Errorf("counts %v", s.Counts)
	}
	if want := time.Hour + 100*time.Microsecond + 1; s.Sum != want {
		t.Errorf("sum %v, want %v", s.Sum, want)
	}
	var all Snapshot
	all.Add(s)
	all.Add(s)
	if all.Count() != 10 || all.Sum != 2*s.Sum || all.Counts[0] != 6 || s.Counts[0] != 3 {
		t.Errorf("twice: %+v", all)
	}
}
