package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
)

// regionLimits are those whose counter the first of three regions has. The last ones grant for so short that most checks go to the home.
var regionLimits = []bucket.Limit{
	{Algorithm: bucket.TokenBucket, Count: 300, Period: time.Second, Burst: 1500},
	{Algorithm: bucket.FixedWindow, Count: 3000, Period: 10 * time.Second},
	{Algorithm: bucket.SlidingCounter, Count: 3000, Period: 10 * time.Second},
	{Algorithm: bucket.LeakyBucket, Count: 200, Period: time.Second, Burst: 1000},
	{Algorithm: bucket.TokenBucket, Count: 1000, Period: 5 * time.Second, Burst: 2000, Refill: bucket.RefillInterval},
	{Algorithm: bucket.SlidingLog, Count: 2000, Period: 100 * time.Second},
	{Algorithm: bucket.TokenBucket, Count: 200, Period: time.Second, Burst: 100},
}

// healthyLimits is how many of regionLimits are used up in worlds without faults.
const healthyLimits = 4

const (
	regionTime = 30 * time.Second
	// regionWarmup is how long demand is measured before utilisation is.
	regionWarmup = 10 * time.Second
)

// regionWorld is three regions of two or three nodes. The first one's owner has the counter. The owner in each other region leases of
// it, and its nodes lease of that owner.
type regionWorld struct {
	rng        *rand.Rand
	queue      queue
	began, now int64
	limits     *bucket.Limits
	exact      exact
	table      *bucket.Table
	demands    *lease.Demands
	regions    []*region
	faults     bool
	lose       int     // ‰
	gentle     bool    // processes pause, and nothing is lost by faults: so nothing hides what is spent too late
	slower     float64 // than the usual demand
	fixed      bool    // the demand does not change at random, and no process pauses
	loses      bool    // the home has no replica
	violation  *Violation
	// admitted are all units, late those after the warm-up; asked are checks outside the home, and away those that went to it.
	admitted, late, asked, away int64
	crashes, handoffs, cuts     int
	// Until opens the home decides nothing: its owner changes. homes counts that, lost those without a replica. Units of leases of the
	// counter that was lost last count against before, until beforeTo.
	opens       int64
	homes, lost int
	before      exact
	beforeTo    int64
}

// region is one of them. The home has no book.
type region struct {
	place   int
	ahead   int64 // its clock's error
	far     time.Duration
	book    *lease.Book
	stale   *lease.Book // of a node that does not know yet that it is no owner any more
	demands *lease.Demands
	nodes   []*lease.Book
	rest    time.Duration
	cutTo   int64 // until then nothing arrives at the home, or from it
	cutFrom int64
	paused  int64 // until then its processes stand still
	bursts  bool  // its checks come many at a time
}

// runRegions runs the schedule of one seed.
func runRegions(seed uint64) *regionWorld {
	w := newRegionWorld(seed)
	return w.run(w.began + int64(regionTime))
}

func newRegionWorld(seed uint64) *regionWorld {
	w := &regionWorld{rng: rand.New(rand.NewPCG(seed, 20)), began: int64(1_700_000_000 * time.Second), faults: seed%2 == 0}
	limit := regionLimits[seed/2%uint64(len(regionLimits))]
	if !w.faults {
		limit = regionLimits[seed/2%healthyLimits]
	}
	w.now, w.exact, w.demands = w.began, newExact(limit), lease.NewDemands("0")
	limits, err := bucket.NewLimits(limit)
	if err != nil {
		panic(err)
	}
	w.limits, w.slower, w.table = limits, 1, newRegionTable()
	w.loses = seed%16 == 2
	if w.gentle = seed%8 == 0 || seed%8 == 6; w.faults && !w.gentle {
		w.lose = w.rng.IntN(100)
	}
	weights := []int{1 + w.rng.IntN(9), 1 + w.rng.IntN(9), 1 + w.rng.IntN(9)}
	whole := weights[0] + weights[1] + weights[2]
	for i := range 3 {
		r := &region{place: i, demands: lease.NewDemands("0"), far: between(w.rng, 25*time.Millisecond, 300*time.Millisecond)}
		r.bursts = w.faults && w.rng.IntN(2) == 0
		r.ahead = int64(between(w.rng, -time.Minute, time.Minute))
		if i == 0 {
			r.ahead, r.far, r.demands = 0, 0, w.demands
		} else {
			r.book = lease.NewRegionBook(2 * r.far)
		}
		for range 2 + w.rng.IntN(2) {
			r.nodes = append(r.nodes, lease.NewBook(10))
		}
		// Twice what the limit admits, by the weights.
		r.rest = time.Duration(float64(limit.Period) / float64(2*limit.Count) * float64(whole) / float64(weights[i]))
		w.regions = append(w.regions, r)
		w.after(r.rest, func() { w.check(r) })
		w.after(time.Millisecond, func() { w.tick(r) })
	}
	if w.faults {
		w.after(time.Second, w.fault)
		w.after(time.Second, w.change)
	}
	if !w.faults && seed%4 == 1 { // demand flips
		w.after(regionTime/2, func() { w.regions[1].rest, w.regions[2].rest = w.regions[2].rest, w.regions[1].rest })
	}
	return w
}

