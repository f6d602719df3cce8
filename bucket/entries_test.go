package bucket

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/race"
)

// TestRing pushes, drops and removes at random and compares with a slice.
func TestRing(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var s state
	var want []entry
	longest, steps := 0, 20_000
	for i := range steps {
		v := s.span()
		// Long phases of mostly growing and mostly shrinking.
		if grow := i/2000%2 == 0; r.IntN(10) < 5 || grow && r.IntN(3) > 0 {
			x := entry{int64(i), r.Int64N(9) + 1}
			s.push(x)
			want = append(want, x)
		} else if len(want) > 0 && r.IntN(4) == 0 {
			k := r.IntN(len(want))
			s.remove(uint32(k))
			want = slices.Delete(want, k, k+1)
		} else if len(want) > 0 { // as settling does
			s.setSpan(span{(v.head + 1) & uint32(len(s.log.ring)-1), v.n - 1})
			want = want[1:]
		}
		longest = max(longest, len(want))
		v = s.span()
		if int(v.n) != len(want) {
			t.Fatalf("step %d: %d entries, want %d", i, v.n, len(want))
		}
		if i%16 == 0 {
			checkOver(t, &s, want, r.Int64N(5*int64(len(want))+1))
		}
		if k := r.IntN(len(want) + 1); k < len(want) && *s.log.at(v, uint32(k)) != want[k] {
			t.Fatalf("step %d: entry %d of %d is %+v, want %+v", i, k, len(want), *s.log.at(v, uint32(k)), want[k])
		}
	}
	if longest < 500 {
		t.Fatalf("at most %d entries: the ring was never put to the test", longest)
	}
	for range len(s.log.ring) { // little in it: every push halves it, down to the smallest
		s.setSpan(span{0, 0})
		s.push(entry{})
	}
	if got := len(s.log.ring); got != minRing {
		t.Errorf("an almost empty ring of %d entries, want %d", got, minRing)
	}
}

// checkOver compares what over finds in s, which has the entries want, with what counting one by one does.
func checkOver(t *testing.T, s *state, want []entry, target int64) {
	t.Helper()
	if len(want) == 0 {
		return
	}
	i, newer := len(want), int64(0)
	for i > 0 {
		if i--; newer+want[i].cost > target {
			break
		}
		newer += want[i].cost
	}
	if got, units := s.log.over(s.span(), target); int(got) != i || units != newer {
		t.Fatalf("of %d entries over(%d) is %d with %d newer; want %d with %d", len(want), target, got, units, i, newer)
	}
}

// TestDeniedLogIsCheap: a check that a full log denies takes 5 µs at most, wherever in the log there will be room for it, also where
// it has more units than int64.
func TestDeniedLogIsCheap(t *testing.T) {
	if race.Enabled {
		t.Skip("a stopwatch says nothing under the race detector")
	}
	for _, cost := range []int64{1, 1 << 47} {
		limits := mustLimits(t, Limit{Algorithm: SlidingLog, Count: MaxLogEntries * min(cost, 1<<46), Period: MaxPeriod, LogEntries: MaxLogEntries})
		table := mustTable(t, Config{Shards: 1})
		r := Request{Limits: limits, Verb: Charge, Cost: cost}
		for now := range int64(MaxLogEntries) {
			table.Do(now+1, &r)
		}
		for _, part := range []int64{1, 2, 1 << 20} { // room in the whole log, in half of it, in the oldest entry
			ask := Request{Limits: limits, Cost: max(1, limits.At(0).Count/part)}
			const n = 100
			fastest := time.Hour
			for range 200 {
				began := time.Now()
				for range n {
					if d := table.Do(MaxLogEntries, &ask); d.Allowed {
						t.Fatal("allowed by a full log")
					}
				}
				fastest = min(fastest, time.Since(began)/n)
			}
			const bound = 5 * time.Microsecond
			t.Logf("charges of %d, cost %d: %v", cost, ask.Cost, fastest)
			if fastest > bound {
				t.Errorf("charges of %d: a denied check of cost %d takes %v, want at most %v", cost, ask.Cost, fastest, bound)
			}
		}
	}
}

// TestSaturatedLog: a log whose sum exceeds int64 still knows what is left when entries leave.
func TestSaturatedLog(t *testing.T) {
	limits := mustLimits(t, Limit{Algorithm: SlidingLog, Count: 100, Period: 1000})
	p := &limits.plans[0]
	const most = 1<<63 - 1
	s := newState(p)
	for at, cost := range []int64{most, 30, most - 10, 40} {
		s.charge(p, int64(at), cost)
	}
	for _, row := range []struct{ at, used, until, target int64 }{
		{3, most, 1002 - 3, 100},
		{1000, most, 2, 100}, // 30, most − 10 and 40
		{1001, most, 1, 100}, // most − 10 and 40
		{1002, 40, 0, 100},   // 40
		{1002, 40, 1, 39},    // until 1003
		{1003, 0, 0, 0},      // nothing
	} {
		c := s
		c.settle(p, 3, row.at)
		if got := c.used(p, row.at); got != row.used {
			t.Errorf("at %d: %d count, want %d", row.at, got, row.used)
		}
		if got := c.until(p, row.at, row.target); got != row.until {
			t.Errorf("at %d: at most %d count after %d, want %d", row.at, row.target, got, row.until)
		}
	}
}
