package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// Leases of one key, without the ownership protocol: nodes lease from the owner over a network that delays, loses and
// duplicates, while owners hand off and crash, and leaseholders crash and pause. So do clients, with leases of package lease. Callers
// reserve units and settle them, again and again, or never. Every spent unit is checked against an exact
// account of the limit at that moment (I2), and every grant against a book (I4).

// LeaseOptions select a run.
type LeaseOptions struct {
	Seed uint64
	// Faults to inject. Unconfirmed: the replica does not get grants. FromAnswer: leaseholders count the lifetime from the
	// answer on. Careless: leaseholders ignore the end of leases.
	Unconfirmed, FromAnswer, Careless bool
	// Unaudited: grants are not compared with the owner's ledger.
	Unaudited bool
	// ClientsOnly: nodes have no leases, and make no reservations.
	ClientsOnly bool
	// sleep is time.Sleep in the bubble of the run, whose clock package lease reads. start starts clients.
	sleep func(time.Duration)
	start func(*leaseSimCluster)
}

// LeaseResult is the result of a run.
type LeaseResult struct {
	LeaseOptions
	Limit     bucket.Limit
	Violation *Violation
	// Admitted are all units spent, Leased those spent from leases.
	Admitted, Leased int64
	// Granted = spent + Returned + expired or lost.
	Grants                  int
	Granted, Returned       int64
	Handoffs, Crashes, Late int
	Reservations            int
	Extended, ClientLeases  int
}

// leaseLimits are the limits to test, each with the longest lifetime of a lease.
var leaseLimits = []struct {
	limit bucket.Limit
	ttl   time.Duration
}{
	{bucket.Limit{Algorithm: bucket.TokenBucket, Count: 200, Period: time.Second, Burst: 100}, 200 * time.Millisecond},
	{bucket.Limit{Algorithm: bucket.LeakyBucket, Count: 60, Period: time.Second, Burst: 40}, 300 * time.Millisecond},
	{bucket.Limit{Algorithm: bucket.TokenBucket, Count: 100, Period: 500 * time.Millisecond, Burst: 150, Refill: bucket.RefillInterval}, 200 * time.Millisecond},
	{bucket.Limit{Algorithm: bucket.FixedWindow, Count: 150, Period: time.Second}, 200 * time.Millisecond},
	{bucket.Limit{Algorithm: bucket.SlidingCounter, Count: 150, Period: time.Second}, 200 * time.Millisecond},
	{bucket.Limit{Algorithm: bucket.SlidingLog, Count: 400, Period: 4 * time.Second}, 100 * time.Millisecond},
	{bucket.Limit{Algorithm: bucket.SlidingWindow, Count: 400, Period: 4 * time.Second, SubWindows: 40}, 100 * time.Millisecond},
}

// leaseTime is the simulated duration of a run.
const leaseTime = 12 * time.Second

// leaseSimCluster is the state of a run.
type leaseSimCluster struct {
	LeaseResult
	rng    *rand.Rand
	queue  queue
	began  int64
	now    int64
	slept  int64 // the time up to which sleep was called, and eager if that is before each event
	eager  bool
	ttl    time.Duration
	limits *bucket.Limits
	exact  exact
	nodes  []*leaseNode
	// owner decides, nil during a change of owner. replica has everything that it has confirmed.
	owner, replica *leaseNode
	// next is the next owner in a handoff.
	next         *leaseNode
	book         []*granted
	lose, double int // ‰
	// lastReservation is the ID of the last reservation.
	lastReservation uint64
	// healthy: there is much demand and no loss or crash, so that almost all granted units are spent.
	healthy bool
}

// leaseNode is a node: a leaseholder, and possibly owner or replica.
type leaseNode struct {
	place int
	up    bool
	boot  int
	// ahead is its clock error (ns).
	ahead  int64
	table  *bucket.Table
	paused int64
	// bursts: it makes its checks just before its leases end.
	bursts bool
	// rest is the mean time between two checks.
	rest   time.Duration
	leases []*nodeLease
	// needed: it has the only copy until there is an owner again.
	needed bool
	// asking is when the pending lease request was sent, or 0.
	asking int64
}