func newRegionTable() *bucket.Table {
	t, err := bucket.NewTable(bucket.Config{Shards: 1})
	if err != nil {
		panic(err)
	}
	return t
}

// run runs w until end, or until a unit too much is spent.
func (w *regionWorld) run(end int64) *regionWorld {
	for w.violation == nil {
		e, ok := w.queue.pop()
		if !ok || e.at > end {
			break
		}
		w.now = e.at
		e.do()
	}
	return w
}

func (w *regionWorld) after(d time.Duration, do func()) {
	w.queue.push(event{at: w.now + int64(d), do: do})
}

func (r *region) clock(now int64) int64 { return now + r.ahead }

// admit records that units were spent now.
func (w *regionWorld) admit(units int64, how string, r *region) {
	for range units {
		w.admitted++
		if w.now > w.began+int64(regionWarmup) {
			w.late++
		}
		if w.now < w.beforeTo && w.before.admit(w.now) {
			continue
		}
		if !w.exact.admit(w.now) && w.violation == nil {
			w.violation = &Violation{"I2", general, time.Duration(w.now - w.began), fmt.Sprintf("%s in region %d is one more than the limit alone would admit", how, r.place)}
		}
	}
}

// near sends a message inside a region.
func (w *regionWorld) near(do func()) {
	if w.rng.IntN(1000) >= w.lose {
		w.after(between(w.rng, 50*time.Microsecond, 2*time.Millisecond), do)
	}
}

// wide sends a message to the home, or from it.
func (w *regionWorld) wide(r *region, cut int64, do func()) {
	if w.now < cut || w.rng.IntN(1000) < w.lose {
		return
	}
	times := 1
	if w.faults && w.rng.IntN(50) == 0 {
		times = 2
	}
	for range times {
		d := r.far + between(w.rng, 0, 5*time.Millisecond)
		if w.faults && !w.gentle && w.rng.IntN(50) == 0 {
			d += between(w.rng, 0, 3*time.Second)
		}
		w.after(d, do)
	}
}

var regionKey = bucket.Key{Lo: 20}

func (w *regionWorld) request() bucket.Request {
	return bucket.Request{Key: regionKey, Limits: w.limits, Cost: 1}
}

// check is one check or more at some node of r.
func (w *regionWorld) check(r *region) {
	times, at := 1, w.rng.IntN(len(r.nodes))
	if r.bursts {
		times += w.rng.IntN(100)
	}
	w.after(time.Duration(w.rng.ExpFloat64()*float64(r.rest)*float64(times)*w.slower), func() { w.check(r) })
	if w.now >= r.paused {
		for range times {
			w.checkAt(r, at)
		}
	}
}

// checkAt is one check at a node of r.
func (w *regionWorld) checkAt(r *region, at int) {
	q := w.request()
	if r.place > 0 && w.now > w.began+int64(regionWarmup) {
		w.asked++
	}
	if at == 0 {
		w.atOwner(r, r.book, q)
		return
	}
	book := r.nodes[at]
	var d bucket.Decision
	v, _, ask, asks := book.Take(r.clock(w.now), &q, lease.Leaseholder, &d)
	if asks {
		w.askOwner(r, book, fmt.Sprint(at), ask)
	}
	switch v {
	case lease.Spent:
		w.admit(1, "a unit of a node's lease", r)
	case lease.Ask:
		owner := r.book
		if r.stale != nil && w.rng.IntN(2) == 0 {
			owner = r.stale
		}
		w.near(func() { w.atOwner(r, owner, q) })
	}
}

