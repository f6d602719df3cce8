package sim

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

// What a run may admit beyond the limits.
//
// Every allowed decision of a lineage is counted as admitted at the instant it is made, whether its
// answer arrives or not; of sync keys also at the instant its answer is let go.
//
//   - Always: no more than new holders' tables lacked when they began, which judgeContent,
//     judgeSwap and judgeChoice judge on their own. So nothing gets lost while a holder holds.
//   - With planned change, wrong views, lost messages and cuts between two: nothing; of sync keys no
//     answer.
//   - With one loss (crash, pause, a process cut off): of async keys the most that the lost holder
//     admitted in any 50 ms, or what the gate allowed, since shortly before, by its own clock; of sync keys no answer. Transient keys
//     may lose all, and so may async keys of partitions that nobody else who stays had a complete copy of, sync keys where they needed none. The
//     same per loss, where they come one by one (shrink).
//   - Cuts into two groups and chaos can take a holder together with its copy: of async keys only the first; of sync keys, which deny
//     what may have been spent, no answer, unless somebody goes on from a replica that the owner had replaced.

// bound says which of these judge a run.
type bound int

const (
	lossy bound = iota // what new holders lacked
	nothing
	oneByOne // what w.losses allow
)

// loss is a holder that was lost.
type loss struct {
	process *process
	at      int64
	// bare are the partitions of which it had the only complete state, which may be lost as a whole.
	bare uint64
	// alone are those of them whose sync answers needed no replica, or had it at a node that leaves.
	alone uint64
}

// lose notes that p is about to be lost.
func (w *world) lose(p *process) {
	l := loss{process: p, at: w.now}
	only := len(p.set.Members) == 1 // a voter that needs no replica, and asks nobody for one when it is back
	for part := range w.partitions {
		if p.mask&(1<<part) != 0 && (only || p.handoff.Confirmed(part) == math.MaxUint64 || w.copies(p, part, false) == 0) {
			l.bare |= 1 << part
			if leaving := slices.ContainsFunc(w.running(), func(q *process) bool { return q.state == member.Leaving }); leaving || !p.handoff.AwaitsReplica(part) {
				l.alone |= 1 << part
			}
		}
	}
	w.forgets = w.forgets || only
	w.losses = append(w.losses, l)
}

// within is the span that decisions which get lost lie in: the longest gate on the slowest clock.
func (w *world) within() int64 {
	return max(w.longestGate, int64(gateAge)) * (1_000_000 + 2*maxRate) / 1_000_000
}

// judgeExcess is called when a check of k was allowed.
func (w *world) judgeExcess(k *key, a *account) {
	over := int64(len(a.charges)) - k.limit
	if over <= 0 {
		return
	}
	w.Excess = max(w.Excess, over)
	if over > a.lost {
		w.fail("I5 leak", k.partition, "%d of %s were admitted beyond the limit of %d, while %d were lost", over, k.name, k.limit, a.lost)
	}
	if may := w.mayExceed(k, a); may >= 0 && over > may && !k.sync {
		w.fail("I3", k.partition, "%d of %s were admitted beyond the limit of %d; what was lost allows %d", over, k.name, k.limit, may)
	}
}

// judgeReleased is called when an answer of a sync key was let go.
func (w *world) judgeReleased(k *key, a *account) {
	alone := slices.ContainsFunc(w.losses, func(l loss) bool { return l.alone&(1<<k.partition) != 0 })
	outdated := (w.bound == lossy || alone || w.neighbours) && w.outdated&(1<<k.partition) != 0
	if over := a.released - k.limit; over > 0 && !outdated && !w.estranged {
		w.fail("I3 sync", k.partition, "%d of %s were answered beyond the limit of %d", over, k.name, k.limit)
	}
}

// mayExceed returns by how much k may exceed its limit, -1 if that is not bounded.
func (w *world) mayExceed(k *key, a *account) int64 {
	switch {
	case w.bound == nothing:
		return 0
	case w.bound == lossy:
		return -1
	}
	if k.request.Transient {
		return -1
	}
	sum := int64(0)
	for _, l := range w.losses {
		if l.bare&(1<<k.partition) != 0 {
			return -1
		}
		sum += mostWithin(a.charges, l, w.within())
	}
	return sum
}

// mostWithin returns the most charges of the lost holder that lie within a span.
func mostWithin(charges []charge, l loss, span int64) (most int64) {
	var times []int64
	for _, c := range charges {
		if c.process != l.process || c.at < l.at-int64(time.Second) {
			continue
		}
		times = append(times, c.at)
		for c.at-times[0] > span {
			times = times[1:]
		}
		most = max(most, int64(len(times)))
	}
	return most
}
