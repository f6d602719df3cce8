package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/message"
)

// simulated cluster is a cluster, its network and clients, and what is known of all of it.
type simCluster struct {
	rng   *rand.Rand
	now   int64 // ns since the run began
	queue queue
	net   network
	// cutSince is when each link was cut or healed last.
	cutSince [places][places]int64

	names       []string
	procs       []*process // who runs under each name, nil if nobody
	every       []*process // all that ever ran
	longestGate int64      // that was in force at a decision
	// weight places partitions on names.
	weight     [places][]uint64
	partitions int

	forgetAfter         time.Duration
	chunk, initialSyncs int
	// rest is handoff.Config.Rest: short where an initial sync takes many transfer batches, each of which rests.
	rest int
	// lone: the first process has no join targets. The first began processes found a set, with expect of them; others only join.
	lone          bool
	began, expect int
	// replicas is handoff.Config.Replicas by place.
	replicas [places]int
	// disk: voter sets are kept on disk, and disks has what there is by place. Writing takes up to fsync.
	disk  bool
	disks [places]message.Record
	fsync time.Duration
	// stepsBack: the clock of a name's next process may be behind that of its last one.
	stepsBack bool
	without   Without

	keys   []*key
	keysOf [][]*key
	brief  []*key // with windows that end
	shared []*key // that shares may answer
	// saved are the deferred charges on disk, by place.
	saved [places]savedCharges
	// rate is checks per second; 0 asks nothing.
	rate   int
	steady int // counts the streams of checks that were begun

	// What the run is held to. exact: every denial must be right. apart: several cluster IDs are
	// to be expected.
	bound        bound
	exact, apart bool
	// divided: there are two clusters that know nothing of each other; left says who is in which.
	divided bool
	left    [places]bool
	losses  []loss
	// outdated are partitions that were taken over with a replica of the last owner that this had replaced, or had not
	// brought up to date, or where forgets holds, or stops and the promise was forgotten, or where all that granted it are new.
	outdated uint64
	// estranged: somebody goes on in a set of its own, see outwaited.
	estranged bool
	// neighbours: an owner may lose quorum together with the only one that it still reaches, and to which it has moved its replicas.
	neighbours bool
	// forgets: the only voter crashes, so a takeover may not know what it lacks.
	forgets bool
	// stops: several processes may be stopped at once, and others restarted.
	stops bool
	// over: no more faults begin. coming are processes that will be started.
	over   bool
	coming int
	// healthySince is when checks began to be all decided; 0 as long as they need not be.
	healthySince int64

	histories map[chapter]*history
	chapters  []chapter // in order of their beginning
	sets      map[version][]string
	quorate   map[string]bool // cluster IDs in which somebody has had quorum
	idle      []time.Duration // for how long nobody could decide each partition
	violation *Violation
	story     *Story
	states    []handoff.State

	Counts
}

// Counts counts what happened in a run.
type Counts struct {
	Events, Asked, Decisions, Behind, Undecided, Handoffs, Claims, Torn, Unfinished int
	// Shares is how many checks shares have answered, SharesAdmitted how many of these were admitted, and SharesExcess the most that a key with
	// shares got beyond its limit and what owners lost. ChargesApplied and ChargesRestored are deferred charges.
	Shares, SharesAdmitted, ChargesApplied, ChargesRestored int
	SharesExcess                                            int64
	// Excess is the most that a key got beyond its limit.
	Excess int64
	// Gap is the longest time in which nobody could decide some partition.
	Gap time.Duration
	// Settled is how long after the last fault all was well again; Slowest how
	// long a check took to be decided, SlowestHealthy when all was well.
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
	// Small transfer batches make hand-offs of many steps. Where control messages get lost or overtake each other,
	// each costs a tenth of a second, so there transfer batches must be few.
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

// after calls do when d has passed.
func (w *simCluster) after(d time.Duration, do func()) {
	w.queue.push(event{at: w.now + int64(d), do: do})
}

// during calls do when d has passed, unless the time of faults is over by then.
func (w *simCluster) during(d time.Duration, do func()) {
	w.after(d, func() {
		if !w.over {
			do()
		}
	})
}

// pass lets d pass.
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

// passUntil lets time pass until done, at most limit, and reports whether it was.
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

// load begins a stream of checks, about w.rate a second; a later call ends it.
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

// running returns all processes that run and are not paused.
func (w *simCluster) running() []*process {
	var up []*process
	for _, p := range w.procs {
		if p != nil && !p.paused {
			up = append(up, p)
		}
	}
	return up
}

// place returns the place of a name.
func (w *simCluster) place(name string) int {
	for i, n := range w.names {
		if n == name {
			return i
		}
	}
	panic("sim: nobody is called " + name)
}

// healthy reports whether all was well since began.
func (w *simCluster) healthy(began int64) bool { return w.healthySince != 0 && began >= w.healthySince }
