package sim

import (
	"slices"
	"time"
)

// mostGap is the longest time in which nobody may be able to decide a partition when links are cut and a majority is left of which
// all reach each other.
const mostGap = 2 * time.Second

// bridge cuts an owner off from all but one of the others, which reach each other: so the one bridges. In some runs the owner is
// reached and does not reach, or the other way round, and in some the cut comes and goes before it stays.
func bridge(w *world) {
	w.net.lose = 0 // a state that a claim fetches is asked for again after 0.5 s
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	owner, others := up[0], up[2:]
	if len(up) == 5 && w.rng.IntN(4) == 0 {
		w.chain(up)
		return
	}
	how := both
	if w.rng.IntN(3) == 0 {
		how = way(w.rng.IntN(3))
	}
	cut := func(on bool) {
		for _, q := range others {
			w.part(owner.place, q.place, how, on)
		}
	}
	w.lose(owner)
	if w.rng.IntN(4) == 0 {
		w.tell(general, "the cut comes and goes")
		claims := w.Claims
		for range 1 + w.rng.IntN(4) {
			cut(true)
			w.pass(between(w.rng, 20*time.Millisecond, 300*time.Millisecond))
			cut(false)
			w.pass(between(w.rng, 500*time.Millisecond, time.Second))
		}
		if w.Claims > claims && how == both {
			w.fail("live owner", general, "%d partitions were taken over from an owner that was cut off for 0.3 s at most", w.Claims-claims)
		}
	}
	cut(true)
	w.pass(mostGap + between(w.rng, time.Second, 6*time.Second))
	w.judgeGap(up[1:])
	cut(false)
	w.pass(between(w.rng, 10*time.Millisecond, 3*time.Second))
	w.judgeGap(nil)
}

// chain leaves each process only the links to the next and the one before: those at the ends have no quorum, and the others must take over
// what they own, some with the vote of an end. No majority reaches each other, so two of them may claim the same for ever.
func (w *world) chain(up []*process) {
	w.lose(up[0])
	w.lose(up[len(up)-1])
	w.neighbours = true
	cut := func(on bool) {
		for i := 2; i < len(up); i++ {
			for _, q := range up[:i-1] {
				w.part(up[i].place, q.place, both, on)
			}
		}
	}
	cut(true)
	w.pass(between(w.rng, time.Second, 8*time.Second))
	cut(false)
	w.pass(between(w.rng, 10*time.Millisecond, 3*time.Second))
}

// links cuts some links so that each process still reaches a majority: nobody is lost, and nothing is undecided.
func links(w *world) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	spare := make([]int, len(up)) // links that each can do without
	for i := range spare {
		spare[i] = (len(up) - 1) / 2
	}
	var cuts [][2]*process
	for i := range up {
		for j := range i {
			if spare[i] > 0 && spare[j] > 0 {
				spare[i]--
				spare[j]--
				cuts = append(cuts, [2]*process{up[i], up[j]})
			}
		}
	}
	for _, on := range []bool{true, false} {
		for _, c := range cuts {
			w.part(c[0].place, c[1].place, both, on)
			w.pass(time.Duration(w.rng.Int64N(int64(200 * time.Millisecond))))
		}
		w.pass(between(w.rng, time.Second, 5*time.Second))
	}
	w.judgeGap(nil)
}

// judgeGap wants no partition to have been undecided for long, and all of a group to know the owner of each that can decide.
func (w *world) judgeGap(group []*process) {
	if w.Gap > mostGap {
		w.fail("gap", general, "a partition was undecided for %v, though the nodes of a majority reach each other", w.Gap)
	}
	for part := range w.partitions {
		for _, p := range group {
			knows := p.handoff.Holder(part)
			if !slices.ContainsFunc(w.procs, func(q *process) bool { return q != nil && q.self == knows && w.could(q, part) }) {
				w.fail("owner", part, "%s takes %s for the owner of p%d, which cannot decide it", p, short(knows), part)
			}
		}
	}
}
