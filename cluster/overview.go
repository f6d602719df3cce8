package cluster

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/timing"
)

// Overview is the state of this node in the cluster, for people.
type Overview struct {
	// Set is the voter set, zero if none is known yet.
	Set message.Set
	// HasQuorum: this node has quorum. If not, Reason says why.
	HasQuorum bool
	Reason    string
	// Members are all that gossip shows, this node among them, and then the names of voters that it does not show.
	Members    []member.Standing
	Clock      member.Clocks
	Partitions handoff.Stats
}

// Overview returns the state of this node. It fails when ctx ends or the node does not run.
func (n *Node) Overview(ctx context.Context) (o Overview, err error) {
	r := n.runner
	err = r.do(ctx, func(now int64) {
		o = Overview{Set: r.quorum.Set(), HasQuorum: n.mayDecide(now), Partitions: r.handoff.Stats(), Clock: r.corrector.stats}
		if !o.HasQuorum {
			o.Reason = r.whyNot(now)
		}
		owned := make(map[message.Peer]int)
		for p := range n.cfg.Ring.Partitions {
			owned[r.handoff.Owner(p)]++
		}
		for _, m := range r.live.nodes {
			s := member.Standing{Name: m.name, Boot: m.boot, Alive: r.quorum.Lives(now, m.peer()), Silent: -1, Owned: owned[m.peer()]}
			if heard := r.quorum.Heard(m.peer()); heard != math.MinInt64 {
				s.Silent = time.Duration(max(0, now-heard))
			}
			if ahead, known := r.quorum.Ahead(now, m.name, int64(o.Clock.MaxSkew)); known {
				s.Ahead = new(time.Duration(ahead) + o.Clock.Ahead)
			}
			o.Members = append(o.Members, s)
		}
		for _, name := range o.Set.Members {
			if r.live.byName(name) == nil {
				o.Members = append(o.Members, member.Standing{Name: name, Silent: -1})
			}
		}
	})
	return o, err
}

// report publishes the state of both machines, and logs changes.
func (r *runner) report(now int64) {
	s := &State{
		Partitions: r.handoff.Stats(), HasQuorum: r.node.mayDecide(now), Set: r.quorum.Set(), Dissolved: r.quorum.Dissolved(),
		Clock: r.corrector.stats,
	}
	at := nodeState{
		now: now, leaving: r.known != nil && r.known[r.at].state == member.Leaving, others: len(r.assignment.view.Members) - 1,
		partitions: r.node.cfg.Ring.Partitions, fallback: r.node.fallbacks(),
	}
	for i, n := range r.live.nodes {
		if i != r.live.self && !r.lives(now, n.peer()) && !r.quorum.Listens(now, n.peer()) {
			at.unheard = append(at.unheard, n.name)
		}
	}
	s.Unreachable, s.Early = len(at.unheard), r.stateLog.fallback.early(at.fallback)
	r.node.published.Store(s)
	if !s.HasQuorum {
		at.reason = r.whyNot(now)
	}
	at.State = *s
	r.stateLog.logChanges(r.node.cfg.Log, at)
}

// KeyFacts returns what this node knows of a key under limits. It fails when ctx ends or the node does not run.
func (n *Node) KeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (k facts.Key, err error) {
	k.Node, k.Partition = n.cfg.Name, key.Shard(n.cfg.Ring.Partitions)
	err = n.runner.do(ctx, func(now int64) {
		k.Owner = n.runner.handoff.Owns(k.Partition) && n.mayDecide(now)
		s, has := n.runner.handoff.State(k.Partition)
		k.Replica, k.Complete = has && !s.Owned, s.Complete && !s.Owned
		if has {
			k.Gen = s.Mark.Epoch.Gen
		}
	})
	if err != nil {
		return k, err
	}
	now := n.cfg.Clock()
	if k.Owner {
		list, known := n.table.Look(now, key, limits)
		k.Counted = known
		for _, s := range list {
			k.Limits = append(k.Limits, facts.Limit(s))
		}
		var held []bucket.Held
		held, k.Grants, k.Granted = n.table.Held(now, key, facts.MaxHeld)
		for _, h := range held {
			k.Held = append(k.Held, facts.Holding{ID: h.ID, Use: h.Use.String(), Units: h.Units, Caller: h.Caller, Expires: h.Expires})
		}
	}
	k.LeaseLeft, k.Leased = n.book.Left(now, key)
	k.Denies = n.denials.Left(now, key)
	return k, nil
}

