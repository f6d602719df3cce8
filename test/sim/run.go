// Package sim runs whole clusters of cluster/quorum and cluster/handoff machines, each over a real bucket.Table, through seeded
// schedules of faults, and judges every decision against an omniscient model.
//
// A run is one goroutine and one seed: virtual time, an event queue, a network that delays, loses, duplicates and cuts,
// processes that crash, pause and restart, and simulated gossip that may be late and wrong. The same seed gives the same run,
// so a failure is reproduced by its seed:
//
//	go run ./test/scenario sim -args -seeds 100000
//	go test ./test/sim -run TestSeed$ -v -args -seed 4711 -lines 300
//
// What a process does around its machines (when it serves, how it leaves, how a check finds its owner) is implemented here as
// in the node. Snapshots of counters, relays and give-backs are left out. sharing.go adds keys that processes answer without
// their owners, by cluster/share. Leases have separate runs without the machines, RunLeases.
//
// profile.go and chaos.go have the kinds of schedules; excess.go bounds over-admission, sharing_judged.go what shares may
// admit; judging.go, term.go and excess.go have the other invariants.
package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

// Options select a run.
type Options struct {
	Seed uint64
	// Profile is the kind of schedule; empty lets the seed choose.
	Profile string
	// Told records a trace of the run.
	Told    bool
	Without Without
}

// Result is the result of a run.
type Result struct {
	Options
	Nodes, Partitions int
	// Lasted is the simulated time.
	Lasted    time.Duration
	Violation *Violation
	Trace     *Trace
	Counts
}

const (
	// settleTime is how long after the last fault the cluster must be settled (I7), once gossip shows the truth.
	settleTime = 5 * time.Second
	settleStep = 50 * time.Millisecond
)

// Run runs the schedule of one seed.
func Run(o Options) Result {
	w := newSimCluster(o.Seed)
	w.without = o.Without
	if o.Told {
		w.trace = new(Trace)
	}
	f := choose(w.rng, &o)
	n := f.nodes(w)
	w.began = n
	w.expect = n/2 + 1 + w.rng.IntN(n-n/2)
	for i := range places {
		w.replicas[i] = max(1, f.replicas)
		if o.Seed%3 == 0 && (o.Seed%2 == 0 || i%2 == 0) { // of every six seeds one has two replicas everywhere, and one in some places
			w.replicas[i] = 2
		}
	}
	w.bound, w.exact = f.bound, f.exact
	if f.name == "shrink" || f.name == "chaos" && w.rng.IntN(4) == 0 {
		w.forgetAfter = between(w.rng, time.Second, 3*time.Second)
	}
	w.keys = newKeys(w.rng, w.partitions, int64(w.rate)*12/int64(w.partitions*3))
	w.brief = newBriefKeys(w.rng, w.partitions)
	if f.shared {
		w.shared = newSharedKeys(w.rng, w.partitions)
	}
	w.keysOf = make([][]*key, w.partitions)
	for _, k := range w.keys {
		w.keysOf[k.partition] = append(w.keysOf[k.partition], k)
	}
	if f.divided {
		w.divide(n)
	}
	if w.disk {
		w.tell(general, "voter sets are on disk, which takes up to %v", w.fsync)
	}
	w.tell(general, "%d found a set, seed %d, %s, %d nodes, %d partitions, %d checks/s, network %d‰ lost %d‰ doubled %d‰ late, in order %v",
		w.expect, o.Seed, f.name, n, w.partitions, w.rate, w.net.lose, w.net.double, w.net.late, w.net.fifo)
	w.guarded(func() { w.play(f, n) })
	return Result{Options: o, Nodes: n, Partitions: w.partitions, Lasted: time.Duration(w.now), Violation: w.violation, Trace: w.trace, Counts: w.Counts}
}

// guarded turns a panic in f into a violation, so that its seed is reported.
func (w *simCluster) guarded(f func()) {
	defer func() {
		if x := recover(); x != nil {
			w.fail("panic", general, "%v\n%s", x, debug.Stack())
		}
	}()
	f()
}

// choose returns the profile of a run, and sets its name in o.
func choose(r *rand.Rand, o *Options) *profile {
	drawn := r.IntN(100)
	for i := range profiles {
		f := &profiles[i]
		if o.Profile == "" && drawn < f.share || o.Profile == f.name {
			o.Profile = f.name
			return f
		}
		drawn -= f.share
	}
	panic(fmt.Sprintf("sim: no profile %q", o.Profile))
}

// play runs a cluster through start, load, faults, healing and judging.
func (w *simCluster) play(f *profile, n int) {
	for place := range n {
		w.after(time.Duration(place)*time.Duration(w.rng.Int64N(int64(200*time.Millisecond))), func() {
			w.start(place, w.wrongClock())
		})
	}
	w.pass(time.Second)
	if f.begin != nil {
		f.begin(w)
	}
	if !w.settle("start", int64(25*time.Second)) {
		return
	}
	w.tell(general, "the cluster has settled")
	if f.healthy {
		w.healthySince = w.now
	}
	w.load()
	if w.shared != nil {
		w.loadShared()
	}
	w.idle = make([]time.Duration, w.partitions)
	w.sample()
	f.play(w)
	w.heal()
	if !w.passUntil(20*time.Second, w.staffed) {
		w.fail("liveness", general, "20 s after the last fault, somebody is still about to come, to leave or to go on")
	}
	if !w.passUntil(10*time.Second, w.informed) {
		w.fail("gossip", general, "gossip does not show the truth")
	}
	if w.stranded() {
		w.tell(general, "who is left is no majority of the set, for good")
		return
	}
	healed := w.now
	if !w.settle("I7", int64(settleTime)) {
		return
	}
	w.Settled = time.Duration(w.now - healed)
	w.judgeEnd()
	if w.healthySince == 0 {
		w.healthySince = w.now
	}
	w.load()
	w.pass(time.Second)
	w.unload()
	if w.shared != nil {
		w.pass(wakeGrace + 2*checkTimeout + 4*settlePeriod)
		w.judgeCharged()
	}
	w.exhaust()
	w.pass(2 * time.Second)
	// A damaged copy is found when it is to be handed off.
	if why := w.unsettled(f.name != "damage"); why != "" {
		w.fail("I7", general, "after all was settled, and nobody asked any more: %s", why)
	}
	w.judgeEnd()
}

// exhaust makes checks until every key is at its limit, and a few more.
func (w *simCluster) exhaust() {
	for _, k := range w.keys {
		left := int64(3)
		if a := k.newest(); a != nil && !w.apart {
			left += max(0, k.limit-int64(len(a.charges)))
		} else {
			left += k.limit
		}
		for range left {
			w.after(time.Duration(w.rng.Int64N(int64(300*time.Millisecond))), func() {
				if p := w.someone(); p != nil {
					w.ask(p, k)
				}
			})
		}
	}
	w.pass(500 * time.Millisecond)
}

// newest returns the latest account, nil if there is none.
func (k *key) newest() *account {
	if len(k.accounts) == 0 {
		return nil
	}
	return k.accounts[len(k.accounts)-1]
}

// Without disables guards, to show the purpose of each.
type Without struct {
	// quorum: decide without quorum. seal: ignore the seal; the assigned owner decides. gate: no gate.
	quorum, seal, gate bool
	// expect: every process founds a set by itself. disk: the set is written every 10 s, and acknowledged before. proof: no
	// process reports its lack of quorum.
	expect, disk, proof bool
	// early: a process that has just started may give shares. grace: it does not wait for its peers when it wakes. saved:
	// deferred charges on disk are not read. voters: a share is the whole remainder.
	early, grace, saved, voters bool
}
