package sim

import (
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// unquiet has processes that are about to found a set paused, cut off and restarted. Without disks none is restarted: it would be
// another process that starts without a set, and more of these than the founders account for.
func unquiet(w *world) {
	for range 3 + w.rng.IntN(8) {
		w.pass(between(w.rng, 10*time.Millisecond, 500*time.Millisecond))
		p := w.victim()
		if p == nil {
			continue
		}
		d := between(w.rng, 20*time.Millisecond, 4*time.Second)
		switch w.rng.IntN(8) {
		case 0, 1, 6, 7:
			if w.disk {
				w.restart(p, d/8)
			}
		case 2:
			w.pause(p, d)
		case 3, 4:
			how, group := way(w.rng.IntN(3)), w.someGroup()
			w.split(group, how, true)
			w.after(d, func() { w.split(group, how, false) })
		case 5:
			if q := w.victim(); q != p {
				how := way(w.rng.IntN(3))
				w.part(p.place, q.place, how, true)
				w.after(d, func() { w.part(p.place, q.place, how, false) })
			}
		}
	}
	w.pass(5 * time.Second)
	w.mend()
}

// founded is what comes after: processes that restart behind a cut, alone or in so small a part that it is no majority, and one
// with a set on disk that nobody else is left of.
func founded(w *world) {
	if w.disk && w.rng.IntN(2) == 0 {
		if place := w.vacant(7); place >= 0 {
			w.disks[place] = message.Record{Set: staleSet(w, place)}
			w.start(place, w.wrongClock())
		}
		w.pass(8 * time.Second)
		return
	}
	var group []int
	up := w.running()
	for _, p := range up[:(len(up)-1)/2] {
		group = append(group, p.place)
	}
	if len(group) == 0 {
		return
	}
	w.split(group, both, true)
	w.pass(between(w.rng, 100*time.Millisecond, 2*time.Second))
	for _, place := range group {
		w.lose(w.procs[place])
		w.restart(w.procs[place], between(w.rng, 10*time.Millisecond, 500*time.Millisecond))
	}
	w.pass(between(w.rng, time.Second, 12*time.Second))
	w.split(group, both, false)
}

const staleID = "zz-stale"

// staleSet returns a set with the name at place that is larger than any of the world's.
func staleSet(w *world, place int) message.Set {
	s := message.Set{ID: staleID, Version: 9, Members: []string{w.names[place]}}
	for i := range places + 1 {
		s.Members = append(s.Members, "x"+strings.Repeat("x", i))
	}
	return s
}
