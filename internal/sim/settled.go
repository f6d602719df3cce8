package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// unsettled says what is not yet as it should be when nothing is wrong any more (I7), or "":
// every process serves, is counted, has the right and knows the same set; the ring's owner
// of each partition and nobody else holds it, all know that, and as many other processes as its
// owner wants have a complete copy of it. level wants copies to be level, which they are when nobody asks anything.
func (w *world) unsettled(level bool) string {
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
func (w *world) crashed() bool {
	return slices.ContainsFunc(w.every, func(p *process) bool { return !p.runs() })
}

// stranded reports whether so many of the newest set have gone that those left are no majority
// of it, and never will be: one that left gave up waiting for another that had crashed. Then
// only an operator can say who is gone (sluice members forget). So where the last one has lost the set in a crash, and too few are left
// to found another (sluice members bootstrap).
func (w *world) stranded() bool {
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
func (w *world) unsettledAmong(in func(place int) bool, level bool) string {
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
		case w.clock(p) >= p.quorum.RightUntil():
			return fmt.Sprintf("%s has not the right", p)
		case p.handoff.Stats().Forks > 0:
			return fmt.Sprintf("%s has forks that are not merged", p)
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
			case p.handoff.Holder(part) != owner.self:
				return fmt.Sprintf("p%d is held by %s; %s thinks by %s", part, owner, p, short(p.handoff.Holder(part)))
			}
		}
		if n, want := w.copies(owner, part, level), min(w.replicas[owner.place], len(all)-1); n < want {
			return fmt.Sprintf("p%d, held by %s, has %d complete copies elsewhere, want %d", part, owner, n, want)
		}
	}
	return ""
}

// settle waits until all is settled, and notes how long that took.
func (w *world) settle(within string, limit int64) bool {
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

// judgeEnd holds the last holders' tables against everything that was decided.
func (w *world) judgeEnd() {
	for part := range w.partitions {
		var holder *process
		for _, p := range w.procs {
			if p != nil && p.handoff.Holds(part) {
				holder = p
			}
		}
		if holder == nil {
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
				w.judgeMerged(holder, part, t)
			}
		}
	}
}

// judgeMerged wants what was decided by a process that still runs to be in the table of the
// last holder: if a claim did not find it, its fork was merged.
func (w *world) judgeMerged(holder *process, part int, t *term) {
	if !t.process.runs() || t.handed {
		return
	}
	for i, k := range w.keysOf[part] {
		if spent := w.spent(holder, k); !k.request.Transient && spent < t.now(i) {
			w.fail("merge", part, "%s holds %s with %d spent; %s, which still runs, had come to %d at %s", holder, k.name, spent,
				t.process, t.now(i), tellEpoch(t.state.Mark.Epoch))
		}
	}
}
