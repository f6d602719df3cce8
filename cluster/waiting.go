package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/sluicecluster/sluice/internal/message"
)

// Waits says in plain words what this node waits for before it can have quorum and claim partitions, one item each; none if it
// can. fails returns why the last message to the peer port at an address did not arrive, "" if it did or that is not known.
func (n *Node) Waits(ctx context.Context, fails func(addr string) string) (waits []string, err error) {
	err = n.runner.do(ctx, func(now int64) { waits = n.runner.waitsFor(now, fails) })
	return waits, err
}

// Unreached returns what Waits does or, if that is nothing, the members that gossip shows and that are not heard over the peer
// ports.
func (n *Node) Unreached(ctx context.Context, fails func(addr string) string) (all []string, err error) {
	r := n.runner
	err = r.do(ctx, func(now int64) {
		if all = r.waitsFor(now, fails); len(all) > 0 {
			return
		}
		for i, m := range r.live.nodes {
			if i != r.live.self && !r.lives(now, m.peer()) {
				all = append(all, r.unheard(now, m.peer(), fails))
			}
		}
	})
	return all, err
}

func (r *runner) waitsFor(now int64, fails func(string) string) (waits []string) {
	switch set := r.quorum.Set(); {
	case !r.node.mayDecide(now) && set.Zero():
		return r.waitsForSet(now, fails)
	case !r.node.mayDecide(now):
		waits = append([]string{r.whyNot(now)}, r.unheardVoters(now, set, fails)...)
		if r.quorum.Unproven() {
			for _, p := range r.quorum.Waiting(now).Silent {
				waits = append(waits, r.unheard(now, p, fails))
			}
		}
		return waits
	case !r.quorum.Promises(now):
		return []string{"waiting until the promises of an earlier run of this node have run out"}
	}
	return nil
}

// waitsForSet is waitsFor without a voter set.
func (r *runner) waitsForSet(now int64, fails func(string) string) (waits []string) {
	w := r.quorum.Waiting(now)
	say := func(format string, args ...any) { waits = append(waits, fmt.Sprintf(format, args...)) }
	missing := w.Expect - len(w.Have)
	switch {
	case r.storeErr != nil:
		waits = append(waits, r.whyNot(now))
	case len(w.Know) > 0:
		for _, p := range w.Know {
			say("%s knows a voter set that has no quorum: "+
				"start its other voters, or `sluice members bootstrap` if they are gone for good", p.Name)
		}
	case w.Missed:
		say("waiting for gossip with nodes that know an earlier run of this one")
	case w.Expect == 0:
		say("waiting to join a cluster: this node founds none")
	case !w.May:
		say("waiting for join targets and for members that know this node")
	case !w.Accepted.Zero():
		say("founding a voter set with %s", strings.Join(w.Accepted.Members, ", "))
	case missing > 0:
		more := fmt.Sprintf("%d more nodes", missing)
		if missing == 1 {
			more = "1 more node"
		}
		say("waiting for %s to bootstrap with: --bootstrap-expect is %d, have %s", more, w.Expect, strings.Join(w.Have, ", "))
	default:
		say("founding a voter set: have %s", strings.Join(w.Have, ", "))
	}
	for _, name := range w.CannotStore {
		say("%s takes no part: it cannot write to its --data-dir, free space there or repair its disk",
			name)
	}
	for _, o := range w.Others {
		if o.Expect > 0 && w.Expect > 0 {
			say("%s has --bootstrap-expect %d, this node %d: give all nodes the same", o.Name, o.Expect, w.Expect)
		}
	}
	for _, p := range w.Silent {
		waits = append(waits, r.unheard(now, p, fails))
	}
	return waits
}

// unheardVoters says which voters this node does not hear, and why if that is known.
func (r *runner) unheardVoters(now int64, set message.Set, fails func(string) string) (all []string) {
	for _, name := range set.Members {
		at := r.live.byName(name)
		switch {
		case name == r.self.Name:
		case at == nil:
			all = append(all, fmt.Sprintf("%s is a voter that gossip does not show: it is down, or its gossip port is not reached", name))
		case !r.quorum.Lives(now, at.peer()):
			all = append(all, r.unheard(now, at.peer(), fails))
		}
	}
	return all
}

// unheard says that gossip shows p and its peer port is not heard, or that it is heard and has no quorum.
func (r *runner) unheard(now int64, p message.Peer, fails func(string) string) string {
	if r.quorum.Listens(now, p) {
		return fmt.Sprintf("%s is heard and has had no quorum for a while: most voters do not reach it", p.Name)
	}
	addr := r.addrs[p]
	text := fmt.Sprintf("gossip shows %s, and nothing is heard over the peer ports, its %s or this node's own", p.Name, addr)
	if why := fails(addr); why != "" {
		text += ": " + why
	}
	return text
}

// whyNot says why this process has no quorum.
func (r *runner) whyNot(now int64) string {
	set := r.quorum.Set()
	switch {
	case r.storeErr != nil:
		return fmt.Sprintf("%s: %v", cannotStore, r.storeErr)
	case set.Zero():
		return "no voter set is known yet"
	}
	if r.quorum.Unproven() {
		return "its data directory has a voter set of this node alone, which may be from before " +
			"others joined: waiting for all --join targets, or for as many nodes as " +
			"--bootstrap-expect; if the others are gone for good, `sluice members bootstrap`, " +
			"or start without --join"
	}
	living := 0
	for _, n := range r.live.nodes {
		if set.Has(n.name) && r.quorum.Lives(now, n.peer()) {
			living++
		}
	}
	switch {
	case living < set.Majority():
		return fmt.Sprintf("%d of %d voters are alive, and a majority is %d", living, len(set.Members), set.Majority())
	case !r.quorum.Promises(now):
		return "just restarted: the others' claims are still to be heard of"
	}
	return fmt.Sprintf("of %d voters, fewer than %d have just acknowledged a heartbeat", len(set.Members), set.Majority())
}
