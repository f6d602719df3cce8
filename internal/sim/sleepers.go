package sim

import (
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// sleepers has a holder and another process stopped while the rest of a set of five claims what the
// holder had. The other one wakes, two of those who granted the claim leave, and the holder wakes
// into a set in which hardly anybody granted anything.
func sleepers(w *world) {
	w.pass(between(w.rng, 100*time.Millisecond, time.Second))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	long := between(w.rng, 6*time.Second, 11*time.Second)
	w.pause(up[0], long)
	w.pass(between(w.rng, time.Millisecond, 300*time.Millisecond))
	w.pause(up[1], between(w.rng, 900*time.Millisecond, 3*time.Second))
	if w.rng.IntN(2) == 0 {
		w.pass(between(w.rng, time.Second, 3*time.Second))
		w.unwant(between(w.rng, 100*time.Millisecond, 3*time.Second))
	}
	w.pass(between(w.rng, time.Second, 3*time.Second))
	if len(up) == 5 {
		w.leave(up[2])
		w.pass(between(w.rng, time.Millisecond, time.Second))
	}
	w.leave(up[3])
	w.pass(between(w.rng, time.Second, 4*time.Second))
	if w.rng.IntN(3) > 0 { // only whom nobody asked for the claim is left to tell the holder of it
		w.part(up[0].place, up[len(up)-1].place, way(w.rng.IntN(3)), true)
	}
	if w.rng.IntN(3) > 0 {
		w.mute(long)
	}
	w.pass(long)
}

// mute has the network lose most of what tells who holds what.
func (w *world) mute(d time.Duration) {
	w.net.unwantedShare = 70 + 10*w.rng.IntN(4)
	w.net.unwanted = func(b message.Body) bool { _, ok := b.(*message.Holdings); return ok }
	w.tell(general, "for %v the network loses %d%% of all holdings", d, w.net.unwantedShare)
	w.after(d, func() { w.net.unwanted = nil })
}

// forgotten has an owner stopped, and another process claim what it owned with the vote of a third. Then the claimer is stopped, and the
// third restarted: nobody that runs remembers the claim. The first wakes and has quorum with the third's new run. When the claimer wakes,
// the first is stopped for a moment, so that it hears late of what the two others tell.
func forgotten(w *world) {
	w.stops = true
	w.pass(between(w.rng, 100*time.Millisecond, time.Second))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	owner, claimer, voter := up[0], up[1], up[2]
	claims := w.Claims
	w.pause(owner, between(w.rng, 2500*time.Millisecond, 3500*time.Millisecond))
	w.passUntil(2*time.Second, func() bool { return w.Claims > claims && claimer.mask != 0 })
	w.pass(between(w.rng, time.Millisecond, 400*time.Millisecond))
	long := between(w.rng, 5*time.Second, 7*time.Second)
	w.pause(claimer, long)
	w.restart(voter, between(w.rng, 10*time.Millisecond, 100*time.Millisecond))
	moment := between(w.rng, 200*time.Millisecond, 500*time.Millisecond)
	w.pass(long - between(w.rng, time.Millisecond, moment))
	w.pause(owner, moment)
	w.pass(2 * time.Second)
}
