package sim

import (
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
)

// profile is a kind of schedule.
type profile struct {
	name string
	// share is the percentage of seeds.
	share int
	// nodes draws the initial number of processes.
	nodes func(w *simCluster) int
	// begin, if set, injects faults while the processes start.
	begin func(w *simCluster)
	// play injects faults; the simulated cluster is settled before, and under load.
	play func(w *simCluster)
	// bound, exact and healthy are what the run must satisfy. exact: every denial must be right. healthy: all checks are
	// decided in time.
	bound          bound
	exact, healthy bool
	// divided: two separate clusters at the beginning.
	divided bool
	// replicas is the number that all processes want; 0 lets the seed choose.
	replicas int
	// shared: there are keys that shares may answer.
	shared bool
}

var profiles = []profile{
	{name: "planned", share: 6, nodes: upTo(1, 5), play: planned, bound: nothing, exact: true, healthy: true},
	{name: "isolated", share: 6, nodes: upTo(2, 5), play: isolated, bound: nothing, exact: true},
	{name: "crash", share: 8, nodes: upTo(2, 5), play: singleCrash, bound: oneByOne},
	{name: "moved", share: 6, nodes: upTo(3, 5), play: moved, bound: oneByOne},
	{name: "clock", share: 2, nodes: upTo(3, 5), play: clockBack, bound: oneByOne},
	{name: "pause", share: 8, nodes: upTo(2, 5), play: singlePause, bound: oneByOne},
	{name: "isolate", share: 7, nodes: upTo(2, 5), play: isolate, bound: oneByOne},
	{name: "sleepers", share: 3, nodes: upTo(4, 5), play: sleepers},
	{name: "disconnect", share: 5, nodes: upTo(3, 5), play: disconnectOneByOne},
	{name: "damage", share: 2, nodes: upTo(2, 4), play: damage, bound: nothing, exact: true},
	{name: "bridge", share: 4, nodes: upTo(4, 5), play: bridge, bound: oneByOne},
	{name: "forgotten", share: 2, nodes: upTo(3, 3), play: forgotten},
	{name: "links", share: 2, nodes: upTo(4, 6), play: links, bound: nothing, exact: true},
	{name: "pair", share: 5, nodes: upTo(3, 5), play: pair, bound: nothing, exact: true},
	{name: "halves", share: 5, nodes: upTo(3, 6), play: halves},
	{name: "linkwise", share: 4, nodes: upTo(3, 6), play: linkwise},
	{name: "meet", share: 3, nodes: upTo(2, 6), play: meet, divided: true},
	{name: "shrink", share: 3, nodes: upTo(4, 5), play: shrink, bound: oneByOne},
	{name: "far", share: 2, nodes: upTo(2, 4), play: far, bound: nothing, exact: true},
	{name: "found", share: 3, nodes: upTo(2, 5), begin: unquiet, play: founded},
	{name: "chaos", share: 6, nodes: upTo(3, 5), play: chaos},
	{name: "shares", share: 6, nodes: upTo(2, 5), play: sharesGiven, shared: true},
	{name: "two", share: 2, nodes: upTo(5, 5), play: two, replicas: 2, bound: oneByOne},
}

func upTo(low, high int) func(w *simCluster) int {
	return func(w *simCluster) int { return low + w.rng.IntN(high-low+1) }
}

// planned makes joins, leaves, restarts and false deaths in gossip.
func planned(w *simCluster) {
	for range 3 + w.rng.IntN(5) {
		w.pass(between(w.rng, 50*time.Millisecond, 2500*time.Millisecond))
		w.change()
	}
}

// change makes one planned change.
func (w *simCluster) change() {
	serving := w.serving()
	switch w.rng.IntN(6) {
	case 0, 1:
		if i := w.vacant(7); i >= 0 {
			w.start(i, w.wrongClock())
		}
	case 2:
		if len(serving) > 1 {
			w.leave(serving[w.rng.IntN(len(serving))])
		}
	case 3, 4:
		if len(serving) > 1 {
			w.renew(serving[w.rng.IntN(len(serving))])
		}
	case 5:
		if p := w.victim(); p != nil {
			w.hide(p, between(w.rng, 100*time.Millisecond, 3*time.Second))
		}
	}
}

