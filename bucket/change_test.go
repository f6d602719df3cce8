package bucket

import (
	"slices"
	"testing"
	"time"
	"unsafe"
)

// TestCounterSize: millions of counters depend on it.
func TestCounterSize(t *testing.T) {
	got := []int{
		int(unsafe.Sizeof(record{})), int(unsafe.Sizeof(page{})), int(unsafe.Sizeof(line{})), int(unsafe.Sizeof(sideHead{})),
		int(unsafe.Sizeof(sideState{})), int(unsafe.Sizeof(sideShadow{})), ledgerBytes(leastDeadlines),
	}
	if want := []int{recordBytes, pageBytes, 64, 8, 32, 40, 112}; !slices.Equal(got, want) {
		t.Errorf("bytes of a record, a page, a line of the index, the head of a side, a state, a shadow, the smallest ledger: %v, want %v", got, want)
	}
}

// TestShadowsAreBounded: a caller that sends other limits with every check does not grow counters without bound. The limits
// that are remembered longest are those that become free last.
func TestShadowsAreBounded(t *testing.T) {
	table := mustTable(t, Config{Shards: 1})
	r := &Request{Cost: 1, Verb: Charge}
	const n = 3 * maxFormer
	for hours := 1; hours <= n; hours++ {
		r.Limits = mustLimits(t, Limit{Algorithm: SlidingLog, Count: 10, Period: time.Duration(hours) * time.Hour})
		table.Do(1, r)
	}
	c := table.counterOf(r.Key)
	if got := len(c.shadows()); got != maxFormer {
		t.Fatalf("%d shadows, want %d", got, maxFormer)
	}
	for _, x := range c.shadows() {
		if hours := x.limits.At(0).Period / time.Hour; hours < n-maxFormer {
			t.Errorf("the limit of %d hours is kept, later ones are not", hours)
		}
	}
	if got, want := table.Stats().Bytes-table.Stats().SetBytes, c.bytes(); got != want {
		t.Errorf("%d bytes accounted, the counter has %d", got, want)
	}
}

// TestChangeCarries: a new limit of another shape starts with what the one at its place has spent,
// and at most full; a copy of the level, fraction included, if only the rate differs.
func TestChangeCarries(t *testing.T) {
	hour := func(a Algorithm, count int64) Limit { return Limit{Algorithm: a, Count: count, Period: time.Hour} }
	minute := func(a Algorithm, count int64) Limit { return Limit{Algorithm: a, Count: count, Period: time.Minute} }
	for _, c := range []struct {
		name     string
		from, to []Limit
		cost     int64
		left     []int64
	}{
		{"another algorithm", []Limit{hour(FixedWindow, 10)}, []Limit{hour(TokenBucket, 10)}, 7, []int64{3}},
		{"a shorter period, full", []Limit{hour(FixedWindow, 100)}, []Limit{minute(FixedWindow, 10)}, 70, []int64{0}},
		{"the same, elsewhere", []Limit{hour(FixedWindow, 100), minute(SlidingLog, 10)},
			[]Limit{minute(SlidingLog, 10), hour(FixedWindow, 100)}, 4, []int64{6, 96}},
		{"one more", []Limit{hour(FixedWindow, 100)}, []Limit{hour(FixedWindow, 100), minute(SlidingCounter, 50)}, 20, []int64{80, 30}},
		{"one less", []Limit{minute(SlidingLog, 10), hour(FixedWindow, 100)}, []Limit{hour(FixedWindow, 90)}, 4, []int64{86}},
		{"after a block", []Limit{hour(FixedWindow, 0)}, []Limit{hour(FixedWindow, 10)}, 4, []int64{10}},
		{"a debt, faster", []Limit{hour(LeakyBucket, 10)}, []Limit{hour(LeakyBucket, 20)}, 25, []int64{0}},
	} {
		from := mustLimits(t, c.from...)
		to := mustLimits(t, c.to...)
		const now = int64(1_700_000_000_000_000_000)
		old := newCounter(from, now, new(more))
		old.charge(now, c.cost)
		changed := old.withLimits(to, now)
		for i, want := range c.left {
			if got := changed.at(i).remaining(&to.plans[i], now); got != want {
				t.Errorf("%s: limit %d has %d left, want %d", c.name, i, got, want)
			}
		}
		back := changed.withLimits(from, now)
		for i := range from.plans {
			got, want := back.at(i).used(&from.plans[i], now), mulSat(c.cost, from.plans[i].cost)
			if !from.plans[i].stateless() && got != want {
				t.Errorf("%s: back again, limit %d has %d spent, want %d", c.name, i, got, want)
			}
		}
	}
}

