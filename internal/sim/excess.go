package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// What a run may admit beyond the limits.
//
// Every allowed decision of a cluster ID is counted as admitted at the instant it is made, whether its
// answer arrives or not; of sync keys also at the instant its answer is let go.
//
//   - Always: no more than new owners' tables lacked when they began, which judgeContent,
//     judgeSwap and judgeChoice judge on their own. So nothing gets lost while an owner holds.
//   - With planned change, wrong views, lost messages and cuts between two: nothing; of sync keys no
//     answer.
//   - With one loss (crash, pause, a process cut off): of async keys the most that the lost owner
//     admitted in any 50 ms, or what the gate allowed, since shortly before, by its own clock; of sync keys no answer. Transient keys
//     may lose all, and so may async keys of partitions that nobody else who stays had a complete copy of, sync keys where they needed none. The
//     same per loss, where they come one by one (shrink).
//   - Cuts into two groups and chaos can take an owner together with its copy: of async keys only the first; of sync keys, which deny
//     what may have been spent, no answer, unless somebody goes on from a replica that the owner had replaced.

// bound says which of these judge a run.
type bound int

const (
	lossy bound = iota // what new owners lacked
	nothing
	oneByOne // what w.losses allow
)

// loss is an owner that was lost.
type loss struct {
	process *process
	at      int64
	// bare are the partitions of which it had the only complete state, which may be lost as a whole.
	bare uint64
	// alone are those of them whose sync answers needed no replica, or had it at a node that leaves.
	alone uint64
}

