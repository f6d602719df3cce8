package lease

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// testCluster is an owner's table and some leaseholders, the owner among them, on one clock and without any goroutine. What
// they say to each other takes a while, gets lost, or comes twice.
type testCluster struct {
	rnd     *rand.Rand
	now     int64
	limits  *bucket.Limits
	table   *bucket.Table
	demands *Demands
	books   []*Book
	events  []event
	spent   []int64 // when each unit was
	asked   int     // checks
	// guard taken out: leases are counted from the answer, not from the request.
	fromAnswer bool
	// sound: messages are quick, and none is lost. slow: all take long.
	sound, slow bool
}

type event struct {
	at int64
	do func()
}

const key0 = 77

func newTestCluster(seed uint64, limit bucket.Limit, leaseholders int) *testCluster {
	l, err := bucket.NewLimits(limit)
	if err != nil {
		panic(err)
	}
	table, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		panic(err)
	}
	w := &testCluster{rnd: rand.New(rand.NewPCG(seed, 1)), now: int64(time.Hour), limits: l, table: table, demands: NewDemands("0")}
	for range leaseholders {
		w.books = append(w.books, NewBook(DefaultHot))
	}
	return w
}

// after has do called later; a message that is lost never.
func (w *testCluster) after(d time.Duration, do func()) {
	w.events = append(w.events, event{w.now + int64(d), do})
}

// delay is how long a message takes: mostly little, at times as long as a lease.
func (w *testCluster) delay() time.Duration {
	if w.slow {
		return 20*time.Millisecond + time.Duration(w.rnd.Int64N(int64(20*time.Millisecond)))
	}
	if !w.sound && w.rnd.IntN(10) == 0 {
		return time.Duration(w.rnd.Int64N(int64(80 * time.Millisecond)))
	}
	return time.Duration(w.rnd.Int64N(int64(2 * time.Millisecond)))
}

func (w *testCluster) lost() bool { return !w.sound && w.rnd.IntN(20) == 0 }

// run lets each leaseholder ask rates[i] checks a second for d.
func (w *testCluster) run(t *testing.T, d time.Duration, rates []float64) {
	const step = 250 * time.Microsecond
	for end := w.now + int64(d); w.now < end; w.now += int64(step) {
		slices.SortStableFunc(w.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
		for len(w.events) > 0 && w.events[0].at <= w.now {
			e := w.events[0]
			w.events = w.events[1:]
			e.do()
		}
		for i := range w.books {
			if w.rnd.Float64() < rates[i]*step.Seconds() {
				w.check(i)
			}
		}
		if w.now%int64(20*time.Millisecond) == 0 {
			w.tick(t)
		}
	}
}

// check is one of leaseholder i.
func (w *testCluster) check(i int) {
	w.asked++
	r := bucket.Request{Key: bucket.Key{Lo: key0}, Limits: w.limits, Cost: 1 + w.rnd.Int64N(3)/2}
	who := Leaseholder
	if i == 0 {
		if who = Owner; !w.demands.Live(w.now, r.Key) {
			w.decide(r)
			return
		}
	}
	var d bucket.Decision
	v, _, ask, asks := w.books[i].Take(w.now, &r, who, &d)
	if asks {
		w.ask(i, ask)
	}
	switch {
	case v == Spent:
		w.spend(r.Cost)
	case v == Ask && i == 0:
		w.decide(r)
	case v == Ask && !w.lost():
		w.after(w.delay(), func() { w.decide(r) })
	}
}

// decide decides a check at the owner.
func (w *testCluster) decide(r bucket.Request) {
	if w.table.Do(w.now, &r).Allowed {
		w.spend(r.Cost)
	}
}

func (w *testCluster) spend(units int64) {
	for range units {
		w.spent = append(w.spent, w.now)
	}
}

// ask sends ask of leaseholder i to the owner, and the answer back.
func (w *testCluster) ask(i int, ask Request) {
	sent := w.now
	grant := func(back func(a *bucket.Grant)) {
		if ask.Done != 0 {
			w.table.Return(w.now, ask.Key, ask.Done, 0)
		}
		part, whole := w.demands.Note(w.now, ask.Key, string(rune('0'+i)), ask.Reserve, ask.Rate, ask.For)
		g, _, _ := w.table.Grant(w.now, &bucket.LeaseRequest{Key: ask.Key, Limits: ask.Limits, Want: ask.Want, Part: part, Whole: whole, For: ask.For})
		back(&g)
	}
	if i == 0 {
		grant(func(a *bucket.Grant) { w.books[0].Granted(w.now, w.now, &ask, "", a) })
		return
	}
	answered := false
	w.after(ask.For, func() {
		if !answered {
			answered = true
			w.books[i].Failed(w.now, &ask)
		}
	})
	if w.lost() {
		return
	}
	w.after(w.delay(), func() {
		grant(func(a *bucket.Grant) {
			if w.lost() {
				return
			}
			w.after(w.delay(), func() {
				if answered {
					return
				}
				answered = true
				if w.fromAnswer {
					sent = w.now
				}
				w.books[i].Granted(sent, w.now, &ask, "", a)
			})
		})
	})
}

// tick sends returns, some of them twice, and checks that everything adds up.
func (w *testCluster) tick(t *testing.T) {
	w.demands.Sweep(w.now)
	for _, b := range w.books {
		for _, r := range b.Tick(w.now) {
			for range 1 + w.rnd.IntN(2) {
				if !w.lost() {
					w.after(w.delay(), func() { w.table.Return(w.now, r.Key, r.ID, r.Unspent) })
				}
			}
		}
		if s := b.Stats(); s.Granted != s.Spent+s.Returned+s.Expired+uint64(s.Live) || s.Live < 0 {
			t.Fatalf("%+v does not add up", s)
		}
	}
}

// overWindows returns by how much the fullest window of length d has more than n.
func (w *testCluster) overWindows(d time.Duration, n int) (over int) {
	count := make(map[int64]int)
	for _, at := range w.spent {
		count[at/int64(d)]++
		over = max(over, count[at/int64(d)]-n)
	}
	return over
}

// overAny returns by how much the fullest interval (t−d, t] has more than n.
func (w *testCluster) overAny(d time.Duration, n int) (over int) {
	from := 0
	for i, at := range w.spent {
		for w.spent[from] <= at-int64(d) {
			from++
		}
		over = max(over, i-from+1-n)
	}
	return over
}

// overBucket returns by how much a bucket of n that drains n in d overflows.
func (w *testCluster) overBucket(d time.Duration, n int) (over float64) {
	level, last := 0.0, int64(0)
	for _, at := range w.spent {
		level = max(0, level-float64(at-last)/float64(d)*float64(n)) + 1
		last = at
		over = max(over, level-float64(n)-1e-6)
	}
	return over
}

// granted are algorithms with a way to see what was admitted too much.
var granted = []struct {
	name  string
	limit bucket.Limit
	over  func(*testCluster) float64
}{
	{"fixed window", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 300, Period: 500 * time.Millisecond}, func(w *testCluster) float64 {
		return float64(w.overWindows(500*time.Millisecond, 300))
	}},
	{"token bucket", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 600, Period: time.Second}, func(w *testCluster) float64 {
		return w.overBucket(time.Second, 600)
	}},
	{"sliding log", bucket.Limit{Algorithm: bucket.SlidingLog, Count: 1200, Period: 2 * time.Second, LogEntries: 65_536}, func(w *testCluster) float64 {
		return float64(w.overAny(2*time.Second, 1200))
	}},
	{"sliding window", bucket.Limit{Algorithm: bucket.SlidingWindow, Count: 1200, Period: 2 * time.Second}, func(w *testCluster) float64 {
		return float64(w.overAny(2*time.Second, 1200))
	}},
}