// TestChangedPeriodKeepsTheBeginning: a window that began with its first charge at 0:00 ends a period after that,
// whatever the period is by now, and is renewed if that has passed.
func TestChangedPeriodKeepsTheBeginning(t *testing.T) {
	const spent = 4
	begin := int64(1_700_000_000_000_000_000)
	for _, c := range []struct {
		from, to      time.Duration
		counts        [2]int64
		changed       time.Duration // after the beginning
		left          int64
		until, opened time.Duration // the end of the window, and of what a charge then goes into
	}{
		{time.Minute, time.Hour, [2]int64{10, 10}, 20 * time.Second, 6, time.Hour, time.Hour},
		{time.Hour, time.Minute, [2]int64{10, 10}, 20 * time.Second, 6, time.Minute, time.Minute},
		{time.Hour, time.Minute, [2]int64{10, 5}, 59 * time.Second, 1, time.Minute, time.Minute},
		{time.Hour, time.Minute, [2]int64{10, 3}, time.Minute - 1, 0, time.Minute, time.Minute},
		{time.Hour, time.Minute, [2]int64{10, 3}, time.Minute, 3, 0, 2 * time.Minute},
		{time.Hour, time.Minute, [2]int64{10, 10}, 59 * time.Minute, 10, 0, time.Hour},
		{MaxPeriod, MinPeriod, [2]int64{10, 10}, time.Second, 10, 0, time.Second + MinPeriod},
		{MinPeriod, MaxPeriod, [2]int64{10, 10}, MinPeriod / 2, 6, MaxPeriod, MaxPeriod},
		{time.Minute, time.Hour, [2]int64{10, 10}, time.Minute, 10, 0, time.Minute + time.Hour}, // had ended by itself
	} {
		limits := func(i int, period time.Duration) *Limits {
			return mustLimits(t, Limit{Algorithm: FixedWindow, Align: AlignFirstHit, Count: c.counts[i], Period: period})
		}
		from, to := limits(0, c.from), limits(1, c.to)
		old := newCounter(from, begin, nil)
		old.charge(begin, spent)
		now := begin + int64(c.changed)
		old.settle(now)
		changed, p := old.withLimits(to, now), &to.plans[0]
		if got := changed.first.remaining(p, now); got != c.left {
			t.Errorf("%v to %v after %v: %d left, want %d", c.from, c.to, c.changed, got, c.left)
		}
		if got, want := changed.first.free(p, now), max(0, int64(c.until-c.changed)); got != want {
			t.Errorf("%v to %v after %v: free in %v, want %v", c.from, c.to, c.changed, time.Duration(got), time.Duration(want))
		}
		changed.charge(now, 1)
		if got, want := changed.first.aux, begin+int64(c.opened); got != want {
			t.Errorf("%v to %v after %v: a charge's window ends %v after the beginning, want %v", c.from, c.to, c.changed, time.Duration(got-begin), c.opened)
		}
	}
}

// TestChangeToTwins: when one limit becomes two of its shape, each goes on with a log of its own.
func TestChangeToTwins(t *testing.T) {
	log := Limit{Algorithm: SlidingLog, Count: 100, Period: time.Hour}
	one := mustLimits(t, log)
	dear := log
	dear.Cost = 3
	two := mustLimits(t, log, dear)
	c := newCounter(one, 1, nil)
	c.charge(1, 5)
	twins := c.withLimits(two, 1)
	for now := int64(2); now < 12; now++ {
		twins.settle(now)
		twins.charge(now, 1)
	}
	for i, want := range []int64{6, 18} { // the charges of 6 to 11
		s, later := *twins.at(i), 5+int64(time.Hour)
		if s.settle(&two.plans[i], 11, later); s.spent != want {
			t.Errorf("twin %d: %d spent at the end, want %d", i, s.spent, want)
		}
	}
}

// TestChangeKeepsTheFraction: a level half a token below its rounded value stays so.
func TestChangeKeepsTheFraction(t *testing.T) {
	for _, to := range []Limit{
		{Algorithm: TokenBucket, Count: 5, Period: time.Second},
		{Algorithm: TokenBucket, Count: 1, Period: 10 * time.Second},
		{Algorithm: LeakyBucket, Count: 1, Period: time.Second},
	} {
		from := mustLimits(t, Limit{Algorithm: TokenBucket, Count: 1, Period: time.Second, Burst: 10})
		to.Burst = 10
		limits := mustLimits(t, to)
		old := newCounter(from, 0, nil)
		old.charge(0, 3)
		old.settle(int64(1500 * time.Millisecond)) // 1.5 are left of the 3
		changed := old.withLimits(limits, old.now)
		want := to.Period * 3 / 2 / time.Duration(to.Count)
		if got := time.Duration(changed.first.free(&limits.plans[0], changed.now)); got != want {
			t.Errorf("%+v: free after %v, want %v", to, got, want)
		}
	}
}
