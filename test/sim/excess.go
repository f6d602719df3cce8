package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// Bounds of over-admission.
//
// Every allowed decision of a cluster ID counts as admitted when it is made, whether its answer arrives or not; for sync keys
// also when its answer is released.
//
//   - Always: at most what new owners' tables lacked at their beginning, which judgeContent, judgeSwap and judgeChoice
//     judge separately. So nothing is lost during a term.
//   - Planned change, wrong views, lost messages, cuts between two nodes: nothing.
//   - One loss (crash, pause, isolation): for async keys the most that the lost owner admitted within the gate, by its own
//     clock, since shortly before; for sync keys nothing. Unreplicated keys may lose everything, and so may async keys of
//     partitions without another complete copy, and sync keys that needed none. The same per loss, if they come one by one (shrink).
//   - Cuts into two groups and chaos can take an owner together with its replica: for async keys only the first bound; for
//     sync keys, which deny what may have been spent, nothing, unless an owner continues from a replaced replica.

// bound is the bound that a run must satisfy.
type bound int

const (
	lossy bound = iota // what new owners lacked
	nothing
	oneByOne // what w.losses allow
)

// loss is a lost owner.
type loss struct {
	process *process
	at      int64
	// bare are the partitions of which it had the only complete state, which may be lost entirely.
	bare uint64
	// alone are those of bare whose sync answers needed no replica, or had it on a leaving node.
	alone uint64
}

// lose records that p is about to be lost.
func (w *simCluster) lose(p *process) {
	l := loss{process: p, at: w.now}
	only := len(p.set.Members) == 1 // a sole voter needs no replica, and asks no other process when it is back
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

// within is the span that lost decisions lie in: the longest gate on the slowest clock.
func (w *simCluster) within() int64 {
	return max(w.longestGate, int64(gateAge)) * (1_000_000 + 2*maxRate) / 1_000_000
}

// judgeExcess is called after an allowed check of k.
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

// judgeReleased is called after an answer of a sync key was released.
func (w *simCluster) judgeReleased(k *key, a *account) {
	alone := slices.ContainsFunc(w.losses, func(l loss) bool { return l.alone&(1<<k.partition) != 0 })
	outdated := (w.bound == lossy || alone || w.neighbours) && w.outdated&(1<<k.partition) != 0
	if over := a.released - k.limit; over > 0 && !outdated && !w.estranged {
		w.fail("I3 sync", k.partition, "%d of %s were answered beyond the limit of %d", over, k.name, k.limit)
	}
}

// mayExceed returns by how much k may exceed its limit, -1 for no bound.
func (w *simCluster) mayExceed(k *key, a *account) int64 {
	switch {
	case w.bound == nothing:
		return 0
	case w.bound == lossy:
		return -1
	}
	if k.request.Unreplicated {
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

// mostWithin returns the maximum number of charges by the lost owner within a span.
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

// unsettled returns why the cluster is not settled (I7), or "". Settled means: every process serves, is a voter, has quorum and
// knows the same set; only the assigned owner owns each partition, all processes know that, and there are as many complete
// replicas as the owner wants. level requires replicas to be level, which holds without load.
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

// crashed reports whether a process has ended: state that only it had may be lost for good.
func (w *simCluster) crashed() bool {
	return slices.ContainsFunc(w.every, func(p *process) bool { return !p.runs() })
}

// stranded reports whether the remaining processes are, for good, no majority of the newest set: one gave up waiting for
// another that had crashed, and left. Only an operator can resolve that (sluice members forget), or the loss of the last set
// with too few processes to found another (sluice members bootstrap).
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
			unconfirmed = true // it proves nothing, and other processes do not adopt it
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

// unsettledAmong is unsettled for the names selected by in.
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
				if x.LostOf.Gen != 0 && p.handoff.Owns(x.Partition) {
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
			case p.handoff.Owns(part) != (p == owner):
				return fmt.Sprintf("p%d should be held by %s; that %s holds it is %v", part, owner, p, p.handoff.Owns(part))
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

// settle waits until the cluster is settled, and fails after limit.
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

// judgeEnd compares the last owners' tables with all decisions.
func (w *simCluster) judgeEnd() {
	for part := range w.partitions {
		var owner *process
		for _, p := range w.procs {
			if p != nil && p.handoff.Owns(part) {
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
					break // what was merged into it may be lost with it
				}
				w.judgeMerged(owner, part, t)
			}
		}
	}
}

// judgeMerged requires that the last owner's table has all decisions of processes that still run: those that a claim did not
// find have been merged as divergent copies.
func (w *simCluster) judgeMerged(owner *process, part int, t *term) {
	if !t.process.runs() || t.handed {
		return
	}
	for i, k := range w.keysOf[part] {
		if spent := w.spent(owner, k); !k.request.Unreplicated && spent < t.now(i) {
			w.fail("merge", part, "%s holds %s with %d spent; %s, which still runs, had come to %d at %s", owner, k.name, spent,
				t.process, t.now(i), tellEpoch(t.state.Mark.Epoch))
		}
	}
}