// TestNeverMore: whatever is late, lost or doubled, no interval has more than the algorithm alone would admit there, and
// what was granted adds up.
func TestNeverMore(t *testing.T) {
	for _, a := range granted {
		for seed := range uint64(15) {
			w := newTestCluster(seed, a.limit, 4)
			for range 4 {
				rates := []float64{1, 1, 1, 1}
				for i := range rates {
					rates[i] = []float64{0, 100, 900, 3000}[w.rnd.IntN(4)]
				}
				w.run(t, 700*time.Millisecond, rates)
			}
			if over := a.over(w); over > 0 {
				t.Errorf("%s, seed %d: %v more than it alone would admit", a.name, seed, over)
			}
			if len(w.spent) == 0 {
				t.Errorf("%s, seed %d: nothing was admitted of %d checks", a.name, seed, w.asked)
			}
		}
	}
}

// TestCountedFromTheRequest: a leaseholder that counts its lease from the answer spends what has ended at the owner.
func TestCountedFromTheRequest(t *testing.T) {
	for _, fromAnswer := range []bool{false, true} {
		worst := 0.0
		for seed := range uint64(20) {
			w := newTestCluster(seed, granted[0].limit, 4)
			w.fromAnswer, w.slow = fromAnswer, true
			w.run(t, 250*time.Millisecond, []float64{0, 600, 0, 0})
			w.run(t, 200*time.Millisecond, []float64{0, 200, 0, 0})
			w.run(t, 600*time.Millisecond, []float64{0, 3000, 0, 0}) // across a border of windows
			worst = max(worst, granted[0].over(w))
		}
		if (worst > 0) != fromAnswer {
			t.Errorf("counted from the answer: %v; the fullest window has %v too many", fromAnswer, worst)
		}
	}
}

// TestUsedUp: with messages that arrive, a limit that is asked for three times over is used but for a thirtieth part, by all
// alike.
func TestUsedUp(t *testing.T) {
	for _, a := range granted {
		w := newTestCluster(1, a.limit, 4)
		w.sound = true
		w.run(t, 2*time.Second, []float64{600, 600, 600, 600})
		before := len(w.spent)
		w.run(t, 4*time.Second, []float64{600, 600, 600, 600})
		if n := len(w.spent) - before; n < 4*600*97/100 {
			t.Errorf("%s: %d of %d admitted", a.name, n, 4*600)
		}
		if over := a.over(w); over > 0 {
			t.Errorf("%s: %v too many", a.name, over)
		}
	}
}