// atOwner decides a check at the owner in r.
func (w *regionWorld) atOwner(r *region, book *lease.Book, q bucket.Request) {
	now := r.clock(w.now)
	var d bucket.Decision
	if r.demands.Live(now, q.Key) && book == r.book {
		v, _, ask, asks := r.nodes[0].Take(now, &q, lease.Owner, &d)
		if asks {
			if g, ok := w.grant(r, book, "0", &ask); ok {
				r.nodes[0].Granted(now, now, &ask, "0", &g)
			} else {
				r.nodes[0].Failed(now, &ask)
			}
			if v != lease.Spent {
				d = bucket.Decision{}
				v, _, _, _ = r.nodes[0].Take(now, &q, lease.Again, &d)
			}
		}
		if v == lease.Spent {
			w.admit(1, "a unit of an owner's own lease", r)
		}
		if v != lease.Ask {
			return
		}
	}
	if r.place == 0 {
		w.atTable(&q, "a check at home", r)
		return
	}
	d = bucket.Decision{}
	v, _, ask, asks := book.Take(now, &q, lease.Leaseholder, &d)
	if asks {
		w.askHome(r, book, ask)
	}
	switch v {
	case lease.Spent:
		w.admit(1, "a unit of a region's lease", r)
	case lease.Ask:
		if w.now > w.began+int64(regionWarmup) {
			w.away++
		}
		w.wide(r, r.cutTo, func() { w.atTable(&q, "a check of another region", r) })
	}
}

// atTable decides a check by the counter, if the home has an owner.
func (w *regionWorld) atTable(q *bucket.Request, how string, r *region) {
	if w.now < w.opens {
		return
	}
	if d := w.table.Do(w.now, q); d.Allowed {
		w.admit(1, how, r)
	}
}

// grant answers a lease request at the owner in r.
func (w *regionWorld) grant(r *region, book *lease.Book, boot string, ask *lease.Request) (bucket.Grant, bool) {
	now := r.clock(w.now)
	if r.place == 0 && w.now < w.opens {
		return bucket.Grant{}, false
	}
	if ask.Done != 0 {
		w.giveBack(r, book, lease.Return{Key: ask.Key, ID: ask.Done})
	}
	ask.Part, ask.Whole = r.demands.Note(now, ask.Key, boot, ask.Reserve, ask.Rate, ask.For)
	ask.Across = lease.Across(ask.Limits, ask.For)
	ask.Nearest = ask.For > lease.MaxLife
	if r.place == 0 {
		g, _, _ := w.table.Grant(now, &ask.LeaseRequest)
		return g, true
	}
	g, ok, more, asks := book.Grant(now, ask)
	if asks {
		w.askHome(r, book, more)
	}
	return g, ok
}

func (w *regionWorld) giveBack(r *region, book *lease.Book, b lease.Return) {
	if r.place == 0 && w.now < w.opens {
		return // it expires
	} else if r.place == 0 {
		w.table.Return(w.now, b.Key, b.ID, b.Unspent)
	} else {
		book.TakeBack(r.clock(w.now), b.Key, b.ID, b.Unspent)
	}
}

// answer calls got with the answer of a request that is sent now, or failed once it is late.
func (w *regionWorld) answer(d time.Duration, failed func(), send func(got func(do func()))) {
	done := false
	once := func(do func()) {
		if !done {
			done = true
			do()
		}
	}
	send(once)
	w.after(d, func() { once(failed) })
}

func (w *regionWorld) askOwner(r *region, book *lease.Book, boot string, ask lease.Request) {
	sent, owner := r.clock(w.now), r.book
	w.answer(ask.For, func() { book.Failed(r.clock(w.now), &ask) }, func(got func(func())) {
		w.near(func() {
			at := ask
			if g, ok := w.grant(r, owner, boot, &at); ok {
				w.near(func() { got(func() { book.Granted(sent, r.clock(w.now), &ask, "o", &g) }) })
			}
		})
	})
}

func (w *regionWorld) askHome(r *region, book *lease.Book, ask lease.Request) {
	sent := r.clock(w.now)
	w.answer(ask.For, func() { book.Failed(r.clock(w.now), &ask) }, func(got func(func())) {
		w.wide(r, r.cutTo, func() {
			at := ask
			if g, ok := w.grant(w.regions[0], nil, fmt.Sprint("region ", r.place), &at); ok {
				w.wide(r, r.cutFrom, func() { got(func() { book.Granted(sent, r.clock(w.now), &ask, "h", &g) }) })
			}
		})
	})
}

// tick returns what is not used in r.
func (w *regionWorld) tick(r *region) {
	w.after(20*time.Millisecond, func() { w.tick(r) })
	if w.now < r.paused {
		return
	}
	now := r.clock(w.now)
	r.demands.Sweep(now)
	for i, n := range r.nodes {
		for _, b := range n.Tick(now) {
			owner := r.book
			if i == 0 {
				w.giveBack(r, owner, b)
				continue
			}
			w.near(func() { w.giveBack(r, owner, b) })
		}
	}
	if r.place > 0 && w.rng.IntN(5) == 0 {
		w.returnHome(r, r.book.Tick(now))
	}
}