// renew makes p leave and starts its name again.
func (w *simCluster) renew(p *process) {
	place := p.place
	w.leave(p)
	w.coming++
	var again func()
	again = func() {
		switch {
		case w.procs[place] == nil:
			w.coming--
			w.start(place, w.wrongClock())
		case w.procs[place] == p:
			w.after(100*time.Millisecond, again)
		default:
			w.coming-- // another process has started under this name
		}
	}
	w.after(100*time.Millisecond, again)
}

// staffed reports whether no process is about to start, join, leave or resume.
func (w *simCluster) staffed() bool {
	for _, p := range w.procs {
		if p != nil && (p.paused || !p.joined || p.state == member.Leaving) {
			return false
		}
	}
	return w.coming == 0
}

// isolated makes planned changes while messages of some types are lost.
func isolated(w *simCluster) {
	for range 2 + w.rng.IntN(4) {
		if w.rng.IntN(3) > 0 {
			w.unwant(between(w.rng, 300*time.Millisecond, 3*time.Second))
		}
		w.pass(between(w.rng, 10*time.Millisecond, 300*time.Millisecond))
		w.change()
		w.pass(between(w.rng, 50*time.Millisecond, 2*time.Second))
	}
	w.net.unwanted = nil
}

// singleCrash crashes one process, which may restart under its name.
func singleCrash(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	p := w.victim()
	w.lose(p)
	switch back := w.rng.IntN(3); {
	case back == 0 && len(w.running()) > 2:
		w.crash(p)
	case back == 1:
		w.restart(p, between(w.rng, 10*time.Millisecond, time.Second))
	default:
		w.restart(p, between(w.rng, time.Second, 5*time.Second))
	}
	w.pass(between(w.rng, time.Second, 6*time.Second))
}

// two loses two processes at once: a partition's owner and one of its replica nodes, while the other replica node hears the
// owner late.
func two(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	if !w.settle("two replicas", int64(5*time.Second)) {
		return
	}
	part := w.rng.IntN(w.partitions)
	var owner *process
	for _, p := range w.running() {
		if p.handoff.Owns(part) {
			owner = p
		}
	}
	var replicas []*process
	for _, p := range w.running() {
		if p != owner && w.hasCopy(p, owner, part, false) {
			replicas = append(replicas, p)
		}
	}
	w.rng.Shuffle(len(replicas), func(i, j int) { replicas[i], replicas[j] = replicas[j], replicas[i] })
	lost, left := replicas[0], replicas[1]
	struck := []*process{owner, lost}
	if w.rng.IntN(2) == 0 {
		w.part(owner.place, left.place, both, true)
		w.pass(between(w.rng, 10*time.Millisecond, 350*time.Millisecond))
	}
	if slices.ContainsFunc(w.running(), func(p *process) bool { return p.handoff.Stats().BelowReplicas > 0 }) {
		struck = struck[:1] // a replica is missing, so only one loss is allowed
	}
	for _, p := range struck {
		w.lose(p)
	}
	for _, p := range struck {
		if w.rng.IntN(2) == 0 {
			w.crash(p)
		} else {
			w.restart(p, between(w.rng, 10*time.Millisecond, 5*time.Second))
		}
	}
	w.part(owner.place, left.place, both, false)
	w.pass(between(w.rng, time.Second, 6*time.Second))
}