// RunLeases runs the schedule of one seed.
func RunLeases(o LeaseOptions) LeaseResult {
	kind := leaseLimits[o.Seed%uint64(len(leaseLimits))]
	w := newLeaseSimCluster(o, kind.limit, kind.ttl)
	w.exact = newExact(kind.limit)
	for _, p := range w.nodes {
		w.after(0, func() { w.demand(p) })
	}
	w.after(between(w.rng, 0, time.Second), w.fault)
	w.start(w)
	w.run(w.began + int64(leaseTime))
	w.closeBook()
	return w.LeaseResult
}

// newLeaseSimCluster makes the nodes of a run, with leases of at most ttl.
func newLeaseSimCluster(o LeaseOptions, limit bucket.Limit, ttl time.Duration) *leaseSimCluster {
	w := &leaseSimCluster{LeaseResult: LeaseResult{LeaseOptions: o, Limit: limit}, rng: rand.New(rand.NewPCG(o.Seed, 2))}
	w.ttl = between(w.rng, ttl/10, ttl)
	w.healthy = o.Seed/uint64(len(leaseLimits))%2 == 1
	limits, err := bucket.NewLimits(limit)
	if err != nil {
		panic(fmt.Sprintf("sim: limits of a lease: %v", err)) // constants
	}
	w.limits = limits
	w.began = 1_700_000_000_000_000_000 + w.rng.Int64N(int64(time.Hour))
	w.now, w.slept = w.began, w.began
	if w.healthy {
		w.ttl = ttl
	} else {
		w.lose, w.double = w.rng.IntN(60), w.rng.IntN(60)
	}
	for place := range 3 + w.rng.IntN(3) {
		p := &leaseNode{place: place, up: true, rest: between(w.rng, time.Millisecond, 20*time.Millisecond), table: w.newTable()}
		if !readsClock(limit) {
			p.ahead = int64(between(w.rng, -time.Hour, time.Hour)) // its windows do not depend on the clock
		}
		if w.healthy {
			p.bursts, p.rest = w.rng.IntN(2) == 0, between(w.rng, time.Millisecond, 4*time.Millisecond)
		}
		w.nodes = append(w.nodes, p)
	}
	w.owner, w.replica = w.nodes[0], w.nodes[1]
	w.owner.table.Record(0, bucket.RecordAll, 0)
	w.replica.replica()
	return w
}

// run lets everything happen until a time, or a violation.
func (w *leaseSimCluster) run(until int64) {
	for w.Violation == nil && w.now < until {
		e, ok := w.queue.pop()
		if !ok {
			break
		}
		if w.now = e.at; w.eager {
			w.sync()
		}
		e.do()
	}
}

func (w *leaseSimCluster) newTable() *bucket.Table {
	t, err := bucket.NewTable(bucket.Config{Shards: 1, MaxEntries: 4096})
	if err != nil {
		panic(fmt.Sprintf("sim: table of a lease: %v", err)) // constants
	}
	return t
}

func (w *leaseSimCluster) after(d time.Duration, do func()) {
	w.queue.push(event{at: w.now + int64(d), do: do})
}

func (w *leaseSimCluster) fail(invariant, format string, args ...any) {
	if w.Violation == nil {
		w.Violation = &Violation{invariant, general, time.Duration(w.now - w.began), fmt.Sprintf(format, args...)}
	}
}

// sync brings the clock of the bubble to the time of the run.
func (w *leaseSimCluster) sync() {
	w.sleep(time.Duration(w.now - w.slept))
	w.slept = w.now
}

