package cluster

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// Overview is how this node stands among the others, for people.
type Overview struct {
	// Set is the stable set, zero if none is known yet.
	Set message.Set
	// Right: this node may decide. If not, Reason says why.
	Right  bool
	Reason string
	// Members are all whom gossip shows, this node among them, and then the names of the
	// set that it does not show.
	Members []Standing
	// Clock is how this node's clock stands to the voters'.
	Clock ClockStats
	// Partitions are the machine's counts.
	Partitions handoff.Stats
}

// Standing is one member's.
type Standing struct {
	Name, Boot string // Boot is empty if gossip does not show it
	// Counted: in the stable set. Lives: heard from just now.
	Counted, Lives bool
	// Silent is how long it has not been heard from; negative if it never was.
	Silent time.Duration
	// Holds is how many partitions it holds, as far as this node knows.
	Holds int
	// Ahead is how far its clock is ahead of the median of the voters that agree, or if none do, of this node's. Nil is not known.
	Ahead *time.Duration
}

// Overview tells how this node stands. It fails when ctx ends or the node does not run.
func (n *Node) Overview(ctx context.Context) (o Overview, err error) {
	r := n.runner
	err = r.ask(ctx, func(now int64) {
		o = Overview{Set: r.quorum.Set(), Right: n.mayDecide(now), Partitions: r.handoff.Stats(), Clock: r.corrector.stats}
		if !o.Right {
			o.Reason = r.whyNot(now)
		}
		holds := make(map[message.Peer]int)
		for p := range n.cfg.Ring.Partitions {
			holds[r.handoff.Holder(p)]++
		}
		for _, m := range r.scene.nodes {
			o.Members = append(o.Members, Standing{
				Name: m.name, Boot: m.boot, Counted: o.Set.Has(m.name),
				Lives: r.quorum.Lives(now, m.peer()), Silent: silence(now, r.quorum.Heard(m.peer())), Holds: holds[m.peer()],
				Ahead: r.corrector.aheadOf(now, r.quorum, m.name),
			})
		}
		for _, name := range o.Set.Members {
			if r.scene.of(name) == nil {
				o.Members = append(o.Members, Standing{Name: name, Counted: true, Silent: -1})
			}
		}
	})
	return o, err
}

func silence(now, heard int64) time.Duration {
	if heard == math.MinInt64 {
		return -1
	}
	return time.Duration(max(0, now-heard))
}

// whyNot says why this process has no right to decide.
func (r *runner) whyNot(now int64) string {
	set := r.quorum.Set()
	if set.Zero() {
		return "no stable set is known yet"
	}
	living := 0
	for _, n := range r.scene.nodes {
		if set.Has(n.name) && r.quorum.Lives(now, n.peer()) {
			living++
		}
	}
	switch {
	case living < set.Majority():
		return fmt.Sprintf("%d of %d counted members live, and a majority is %d", living, len(set.Members), set.Majority())
	case !r.quorum.Promises(now):
		return "just restarted: the others' claims are still to be heard of"
	}
	return fmt.Sprintf("of %d counted members, fewer than %d have just acknowledged a heartbeat", len(set.Members), set.Majority())
}

// report publishes both machines' counts, and has the chronicle tell what is new.
func (r *runner) report(now int64) {
	m := &machines{
		partitions: r.handoff.Stats(), right: r.node.mayDecide(now),
		set: r.quorum.Set(), dissolved: r.quorum.Dissolved(), clock: r.corrector.stats,
	}
	var unheard []string
	for i, n := range r.scene.nodes {
		if i != r.scene.self && !r.lives(now, n.peer()) && !r.quorum.Listens(now, n.peer()) {
			unheard = append(unheard, n.name)
		}
	}
	m.unreachable = len(unheard)
	r.node.machines.Store(m)
	at := moment{
		now: now, leaving: r.shown != nil && r.shown[r.at].state == member.Leaving, right: m.right, others: len(r.placement.view.Members) - 1,
		set: m.set, dissolved: m.dissolved, stats: m.partitions, partitions: r.node.cfg.Ring.Partitions, clock: m.clock, unheard: unheard, fallback: r.node.fallbacks(),
	}
	if !m.right {
		at.reason = r.whyNot(now)
	}
	r.chronicle.tell(r.node.cfg.Log, at)
}

// KeyFacts tells what this node knows of a key under limits, and changes nothing. It fails when ctx ends or the node does
// not run.
func (n *Node) KeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (k facts.Key, err error) {
	k.Node, k.Partition = n.cfg.Name, key.Shard(n.cfg.Ring.Partitions)
	err = n.runner.ask(ctx, func(now int64) {
		k.Holds = n.runner.handoff.Holds(k.Partition) && n.mayDecide(now)
		s, has := n.runner.handoff.State(k.Partition)
		k.Copy, k.Whole = has && !s.Held, s.Complete && !s.Held
		if has {
			k.Gen = s.Mark.Epoch.Gen
		}
	})
	if err != nil {
		return k, err
	}
	now := n.cfg.Clock()
	if k.Holds {
		list, known := n.table.Look(now, key, limits)
		k.Counted = known
		for _, s := range list {
			k.Limits = append(k.Limits, facts.Limit(s))
		}
		k.Grants, k.Lent = n.table.Lent(now, key)
	}
	k.LeaseLeft, k.Leased = n.book.Left(now, key)
	k.Denies = n.denials.Left(now, key)
	return k, nil
}