// moved loses one process, by a crash or a pause, during handoffs.
func moved(w *simCluster) {
	for range 1 + w.rng.IntN(3) {
		w.pass(between(w.rng, 50*time.Millisecond, 1500*time.Millisecond))
		w.change()
	}
	w.pass(between(w.rng, time.Millisecond, 800*time.Millisecond))
	p := w.victim()
	w.lose(p)
	switch w.rng.IntN(3) {
	case 0:
		w.restart(p, between(w.rng, 10*time.Millisecond, 3*time.Second))
	case 1:
		// While the only one that knows the set is paused, others that start may found a second one, see
		// the excluded cases in docs/internals/protocol.md.
		if d := between(w.rng, 300*time.Millisecond, 4*time.Second); w.othersKnowSet(p) {
			w.pause(p, d)
		}
	default:
		if w.mayLose() {
			w.crash(p)
		} else {
			w.restart(p, time.Second)
		}
	}
	w.pass(between(w.rng, time.Second, 4*time.Second))
}

// othersKnowSet reports whether a process besides p knows a set and stays.
func (w *simCluster) othersKnowSet(p *process) bool {
	return slices.ContainsFunc(w.running(), func(q *process) bool {
		return q != p && !q.set.Zero() && q.state != member.Leaving
	})
}

// clockBack restarts a process with a clock that may be behind.
func clockBack(w *simCluster) {
	w.stepsBack = true
	singleCrash(w)
}

// singlePause pauses one process.
func singlePause(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	p := w.victim()
	w.lose(p)
	w.stopLoadSometimes()
	d := between(w.rng, 20*time.Millisecond, 1200*time.Millisecond)
	if w.rng.IntN(2) == 0 {
		d = between(w.rng, 500*time.Millisecond, 6*time.Second)
	}
	w.pause(p, d)
	w.pass(d + between(w.rng, 10*time.Millisecond, time.Second))
}

// isolate isolates one process, in one direction or both.
func isolate(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	p := w.victim()
	w.lose(p)
	w.stopLoadSometimes()
	how := way(w.rng.IntN(3))
	w.split([]int{p.place}, how, true)
	w.pass(between(w.rng, 30*time.Millisecond, 5*time.Second))
	w.split([]int{p.place}, how, false)
}

// stopLoadSometimes stops the load in a third of the runs until all is settled again, so that the units spent by a divergent
// copy are visible once merged.
func (w *simCluster) stopLoadSometimes() {
	if w.rng.IntN(3) == 0 {
		w.unload()
	}
}

// disconnectOneByOne cuts one process off from the others one by one.
func disconnectOneByOne(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	p := w.victim()
	w.lose(p)
	others := w.running()
	w.rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	how := way(w.rng.IntN(3))
	for _, q := range others {
		if q != p {
			w.part(p.place, q.place, how, true)
			w.pass(between(w.rng, 10*time.Millisecond, 700*time.Millisecond))
		}
	}
	w.pass(between(w.rng, 10*time.Millisecond, 3*time.Second))
}

// damage makes planned changes on a network that sometimes delivers outdated counters. Handed-over state must be right all the
// same.
func damage(w *simCluster) {
	w.net.damage = 20 + w.rng.IntN(200)
	for range 3 + w.rng.IntN(4) {
		w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
		serving := w.serving()
		switch i := w.vacant(6); {
		case i >= 0 && w.rng.IntN(2) == 0:
			w.start(i, w.wrongClock())
		case len(serving) > 1:
			w.renew(serving[w.rng.IntN(len(serving))])
		}
	}
}

// pair cuts the link between two processes that the others reach, during planned changes.
func pair(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	up := w.running()
	a := w.rng.IntN(len(up))
	b := (a + 1 + w.rng.IntN(len(up)-1)) % len(up)
	how := way(w.rng.IntN(3))
	w.part(up[a].place, up[b].place, how, true)
	w.pass(between(w.rng, 30*time.Millisecond, 4*time.Second))
	if w.rng.IntN(2) == 0 {
		w.change()
		w.pass(between(w.rng, 30*time.Millisecond, 2*time.Second))
	}
	w.part(up[a].place, up[b].place, how, false)
}