func (w *regionWorld) returnHome(r *region, back []lease.Return) {
	for _, b := range back {
		w.wide(r, r.cutTo, func() { w.giveBack(w.regions[0], nil, b) })
	}
}

// change changes the demand of all regions.
func (w *regionWorld) change() {
	if w.fixed {
		return
	}
	w.slower = []float64{0.3, 1, 4, 20}[w.rng.IntN(4)]
	w.after(between(w.rng, 500*time.Millisecond, 4*time.Second), w.change)
}

// fault lets something happen to a region.
func (w *regionWorld) fault() {
	if w.fixed {
		return
	}
	w.after(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond), w.fault)
	r := w.regions[1+w.rng.IntN(2)]
	kind := w.rng.IntN(8)
	if w.gentle {
		kind = 5
	}
	switch kind {
	case 0: // its owner is killed
		w.crashes++
		r.book = lease.NewRegionBook(2 * r.far)
	case 1: // a handoff, of which not all nodes know at once
		w.handoffs++
		old := r.book
		w.returnHome(r, old.Drop(func(bucket.Key) bool { return false }))
		r.book, r.stale = lease.NewRegionBook(2*r.far), old
		w.after(between(w.rng, 0, time.Second), func() { r.stale = nil })
	case 2:
		w.cuts++
		r.cutTo = w.now + int64(between(w.rng, 0, 4*time.Second))
	case 3:
		w.cuts++
		r.cutFrom = w.now + int64(between(w.rng, 0, 4*time.Second))
	case 5:
		d := between(w.rng, 0, 4*time.Second)
		r.paused = w.now + int64(d)
		w.after(d, func() {
			for at := range r.nodes {
				for range w.rng.IntN(300) {
					w.checkAt(r, at)
				}
			}
		})
	case 6: // a handoff of the home's owner
		w.moveHome(between(w.rng, time.Millisecond, 500*time.Millisecond), true)
	case 7: // it is killed, and another node takes over
		w.regions[0].nodes[0] = lease.NewBook(10)
		w.moveHome(between(w.rng, 1900*time.Millisecond, 5*time.Second), !w.loses)
	case 4: // another node is killed
		r.nodes[w.rng.IntN(len(r.nodes))] = lease.NewBook(10)
	}
}

// moveHome gives the home another owner after a while, with the counter and the leases of the one before, or with a fresh counter. With a
// sync replica the counter has all that was answered, whether its owner is killed or hands it over.
func (w *regionWorld) moveHome(gap time.Duration, has bool) {
	if w.now < w.opens {
		return
	}
	next := newRegionTable()
	w.homes++
	w.opens, w.demands = w.now+int64(gap), lease.NewDemands("0")
	w.regions[0].demands = w.demands
	if has {
		var im bucket.Image
		w.table.Export(w.now, 0, w.table.Keys(0, nil), &im)
		if err := next.Import(w.now, 0, &im, im.Data, im.Counters, false); err != nil {
			panic(err)
		}
	} else {
		w.lost++
		w.before, w.beforeTo, w.exact = w.exact, w.now+int64(3*time.Second), newExact(w.limits.At(0))
	}
	w.table = next
}

// runRegionEdges runs windows that are used slowly until a little after their end, and then up, in turn: what is spent too late is too much
// in the next one.
func runRegionEdges(seed uint64) *regionWorld {
	const period = 4 * time.Second
	w := newRegionWorld(seed*8 + 6) // gentle
	limit := bucket.Limit{Algorithm: bucket.FixedWindow, Count: 12_000, Period: period}
	limits, err := bucket.NewLimits(limit)
	if err != nil {
		panic(err)
	}
	w.limits, w.exact, w.gentle, w.fixed = limits, newExact(limit), true, true
	for _, r := range w.regions {
		r.rest = time.Duration(float64(period) / float64(limit.Count) * 3) // so the limit in all
	}
	var pace func()
	pace = func() {
		w.after(20*time.Millisecond, pace)
		if at := (w.now - w.began) % int64(2*period); at < int64(period+time.Second) {
			w.slower = 2
		} else {
			w.slower = 0.4
		}
	}
	w.after(0, pace)
	return w.run(w.began + int64(4*period))
}