// Stats counts checks since New, except for what is marked as of now.
type Stats struct {
	// Owned checks of clients were decided by this node, Forwarded ones by another node. Served records of other nodes were decided
	// here.
	Owned, Forwarded, Served uint64
	// NotOwner records came from other nodes for keys that this node does not own; ServedNotReady ones could not be decided just
	// then. Redirected and NotReady checks of clients got these replies from another node.
	NotOwner, ServedNotReady, Redirected, NotReady uint64
	// Forwards are checks sent to other nodes, retries among them. Retries are attempts that began after a wait. Ambiguous are
	// records that were sent without an answer, and charges of sync rules that no replica confirmed in time.
	Forwards, Retries, Ambiguous uint64
	// Relayed are records forwarded for nodes that do not hear the owner.
	Relayed uint64
	// Forwarding is how long calls to other nodes took, each of one or many records.
	Forwarding timing.Snapshot
	// Remembered checks were answered from the denial cache, Leased ones from a lease.
	Remembered, Leased uint64
	// HomeChecks were sent to the region that has the counter, HomeLeased ones answered from what this one had leased of it, by
	// HomeRequests requests. HomeRejected were rejected there, because rules differ.
	HomeChecks, HomeLeased, HomeRequests, HomeRejected uint64
	// KeysMoved are keys with home: auto that have left this region, KeysStayed those whose move has failed.
	KeysMoved, KeysStayed uint64
	// Leases is what this node has leased, of itself too, in units of cost.
	Leases lease.Stats
	// Granted is what it has granted as an owner, in units. Granting is how many keys have leaseholders, now.
	Granted  uint64
	Granting int
	// Share, Closed and Open were answered by on_failure, because no owner was reached, the next three by on_partition,
	// because this node had no quorum; Unanswered by an error, for either reason. Overloaded met a full queue.
	Share, Closed, Open                         uint64
	MinorityShare, MinorityClosed, MinorityOpen uint64
	Unanswered, Overloaded                      uint64
	// DeferredCharged is the cost of deferred charges that owners have charged. Deferred is how many keys have some, now;
	// DeferredForgotten are keys whose charges were dropped, because there were too many.
	DeferredCharged, DeferredForgotten uint64
	Deferred                           int
	// SharesUnknown are shares of keys of which no owner's answer was remembered.
	SharesUnknown uint64
	// Refunds are charges of failed atomic batches that were refunded, RefundsLost those that could not be. ChargesDropped
	// were forgotten by this node before their time, because there were too many.
	Refunds, RefundsLost, ChargesDropped uint64
	// RingBuilds are tables built, ViewsRejected views that no ring could be built from, Dropped messages of other nodes that
	// met a full queue, StoresFailed failed writes of the voter set to disk.
	RingBuilds, ViewsRejected, Dropped, StoresFailed uint64
	// Eventual is what is decided in eventual mode.
	Eventual EventualStats
	// DeniedLost are checks of keys owned here that were denied because counters are lost.
	DeniedLost uint64
	State
}

// State is the state of a node, at most 100 ms old.
type State struct {
	// HasQuorum: this node has quorum. Set is the voter set that it knows. Dissolved is how often it gave up its set for another.
	HasQuorum bool
	Set       message.Set
	Dissolved uint64
	// Unreachable is how many members gossip shows that are not heard over the peer port.
	Unreachable int
	// Early is how many checks were answered without their owners before their deadlines, since answers are not all by owners; 0
	// once they are.
	Early      uint64
	Partitions handoff.Stats
	Clock      member.Clocks
}

// Now returns the time in ns on this node's clock, which runs on while the process is stopped or the machine sleeps.
func (n *Node) Now() int64 { return n.cfg.Clock() }

// counters are the counts behind Stats.
type counters struct {
	owned, forwarded, served                atomic.Uint64
	notOwner, servedNotReady                atomic.Uint64
	redirected, notReady                    atomic.Uint64
	forwards, retries, ambiguous            atomic.Uint64
	failure, minority                       fallbackStats
	cause                                   atomic.Pointer[error] // of the last of these
	early                                   atomic.Uint64         // Answers with Early
	unanswered, overloaded, deferredCharged atomic.Uint64
	gaveBack, giveBacksLost                 atomic.Uint64
	relayed                                 atomic.Uint64
	remembered, leased                      atomic.Uint64
	homeChecks, homeLeased, homeRequests    atomic.Uint64
	homeRejected                            atomic.Uint64
	granted                                 atomic.Uint64
	ringBuilds, viewsRejected               atomic.Uint64
	storesFailed                            atomic.Uint64
	forwarding                              timing.Histogram
}

// Stats returns the node's counts.
func (n *Node) Stats() Stats {
	c := &n.stats
	s := Stats{
		Owned: c.owned.Load(), Forwarded: c.forwarded.Load(), Served: c.served.Load(),
		NotOwner: c.notOwner.Load(), ServedNotReady: c.servedNotReady.Load(),
		Relayed: c.relayed.Load(), Redirected: c.redirected.Load(), NotReady: c.notReady.Load(),
		Remembered: c.remembered.Load(), Leased: c.leased.Load(),
		HomeChecks: c.homeChecks.Load(), HomeLeased: c.homeLeased.Load(), HomeRequests: c.homeRequests.Load(), HomeRejected: c.homeRejected.Load(), Leases: n.book.Stats(),
		KeysMoved: n.directory.moved.Load(), KeysStayed: n.directory.stayed.Load(),
		Granted: c.granted.Load(), Granting: n.demands.Keys(),
		Forwards: c.forwards.Load(), Retries: c.retries.Load(), Ambiguous: c.ambiguous.Load(),
		Share: c.failure.share.Load(), Closed: c.failure.closed.Load(), Open: c.failure.open.Load(),
		MinorityShare: c.minority.share.Load(), MinorityClosed: c.minority.closed.Load(), MinorityOpen: c.minority.open.Load(),
		Unanswered: c.unanswered.Load(), Overloaded: c.overloaded.Load(), DeferredCharged: c.deferredCharged.Load(),
		Refunds: c.gaveBack.Load(), RefundsLost: c.giveBacksLost.Load(),
		StoresFailed: c.storesFailed.Load(), RingBuilds: c.ringBuilds.Load(), ViewsRejected: c.viewsRejected.Load(),
		Dropped: n.runner.dropped.Load(), SharesUnknown: n.shares.Unheard(), Forwarding: c.forwarding.Snapshot(),
		Eventual: n.eventual.stats(n.cfg.Clock()), DeniedLost: n.table.Stats().DeniedLost, State: *n.published.Load(),
	}
	_, s.ChargesDropped = n.charges.count()
	s.Deferred, s.DeferredForgotten = n.shares.Charges.Count()
	return s
}
