package sim

import "time"

// far moves the processes apart, up to 200 ms one way, for half a minute, in which no live holder may be taken from:
// round-trip times are measured, and what nodes wait for grows with them. In half of the runs packets get lost as well, which
// in a stream delays what is lost and all that is behind it.
func far(w *world) {
	before := w.net
	n := &w.net
	for i := range places {
		for j := range i {
			d := int64(between(w.rng, 20*time.Millisecond, 200*time.Millisecond))
			n.base[i][j], n.base[j][i] = d, d
		}
	}
	n.spread = int64(2 * time.Millisecond)
	n.lose, n.double, n.late, n.fifo = 0, 0, 0, true
	w.pass(10 * time.Second)
	if w.rng.IntN(2) == 0 {
		n.late, n.lateness = 10+w.rng.IntN(90), 600*time.Millisecond
		w.pass(10 * time.Second)
	}
	claims := w.Claims
	w.pass(20 * time.Second)
	if w.Claims > claims {
		w.fail("live holder", general, "%d partitions of live holders were taken over on a slow network", w.Claims-claims)
	}
	if w.Gap > 2*time.Second {
		w.fail("gap", general, "a partition was undecided for %v, on a network that carried everything", w.Gap)
	}
	before.measured = n.roundTrip()
	// In order: each time that something is overtaken costs a resend, as late as the slow network had them.
	before.fifo, before.late, before.lateness = true, min(before.late, 1), 150*time.Millisecond
	w.net = before
	w.pass(2 * time.Second)
}