// runRegionSubs runs a region whose owner hands over, while its leaseholders spend what they have leased at the last moment, and a home that
// spends all it has soon after: what the owner returns too early is too much then.
func runRegionSubs(seed uint64) *regionWorld {
	w := newRegionWorld(seed*8 + 6) // gentle
	limit := bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1000, Period: time.Second, Burst: 1000}
	limits, err := bucket.NewLimits(limit)
	if err != nil {
		panic(err)
	}
	w.limits, w.exact, w.fixed, w.queue = limits, newExact(limit), true, queue{}
	r, pause := w.regions[1], int64(0)
	r.far = between(w.rng, 5*time.Millisecond, 50*time.Millisecond)
	r.book = lease.NewRegionBook(2 * r.far)
	var ask, handOver func()
	ask = func() {
		w.after(between(w.rng, 0, 300*time.Millisecond), ask)
		part := &lease.Request{LeaseRequest: bucket.LeaseRequest{Key: regionKey, Limits: limits, Want: 1 + w.rng.Int64N(250), For: lease.MaxLife}, Rate: 250}
		if w.now < pause {
			return
		}
		if g, ok := w.grant(r, r.book, "1", part); ok && g.Units > 0 {
			w.after(g.For-1, func() { w.admit(g.Units, "a unit of a node's lease", r) })
		}
	}
	handOver = func() {
		w.after(between(w.rng, 500*time.Millisecond, 3*time.Second), handOver)
		w.returnHome(r, r.book.Drop(func(bucket.Key) bool { return false }))
		r.book, pause = lease.NewRegionBook(2*r.far), w.now+int64(200*time.Millisecond)
		w.after(between(w.rng, 0, 200*time.Millisecond), func() {
			q := w.request()
			for range 2 * limit.Burst {
				w.atTable(&q, "a check at home", w.regions[0])
			}
		})
	}
	w.after(0, ask)
	w.after(0, handOver)
	return w.run(w.began + int64(regionTime))
}

// TestRegionSeeds: whatever becomes of messages, owners and regions, no unit is spent beyond the limit. Without faults nearly all units are
// spent, and nearly all checks are answered inside their region.
func TestRegionSeeds(t *testing.T) {
	var admitted, room, asked, away int64
	least := 2.0
	crashes, handoffs, cuts, homes, lost := 0, 0, 0, 0, 0
	for i := range uint64(*seeds) {
		s := *from + i
		w := runRegions(s)
		if w.violation != nil {
			t.Fatalf("seed %d, %+v: %v", s, w.limits.At(0), w.violation)
		}
		crashes, handoffs, cuts, homes, lost = crashes+w.crashes, handoffs+w.handoffs, cuts+w.cuts, homes+w.homes, lost+w.lost
		if w.faults {
			continue
		}
		l := w.limits.At(0)
		can := int64(float64(l.Count) * float64(regionTime-regionWarmup) / float64(l.Period))
		admitted, room, asked, away = admitted+w.late, room+can, asked+w.asked, away+w.away
		if u := float64(w.late) / float64(can); u < least {
			least = u
			t.Logf("seed %d: %.3f of %v, %v and %v away", s, u, l.Algorithm, w.regions[1].far, w.regions[2].far)
		}
	}
	t.Logf("without faults %.3f of the units were spent, at least %.3f, and %.4f of the checks went to the home; with faults %d crashes, %d handoffs, %d cuts, %d changes of the home's owner, %d without its counter",
		float64(admitted)/float64(room), least, float64(away)/float64(asked), crashes, handoffs, cuts, homes, lost)
	if float64(admitted) < 0.95*float64(room) || crashes < *seeds || handoffs < *seeds || cuts < *seeds || homes < *seeds || lost < *seeds/16 {
		t.Error("too little of the limits is used, or not much has happened")
	}
}

// TestRegionSubs: nothing is returned of which others have a part.
func TestRegionSubs(t *testing.T) {
	for i := range uint64(min(*seeds/4, 30)) {
		if w := runRegionSubs(*from + i); w.violation != nil || w.admitted < 10_000 {
			t.Fatalf("seed %d: %d admitted, %v", *from+i, w.admitted, w.violation)
		}
	}
}

// TestRegionEdges: nothing of a window is spent in the next one.
func TestRegionEdges(t *testing.T) {
	for i := range uint64(min(*seeds/4, 100)) {
		if w := runRegionEdges(*from + i); w.violation != nil {
			t.Fatalf("seed %d: %v", *from+i, w.violation)
		} else if can := 4 * w.limits.At(0).Count; w.admitted < can*6/10 {
			t.Fatalf("seed %d: only %d of %d spent", *from+i, w.admitted, can)
		}
	}
}
