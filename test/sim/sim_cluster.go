package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/message"
)

// simCluster is a cluster with its network and clients, and the model's data.
type simCluster struct {
	rng   *rand.Rand
	now   int64 // ns since the run began
	queue queue
	net   network
	// cutSince is when each link was last cut or healed.
	cutSince [places][places]int64

	names       []string
	procs       []*process // the process of each name, nil if none
	every       []*process // all that ever ran
	longestGate int64      // longest in force at a decision
	// weight places partitions on names.
	weight     [places][]uint64
	partitions int

	forgetAfter         time.Duration
	chunk, initialSyncs int
	// rest is handoff.Config.Rest: small where an initial sync takes many transfer batches.
	rest int
	// lone: the first process has no join targets. The first began processes found a set, with Expect expect; others only join.
	lone          bool
	began, expect int
	// replicas is handoff.Config.Replicas by place.
	replicas [places]int
	// disk: voter sets are stored in disks, by place. A write takes up to fsync.
	disk  bool
	disks [places]message.Record
	fsync time.Duration
	// stepsBack: the clock of a restarted name may be behind.
	stepsBack bool
	without   Without

	keys   []*key
	keysOf [][]*key
	brief  []*key // with windows that end
	shared []*key // that shares may answer
	// saved are the deferred charges on disk, by place.
	saved [places]savedCharges
	// rate is checks per second.
	rate   int
	steady int // number of the current stream of checks

	// What the run must satisfy. exact: every denial must be right. apart: several cluster IDs are expected.
	bound        bound
	exact, apart bool
	// divided: two separate clusters; left selects one of them.
	divided bool
	left    [places]bool
	losses  []loss
	// outdated are partitions taken over from a replica that the last owner had replaced or not updated, or in a way that
	// allows for loss: forgets, a forgotten promise, or only new granters.
	outdated uint64
	// estranged: a process continues in a set of its own; see outwaited.
	estranged bool
	// neighbours: an owner may lose quorum together with the only node that it reaches, which has its replicas.
	neighbours bool
	// forgets: the only voter crashes, so a takeover may not know what it lacks.
	forgets bool
	// stops: several processes may be stopped at once, and others restarted.
	stops bool
	// over: no more faults begin. coming is the number of processes to be started.
	over   bool
	coming int
	// healthySince is since when all checks must be decided in time; 0 if they need not be.
	healthySince int64

	histories map[chapter]*history
	chapters  []chapter // in order of creation
	sets      map[version][]string
	quorate   map[string]bool // cluster IDs that have had quorum
	idle      []time.Duration // for how long each partition has had no decider
	violation *Violation
	trace     *Trace
	states    []handoff.State

	Counts
}

// Counts counts events of a run.
type Counts struct {
	Events, Asked, Decisions, Behind, Undecided, Handoffs, Claims, Torn, Unfinished int
	// Shares is the number of checks answered by shares, SharesAdmitted those admitted, SharesExcess the largest excess of a
	// shared key beyond its limit and lost counts. ChargesApplied and ChargesRestored count deferred charges.
	Shares, SharesAdmitted, ChargesApplied, ChargesRestored int
	SharesExcess                                            int64
	// Excess is the largest excess of a key beyond its limit.
	Excess int64
	// Gap is the longest time in which some partition had no decider.
	Gap time.Duration
	// Settled is the time from the last fault until settled. Slowest is the longest duration of a check, SlowestHealthy while
	// healthy.
	Settled, Slowest, SlowestHealthy time.Duration
}

func newSimCluster(seed uint64) *simCluster {
	w := &simCluster{
		rng:       rand.New(rand.NewPCG(seed, 1)),
		histories: map[chapter]*history{},
		sets:      map[version][]string{},
		quorate:   map[string]bool{},
	}
	w.net = newNetwork(w.rng)
	w.partitions = 3 + w.rng.IntN(6)
	for i := range places {
		w.names = append(w.names, fmt.Sprintf("n%d", i))
		w.weight[i] = make([]uint64, w.partitions)
		for p := range w.partitions {
			w.weight[i][p] = w.rng.Uint64()
		}
	}
	w.procs = make([]*process, places)
	// Small transfer batches make handoffs of many steps. On a lossy or reordering network each loss costs 0.1 s, so batches
	// must be few.
	w.chunk, w.rest = []int{2, 16, 512}[w.rng.IntN(3)], 9
	if w.chunk == 2 {
		w.rest = 1
	}
	if !w.net.fifo || w.net.lose > 0 {
		w.chunk, w.rest = 512, 9
	}
	w.initialSyncs = []int{1, 3, 16}[w.rng.IntN(3)]
	w.lone = w.rng.IntN(3) == 0
	w.disk, w.fsync = w.rng.IntN(2) == 0, between(w.rng, time.Millisecond, 100*time.Millisecond)
	w.rate = []int{40, 120, 300}[w.rng.IntN(3)]
	return w
}

// between draws a duration from low up to high.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// after calls do after d.
func (w *simCluster) after(d time.Duration, do func()) {
	w.queue.push(event{at: w.now + int64(d), do: do})
}

// during calls do after d, unless faults have ended by then.
func (w *simCluster) during(d time.Duration, do func()) {
	w.after(d, func() {
		if !w.over {
			do()
		}
	})
}

// pass runs the simulation for d.
func (w *simCluster) pass(d time.Duration) {
	end := w.now + int64(d)
	for w.violation == nil && len(w.queue.events) > 0 && w.queue.events[0].at <= end {
		e, _ := w.queue.pop()
		w.now = e.at
		w.Events++
		if e.transferBatch != nil {
			w.deliver(e.transferBatch)
		} else {
			e.do()
		}
	}
	w.now = end
}

// passUntil runs the simulation until done, at most for limit, and reports whether done was reached.
func (w *simCluster) passUntil(limit time.Duration, done func() bool) bool {
	for end := w.now + int64(limit); w.violation == nil; w.pass(50 * time.Millisecond) {
		if done() {
			return true
		}
		if w.now >= end {
			break
		}
	}
	return false
}

// load starts a stream of about w.rate checks per second, replacing the previous one.
func (w *simCluster) load() {
	w.steady++
	stream := w.steady
	var next func()
	next = func() {
		if stream != w.steady {
			return
		}
		if p := w.someone(); p != nil {
			k := w.someKey()
			w.ask(p, k)
			if w.rng.IntN(30) == 0 { // a burst
				for range w.rng.IntN(12) {
					w.after(time.Duration(w.rng.Int64N(int64(15*time.Millisecond))), func() {
						if p := w.someone(); p != nil {
							w.ask(p, k)
						}
					})
				}
			}
		}
		w.after(time.Duration(w.rng.ExpFloat64()/float64(w.rate)*float64(time.Second)), next)
	}
	w.after(0, next)
}

// unload ends the stream of checks.
func (w *simCluster) unload() { w.steady++ }

// someone draws a process that clients can reach, nil if there is none.
func (w *simCluster) someone() *process {
	up := w.running()
	if len(up) == 0 {
		return nil
	}
	return up[w.rng.IntN(len(up))]
}

// running returns all running processes that are not paused.
func (w *simCluster) running() []*process {
	var up []*process
	for _, p := range w.procs {
		if p != nil && !p.paused {
			up = append(up, p)
		}
	}
	return up
}

// place returns the index of a name.
func (w *simCluster) place(name string) int {
	for i, n := range w.names {
		if n == name {
			return i
		}
	}
	panic("sim: nobody is called " + name)
}

// healthy reports whether the cluster was healthy since began.
func (w *simCluster) healthy(began int64) bool { return w.healthySince != 0 && began >= w.healthySince }