// send calls do when a message arrives; the network may lose or duplicate it.
func (w *leaseSimCluster) send(do func()) {
	times := 1
	switch n := w.rng.IntN(1000); {
	case n < w.lose:
		return
	case n < w.lose+w.double:
		times = 2
	}
	for range times {
		d := between(w.rng, 50*time.Microsecond, 5*time.Millisecond)
		if w.rng.IntN(50) == 0 {
			d = between(w.rng, 0, 2*w.ttl)
		}
		w.after(d, do)
	}
}

// admit records that a unit was spent now.
func (w *leaseSimCluster) admit(how string, p *leaseNode) {
	w.Admitted++
	if !w.exact.admit(w.now) {
		w.fail("I2", "%s of node %d is one more than the limit alone would admit", how, p.place)
	}
}

// readsClock reports whether the decisions of l depend on absolute time.
func readsClock(l bucket.Limit) bool {
	return l.Algorithm == bucket.FixedWindow || l.Algorithm == bucket.SlidingCounter ||
		l.Algorithm == bucket.SlidingWindow || l.Refill == bucket.RefillInterval
}

// exact is a naive model of one limit: it counts units when they are spent.
type exact interface {
	// admit spends a unit at a time not before the last one, and reports whether the limit alone would admit it.
	admit(at int64) bool
}

// newExact returns the model of l, whose windows and steps are aligned to the epoch.
func newExact(l bucket.Limit) exact {
	burst := l.Count
	if l.Burst > 0 {
		burst = l.Burst
	}
	period := int64(l.Period)
	switch {
	case l.Refill == bucket.RefillInterval:
		return &exactSteps{count: l.Count, burst: burst, period: period}
	case l.Algorithm == bucket.TokenBucket, l.Algorithm == bucket.LeakyBucket:
		return &exactFlow{count: l.Count, most: burst * period, period: period, at: math.MinInt64}
	case l.Algorithm == bucket.SlidingLog:
		return &exactLog{count: l.Count, grain: 1, span: period}
	case l.Algorithm == bucket.SlidingWindow:
		n := int64(l.SubWindows)
		return &exactLog{count: l.Count, grain: (period-1)/n + 1, span: n + 1}
	case l.Algorithm == bucket.SlidingCounter:
		return &exactWindows{count: l.Count, period: period, weighted: true}
	}
	return &exactWindows{count: l.Count, period: period}
}

// exactFlow is a level, in units × period, that drains count per nanosecond.
type exactFlow struct{ count, most, period, level, at int64 }

func (e *exactFlow) admit(at int64) bool {
	if e.level > 0 {
		e.level = max(0, e.level-(at-e.at)*e.count)
	}
	e.level, e.at = e.level+e.period, at
	return e.level <= e.most
}

// exactSteps is a level that drains count at every multiple of the period.
type exactSteps struct{ count, burst, period, level, step int64 }

func (e *exactSteps) admit(at int64) bool {
	step := at / e.period
	if e.level > 0 {
		e.level = max(0, e.level-(step-e.step)*e.count)
	}
	e.level, e.step = e.level+1, step
	return e.level <= e.burst
}

// exactLog has the grain of every unit that still counts.
type exactLog struct {
	count, grain, span int64
	grains             []int64
}

func (e *exactLog) admit(at int64) bool {
	g := at / e.grain
	for len(e.grains) > 0 && g-e.grains[0] >= e.span {
		e.grains = e.grains[1:]
	}
	e.grains = append(e.grains, g)
	return int64(len(e.grains)) <= e.count
}

// exactWindows counts in windows; if weighted, with the weighted previous one.
type exactWindows struct {
	count, period int64
	weighted      bool
	window        int64
	spent, before int64
}

func (e *exactWindows) admit(at int64) bool {
	window := at / e.period
	switch window - e.window {
	case 0:
	case 1:
		e.spent, e.before = 0, e.spent
	default:
		e.spent, e.before = 0, 0
	}
	e.window = window
	e.spent++
	used := e.spent
	if e.weighted {
		used += e.before * (e.period - at%e.period) / e.period
	}
	return used <= e.count
}