// lose notes that p is about to be lost.
func (w *simCluster) lose(p *process) {
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
func (w *simCluster) within() int64 {
	return max(w.longestGate, int64(gateAge)) * (1_000_000 + 2*maxRate) / 1_000_000
}

// judgeExcess is called when a check of k was allowed.
func (w *simCluster) judgeExcess(k *key, a *account) {
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
func (w *simCluster) judgeReleased(k *key, a *account) {
	alone := slices.ContainsFunc(w.losses, func(l loss) bool { return l.alone&(1<<k.partition) != 0 })
	outdated := (w.bound == lossy || alone || w.neighbours) && w.outdated&(1<<k.partition) != 0
	if over := a.released - k.limit; over > 0 && !outdated && !w.estranged {
		w.fail("I3 sync", k.partition, "%d of %s were answered beyond the limit of %d", over, k.name, k.limit)
	}
}

// mayExceed returns by how much k may exceed its limit, -1 if that is not bounded.
func (w *simCluster) mayExceed(k *key, a *account) int64 {
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

// mostWithin returns the most charges of the lost owner that lie within a span.
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

// unsettled says what is not yet as it should be when nothing is wrong any more (I7), or "":
// every process serves, is counted, has quorum and knows the same set; the assigned owner
// of each partition and nobody else holds it, all know that, and as many other processes as its
// owner wants have a complete copy of it. level wants copies to be level, which they are when nobody asks anything.
func (w *simCluster) unsettled(level bool) string {
	if !w.divided {
		return w.unsettledAmong(func(int) bool { return true }, level)
	}
	// Two clusters that have not met yet.
	for _, side := range []bool{true, false} {
		if why := w.unsettledAmong(func(place int) bool { return w.left[place] == side }, level); why != "" {
			return why
		}
	}
	return ""
}

// crashed reports whether a process has ended: what only it had may be lost for good.
func (w *simCluster) crashed() bool {
	return slices.ContainsFunc(w.every, func(p *process) bool { return !p.runs() })
}

// stranded reports whether so many of the newest set have gone that those left are no majority
// of it, and never will be: one that left gave up waiting for another that had crashed. Then
// only an operator can say who is gone (sluice members forget). So where the last one has lost the set in a crash, and too few are left
// to found another (sluice members bootstrap).
func (w *simCluster) stranded() bool {
	var newest message.Set
	names, founders, unconfirmed := map[string]bool{}, 0, false
	for _, p := range w.procs {
		if p == nil {
			continue
		}
		names[p.self.Name] = true
		if w.expects(p.place) > 0 { // the others only join
			founders++
		}
		if p.quorum.Unconfirmed() {
			unconfirmed = true // it proves nothing, and is told to nobody
		} else if p.set.Version > newest.Version {
			newest = p.set
		}
	}
	if newest.Zero() {
		return unconfirmed || founders < w.expect
	}
	left := 0
	for _, m := range newest.Members {
		if names[m] {
			left++
		}
	}
	return 2*left <= len(newest.Members)
}

// unsettledAmong is unsettled for the names at some places.
func (w *simCluster) unsettledAmong(in func(place int) bool, level bool) string {
	var all []seen
	var first *process
	for _, p := range w.procs {
		switch {
		case p == nil || !in(p.place):
			continue
		case p.paused:
			return fmt.Sprintf("%s is paused", p)
		case p.state != member.Serving:
			return fmt.Sprintf("%s is %s", p, p.state)
		case !p.quorum.In():
			return fmt.Sprintf("%s is not in its set %s", p, tellSet(p.set))
		case w.clock(p) >= p.quorum.QuorumUntil():
			return fmt.Sprintf("%s has no quorum", p)
		case p.handoff.Stats().Divergent > 0:
			return fmt.Sprintf("%s has divergent copies that are not merged", p)
		case p.handoff.Stats().Lost > 0 && !w.crashed():
			for _, x := range p.handoff.States(nil) {
				if x.LostOf.Gen != 0 && p.handoff.Holds(x.Partition) {
					return fmt.Sprintf("%s takes counters of p%d at %s for lost since %v, and nobody has crashed", p, x.Partition, tellEpoch(x.LostOf), time.Duration(x.LostSince-p.origin))
				}
			}
		}
		if first == nil {
			first = p
		}
		if p.set.ID != first.set.ID || p.set.Version != first.set.Version {
			return fmt.Sprintf("%s knows %s, %s knows %s", first, tellSet(first.set), p, tellSet(p.set))
		}
		all = append(all, seen{p, p.state})
	}
	if len(all) == 0 {
		return "nobody runs"
	}
	for _, p := range all {
		if !slices.Equal(p.process.view, all) {
			return fmt.Sprintf("%s sees %v", p.process, p.process.view)
		}
	}
	for part := range w.partitions {
		owner := all[w.owner(all, part)].process
		for _, x := range all {
			p := x.process
			switch {
			case p.handoff.Holds(part) != (p == owner):
				return fmt.Sprintf("p%d should be held by %s; that %s holds it is %v", part, owner, p, p.handoff.Holds(part))
			case p.handoff.Owner(part) != owner.self:
				return fmt.Sprintf("p%d is held by %s; %s thinks by %s", part, owner, p, short(p.handoff.Owner(part)))
			}
		}
		if n, want := w.copies(owner, part, level), min(w.replicas[owner.place], len(all)-1); n < want {
			return fmt.Sprintf("p%d, held by %s, has %d complete copies elsewhere, want %d", part, owner, n, want)
		}
	}
	return ""
}

// settle waits until all is settled, and notes how long that took.
func (w *simCluster) settle(within string, limit int64) bool {
	began := w.now
	for w.violation == nil {
		why := w.unsettled(false)
		if why == "" {
			return true
		}
		if w.now-began >= limit {
			w.fail(within, general, "%s", why)
			return false
		}
		w.pass(settleStep)
	}
	return false
}

// judgeEnd holds the last owners' tables against everything that was decided.
func (w *simCluster) judgeEnd() {
	for part := range w.partitions {
		var owner *process
		for _, p := range w.procs {
			if p != nil && p.handoff.Holds(part) {
				owner = p
			}
		}
		if owner == nil {
			continue // judged by unsettled
		}
		for _, c := range w.chapters {
			if c.partition != part {
				continue
			}
			all := w.histories[c].all
			for i := len(all) - 1; i >= 0; i-- {
				t := all[i]
				if !t.process.runs() && !t.handed {
					break // what was merged into it may have gone with it
				}
				w.judgeMerged(owner, part, t)
			}
		}
	}
}

// judgeMerged wants what was decided by a process that still runs to be in the table of the
// last owner: if a claim did not find it, its divergent copy was merged.
func (w *simCluster) judgeMerged(owner *process, part int, t *term) {
	if !t.process.runs() || t.handed {
		return
	}
	for i, k := range w.keysOf[part] {
		if spent := w.spent(owner, k); !k.request.Transient && spent < t.now(i) {
			w.fail("merge", part, "%s holds %s with %d spent; %s, which still runs, had come to %d at %s", owner, k.name, spent,
				t.process, t.now(i), tellEpoch(t.state.Mark.Epoch))
		}
	}
}
