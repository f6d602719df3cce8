package lease

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func opened(units int64, until time.Duration) (*Line, *Lease, chan struct{}) {
	wake := make(chan struct{}, 1)
	x := &Lease{Units: units, Until: until, Low: units / 4, Wake: wake}
	x.Open()
	l := new(Line)
	l.Add(x)
	return l, x, wake
}

// TestSpendOnce: however many take at once, each unit is spent once, and what is spent and what End leaves are all.
func TestSpendOnce(t *testing.T) {
	const units = 100_000
	l, x, _ := opened(units, Now()+time.Minute)
	cell := new(Cell)
	cell.Line.Store(l)
	var spent atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range units / 4 {
				if i == 0 && n == units/20 {
					spent.Add(-x.End()) // what was spent until now
				}
				if n%3 == 0 && l.TakeSeen(2) != nil {
					spent.Add(2)
				} else if cell.Take(1) {
					spent.Add(1)
				}
			}
		})
	}
	if all.Wait(); spent.Load() != 0 {
		t.Errorf("%d units more were spent than End has said", spent.Load())
	}
	if x.Left() != 0 || cell.Take(1) || (*Cell)(nil).Take(1) {
		t.Error("an ended lease is spent")
	}
	small, y, wake := opened(8, Now()+time.Minute)
	for range 5 {
		small.TakeSeen(1)
	}
	if len(wake) != 0 || small.TakeSeen(1) == nil || len(wake) != 1 || small.TakeSeen(3) != nil || y.Left() != 2 || y.End() != 6 {
		t.Errorf("%d woken, %d left", len(wake), y.Left())
	}
}

// TestDeadline: nothing is spent at the deadline or later, even by who began before it.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, x, _ := opened(10, Now()+time.Second)
		time.Sleep(time.Second - time.Nanosecond)
		if l.TakeSeen(1) == nil {
			t.Error("nothing is spent before the deadline")
		}
		if time.Sleep(time.Nanosecond); l.TakeSeen(1) != nil || x.Left() != 9 || x.End() != 1 {
			t.Errorf("spent at the deadline: %d left", x.Left())
		}
	})
}

func BenchmarkNow(b *testing.B) {
	for range b.N {
		Now()
	}
}

func BenchmarkTake(b *testing.B) {
	l, _, _ := opened(1<<60, Now()+time.Hour)
	cell := new(Cell)
	cell.Line.Store(l)
	b.ReportAllocs()
	for range b.N {
		if !cell.Take(1) {
			b.Fatal("nothing left")
		}
	}
}
