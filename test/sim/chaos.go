package sim

import (
	"time"

	"github.com/sluicecluster/sluice/internal/member"
)

// halves splits the cluster in two groups, once or several times.
func halves(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	group := w.someGroup()
	how := way(w.rng.IntN(3))
	for range 1 + w.rng.IntN(4) {
		w.split(group, how, true)
		w.pass(between(w.rng, 30*time.Millisecond, 3*time.Second))
		w.split(group, how, false)
		w.pass(between(w.rng, 20*time.Millisecond, 1500*time.Millisecond))
	}
}

// someGroup draws a non-empty proper subset of the running names.
func (w *simCluster) someGroup() []int {
	var group []int
	up := w.running()
	for _, p := range up {
		if w.rng.IntN(2) == 0 {
			group = append(group, p.place)
		}
	}
	if len(group) == 0 || len(group) == len(up) {
		return []int{up[w.rng.IntN(len(up))].place}
	}
	return group
}

// shrink crashes one process after the other, each once the previous one has been voted out.
func shrink(w *simCluster) {
	for len(w.running()) > 2 {
		w.pass(between(w.rng, 100*time.Millisecond, time.Second))
		p := w.victim()
		w.lose(p)
		w.crash(p)
		gone := func() bool {
			for _, q := range w.running() {
				if q.quorum.Set().Has(p.self.Name) {
					return false
				}
			}
			return w.unsettled(false) == ""
		}
		if !w.passUntil(15*time.Second, gone) {
			w.fail("shrink", general, "%s crashed, and is still in a set: %s", p, w.unsettled(false))
			return
		}
	}
}

// divide splits the first n names into two clusters that cannot reach each other.
func (w *simCluster) divide(n int) {
	w.apart, w.divided = true, true
	var group []int
	for place := range n {
		if place == 0 || place < n-1 && w.rng.IntN(2) == 0 {
			group = append(group, place)
			w.left[place] = true
		}
	}
	w.split(group, both, true)
}

// meet lets two clusters find each other: one voter set dissolves, and no count of either is lost. In some runs a process
// crashes later: then the next owners must continue from its replicas, not from the state of the dissolved set.
func meet(w *simCluster) {
	w.pass(between(w.rng, 500*time.Millisecond, 3*time.Second))
	if w.rng.IntN(2) == 0 {
		w.unload()
	}
	w.divided = false
	w.heal()
	w.pass(between(w.rng, 10*time.Millisecond, 2*time.Second))
	if w.rng.IntN(2) == 0 && w.passUntil(15*time.Second, func() bool { return w.unsettled(false) == "" }) && len(w.running()) > 2 {
		w.pass(between(w.rng, 100*time.Millisecond, 2*time.Second))
		p := w.victim()
		w.lose(p)
		w.crash(p)
		w.pass(5 * time.Second)
	}
}

// chaos combines all faults.
func chaos(w *simCluster) {
	w.stops = true
	for range 4 + w.rng.IntN(8) {
		w.pass(between(w.rng, 10*time.Millisecond, 1500*time.Millisecond))
		w.strike()
	}
	w.pass(between(w.rng, 10*time.Millisecond, 3*time.Second))
	for place := range 3 { // some stay down, but not these three
		if w.procs[place] == nil && w.coming == 0 {
			w.start(place, w.wrongClock())
		}
	}
}

// strike applies one random fault or change.
func (w *simCluster) strike() {
	p := w.victim()
	if p == nil {
		return
	}
	short := between(w.rng, 20*time.Millisecond, 900*time.Millisecond)
	long := between(w.rng, 300*time.Millisecond, 5*time.Second)
	d := short
	if w.rng.IntN(2) == 0 {
		d = long
	}
	switch w.rng.IntN(11) {
	case 0:
		if w.mayLose() {
			w.restart(p, d)
		}
	case 1, 2:
		w.pause(p, d)
	case 3:
		how := way(w.rng.IntN(3))
		group := []int{p.place}
		w.split(group, how, true)
		w.during(d, func() { w.split(group, how, false) })
	case 4:
		how, group := way(w.rng.IntN(3)), w.someGroup()
		w.split(group, how, true)
		w.during(d, func() { w.split(group, how, false) })
	case 5:
		q := w.victim()
		if q != p {
			how := way(w.rng.IntN(3))
			w.part(p.place, q.place, how, true)
			w.during(d, func() { w.part(p.place, q.place, how, false) })
		}
	case 6:
		w.unwant(d)
	case 7:
		w.flap([]int{p.place}, 2+w.rng.IntN(6))
	default:
		if w.mayLose() {
			w.change()
		}
	}
}

// mayLose reports whether a majority of the largest set remains if one more process is lost.
func (w *simCluster) mayLose() bool {
	most, stay := 0, 0
	for _, p := range w.procs {
		if p != nil {
			most = max(most, len(p.quorum.Set().Members))
			if p.state != member.Leaving && p.quorum.In() {
				stay++
			}
		}
	}
	return stay-1 > most/2
}

// flap isolates a group and heals it repeatedly.
func (w *simCluster) flap(group []int, times int) {
	if times == 0 {
		return
	}
	w.split(group, both, true)
	w.during(between(w.rng, 20*time.Millisecond, 1200*time.Millisecond), func() {
		w.split(group, both, false)
		w.during(between(w.rng, 20*time.Millisecond, 700*time.Millisecond), func() { w.flap(group, times-1) })
	})
}

// sharesGiven isolates processes from owners repeatedly within the windows of the keys: one process, several, all from each
// other, or one link. Some are paused, or restarted during or after the network partition.
func sharesGiven(w *simCluster) {
	for range 2 + w.rng.IntN(6) {
		w.pass(between(w.rng, 10*time.Millisecond, 1500*time.Millisecond))
		p := w.victim()
		if p == nil {
			continue
		}
		group, how := []int{p.place}, way(w.rng.IntN(3))
		if w.rng.IntN(4) == 0 {
			w.change() // may change the number of voters
		}
		switch w.rng.IntN(6) {
		case 0:
			group = w.someGroup()
		case 1:
			if q := w.victim(); q != p { // it keeps quorum but loses this owner
				w.part(p.place, q.place, both, true)
				w.pass(between(w.rng, 100*time.Millisecond, 3*time.Second))
				w.part(p.place, q.place, both, false)
			}
			continue
		case 2:
			d := between(w.rng, 100*time.Millisecond, 2*time.Second)
			w.pause(p, d)
			w.pass(d + between(w.rng, 10*time.Millisecond, time.Second))
			continue
		case 3:
			for _, q := range w.running() {
				w.split([]int{q.place}, both, true)
			}
			w.pass(between(w.rng, 300*time.Millisecond, 3*time.Second))
			w.mend()
			continue
		}
		w.split(group, how, true)
		w.pass(between(w.rng, 100*time.Millisecond, 3*time.Second))
		if back := w.rng.IntN(6); back < 2 && p.runs() && w.mayLose() {
			w.lose(p)
			w.restart(p, between(w.rng, 10*time.Millisecond, time.Second))
			if back == 0 {
				w.pass(between(w.rng, 100*time.Millisecond, 2*time.Second))
			}
		}
		w.split(group, how, false)
	}
}
