package cluster

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/lease"
	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/timing"
)

// Overview is how this node stands among the others, for people.
type Overview struct {
	// Set is the voter set, zero if none is known yet.
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
	// Counted: in the voter set. Lives: heard from just now.
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
			holds[r.handoff.Owner(p)]++
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
		return "no voter set is known yet"
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
		k.Grants, k.Granted = n.table.Granted(now, key)
	}
	k.LeaseLeft, k.Leased = n.book.Left(now, key)
	k.Denies = n.denials.Left(now, key)
	return k, nil
}

// Stats counts checks since New, except for what is marked as of now.
type Stats struct {
	// Held checks of this node's APIs were decided here, Forwarded ones by another
	// node. Served records came from other nodes and were decided here.
	Held, Forwarded, Served uint64
	// NotOwner records came from other nodes and are not held here; ToldLater ones
	// could not be decided just then. Redirected and Later ones of this node's APIs
	// were answered so by another.
	NotOwner, ToldLater, Redirected, Later uint64
	// Forwards are checks sent to other nodes, retries among them. Retries are
	// attempts that began after a wait. Ambiguous are records that were sent without
	// an answer, and charges of sync rules that no copy confirmed in time.
	Forwards, Retries, Ambiguous uint64
	// Relayed are records that this node has asked the owners for, for nodes that do not hear these.
	Relayed uint64
	// Forwarding is how long calls to other nodes took, each of one or many records.
	Forwarding timing.Snapshot
	// Remembered checks were answered by what their owner had denied just before.
	Remembered uint64
	// Leased checks were answered from a lease.
	Leased uint64
	// Leases are what this node has leased, itself of what it holds included, in units of cost.
	Leases lease.Stats
	// Granted is what it has granted as an owner, and GrantedBack what was returned to it of that, in units. Granting is for
	// how many keys somebody leases of it, now.
	Granted, GrantedBack uint64
	Granting             int
	// Share, Closed and Open were answered by on_failure, because no owner was
	// reached, MinorityShare, MinorityClosed and MinorityOpen by on_partition, because this node had no
	// right to decide; Unanswered by an error, for either reason. Overloaded met a full queue.
	Share, Closed, Open                         uint64
	MinorityShare, MinorityClosed, MinorityOpen uint64
	Unanswered, Overloaded                      uint64
	// Settled is what was admitted as a share and charged to an owner later (cost).
	// DeferredForgotten are keys for which that was given up, because there were too many.
	Settled, DeferredForgotten uint64
	// SharesUnknown are shares of keys of which no owner's answer was remembered.
	SharesUnknown uint64
	// GaveBack are charges of failed all-or-nothing batches that were given back,
	// GiveBacksLost those that could not be. HeldDropped were forgotten by this
	// node before their time, because there were too many.
	GaveBack, GiveBacksLost, HeldDropped uint64
	// RingBuilds are tables built, ViewsRejected views that no ring could be built from,
	// Dropped messages of other nodes that met a full queue.
	RingBuilds, ViewsRejected, Dropped uint64
	// StoresFailed are writes of the voter set that the disk did not take. Unreachable is how many members gossip shows that are not
	// heard over the peer port, now.
	StoresFailed uint64
	Unreachable  int
	// Receipts is how many charges can be given back, Deferred for how many keys something
	// is to be charged to an owner, Members how many the view shows, Seq the view's
	// number, all now.
	Receipts, Deferred, Members int
	Seq                         uint64

	// Eventual is what is decided in eventual mode.
	Eventual EventualStats

	// DeniedLost are checks of keys held here that were denied because counters are lost.
	DeniedLost uint64

	// Partitions are the machine's counts, at most 100 ms old as the rest here is.
	Partitions handoff.Stats
	// Right: this node may decide. Set is the voter set that it knows. Dissolved is how often it
	// gave up its set for another.
	Right     bool
	Set       message.Set
	Dissolved uint64
	// Clock is how this node's clock stands to the voters'.
	Clock ClockStats
}

// Now returns the time in ns that this node decides by: it goes on while the process is stopped or the machine sleeps.
func (n *Node) Now() int64 { return n.cfg.Clock() }

// machines is what the runner publishes of both now and then.
type machines struct {
	unreachable int
	partitions  handoff.Stats
	right       bool
	set         message.Set
	dissolved   uint64
	clock       ClockStats
}

// counters are the counts behind Stats.
type counters struct {
	held, forwarded, served         atomic.Uint64
	notOwner, toldLater             atomic.Uint64
	redirected, later               atomic.Uint64
	forwards, retries, ambiguous    atomic.Uint64
	failure, minority               fallbackStats
	cause                           atomic.Pointer[error] // of the last of these
	unanswered, overloaded, settled atomic.Uint64
	gaveBack, giveBacksLost         atomic.Uint64
	relayed                         atomic.Uint64
	remembered, leased              atomic.Uint64
	granted, grantedBack            atomic.Uint64
	ringBuilds, viewsRejected       atomic.Uint64
	storesFailed                    atomic.Uint64
	forwarding                      timing.Histogram
}

// Stats returns the node's counts.
func (n *Node) Stats() Stats {
	r, c, m := n.routing.Load(), &n.stats, n.machines.Load()
	s := Stats{
		Held: c.held.Load(), Forwarded: c.forwarded.Load(), Served: c.served.Load(),
		NotOwner: c.notOwner.Load(), ToldLater: c.toldLater.Load(),
		Relayed: c.relayed.Load(), Redirected: c.redirected.Load(), Later: c.later.Load(),
		Remembered: c.remembered.Load(), Leased: c.leased.Load(), Leases: n.book.Stats(),
		Granted: c.granted.Load(), GrantedBack: c.grantedBack.Load(), Granting: n.demands.Keys(),
		Forwards: c.forwards.Load(), Retries: c.retries.Load(), Ambiguous: c.ambiguous.Load(),
		Share: c.failure.share.Load(), Closed: c.failure.closed.Load(), Open: c.failure.open.Load(),
		MinorityShare: c.minority.share.Load(), MinorityClosed: c.minority.closed.Load(), MinorityOpen: c.minority.open.Load(),
		Unanswered: c.unanswered.Load(), Overloaded: c.overloaded.Load(), Settled: c.settled.Load(),
		GaveBack: c.gaveBack.Load(), GiveBacksLost: c.giveBacksLost.Load(),
		StoresFailed: c.storesFailed.Load(), Unreachable: m.unreachable,
		RingBuilds: c.ringBuilds.Load(), ViewsRejected: c.viewsRejected.Load(), Dropped: n.runner.dropped.Load(),
		Members: len(r.nodes), Seq: r.seq,
		Partitions: m.partitions, Right: m.right, Set: m.set, Dissolved: m.dissolved, Clock: m.clock,
	}
	s.SharesUnknown = n.shares.Unheard()
	s.Forwarding = c.forwarding.Snapshot()
	s.Eventual = n.eventually.stats(n.cfg.Clock())
	s.DeniedLost = n.table.Stats().DeniedLost
	s.Receipts, s.HeldDropped = n.held.count()
	s.Deferred, s.DeferredForgotten = n.shares.Charges.Count()
	return s
}
