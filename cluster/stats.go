package cluster

import (
	"sync/atomic"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/lease"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/timing"
)

// Stats counts checks since New, except for what is marked as of now.
type Stats struct {
	// Held checks of this node's doors were decided here, Forwarded ones by another
	// node. Served records came from other nodes and were decided here.
	Held, Forwarded, Served uint64
	// NotHolder records came from other nodes and are not held here; ToldLater ones
	// could not be decided just then. Redirected and Later ones of this node's doors
	// were answered so by another.
	NotHolder, ToldLater, Redirected, Later uint64
	// Forwards are checks sent to other nodes, retries among them. Retries are
	// attempts that began after a wait. Ambiguous are records that were sent without
	// an answer, and charges of sync rules that no copy confirmed in time.
	Forwards, Retries, Ambiguous uint64
	// Relayed are records that this node has asked the owners for, for nodes that do not hear these.
	Relayed uint64
	// Forwarding is how long calls to other nodes took, each of one or many records.
	Forwarding timing.Snapshot
	// Remembered checks were answered by what their holder had denied just before.
	Remembered uint64
	// Leased checks were answered from a lease.
	Leased uint64
	// Leases are what this node has borrowed, itself of what it holds included, in units of cost.
	Leases lease.Stats
	// Lent is what it has lent as a holder, and LentBack what was returned to it of that, in units. Lending is for
	// how many keys somebody borrows of it, now.
	Lent, LentBack uint64
	Lending        int
	// Share, Closed and Open were answered by on_failure, because no holder was
	// reached, MinorityShare, MinorityClosed and MinorityOpen by on_partition, because this node had no
	// right to decide; Unanswered by an error, for either reason. Overloaded met a full queue.
	Share, Closed, Open                         uint64
	MinorityShare, MinorityClosed, MinorityOpen uint64
	Unanswered, Overloaded                      uint64
	// Settled is what was admitted as a share and charged to a holder later (cost).
	// OwedForgotten are keys for which that was given up, because there were too many.
	Settled, OwedForgotten uint64
	// SharesUnknown are shares of keys of which no owner's answer was remembered.
	SharesUnknown uint64
	// GaveBack are charges of failed all-or-nothing batches that were given back,
	// GiveBacksLost those that could not be. HeldDropped were forgotten by this
	// node before their time, because there were too many.
	GaveBack, GiveBacksLost, HeldDropped uint64
	// RingBuilds are tables built, ViewsRefused views that no ring could be built from,
	// Dropped messages of other nodes that met a full queue.
	RingBuilds, ViewsRefused, Dropped uint64
	// StoresFailed are writes of the voter set that the disk did not take. Unreachable is how many members gossip shows that are not
	// heard over the peer port, now.
	StoresFailed uint64
	Unreachable  int
	// Receipts is how many charges can be given back, Owed for how many keys something
	// is to be charged to a holder, Members how many the view shows, Seq the view's
	// number, all now.
	Receipts, Owed, Members int
	Seq                     uint64

	// Eventual is what is decided in eventual mode.
	Eventual EventualStats

	// DeniedLost are checks of keys held here that were denied because counters are lost.
	DeniedLost uint64

	// Partitions are the machine's counts, at most 100 ms old as the rest here is.
	Partitions handoff.Stats
	// Right: this node may decide. Set is the stable set that it knows. Dissolved is how often it
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
	notHolder, toldLater            atomic.Uint64
	redirected, later               atomic.Uint64
	forwards, retries, ambiguous    atomic.Uint64
	failure, minority               answers
	cause                           atomic.Pointer[error] // of the last of these
	unanswered, overloaded, settled atomic.Uint64
	gaveBack, giveBacksLost         atomic.Uint64
	relayed                         atomic.Uint64
	remembered, leased              atomic.Uint64
	lent, lentBack                  atomic.Uint64
	ringBuilds, viewsRefused        atomic.Uint64
	storesFailed                    atomic.Uint64
	forwarding                      timing.Histogram
}

// Stats returns the node's counts.
func (n *Node) Stats() Stats {
	r, c, m := n.routing.Load(), &n.stats, n.machines.Load()
	s := Stats{
		Held: c.held.Load(), Forwarded: c.forwarded.Load(), Served: c.served.Load(),
		NotHolder: c.notHolder.Load(), ToldLater: c.toldLater.Load(),
		Relayed: c.relayed.Load(), Redirected: c.redirected.Load(), Later: c.later.Load(),
		Remembered: c.remembered.Load(), Leased: c.leased.Load(), Leases: n.book.Stats(),
		Lent: c.lent.Load(), LentBack: c.lentBack.Load(), Lending: n.demands.Keys(),
		Forwards: c.forwards.Load(), Retries: c.retries.Load(), Ambiguous: c.ambiguous.Load(),
		Share: c.failure.share.Load(), Closed: c.failure.closed.Load(), Open: c.failure.open.Load(),
		MinorityShare: c.minority.share.Load(), MinorityClosed: c.minority.closed.Load(), MinorityOpen: c.minority.open.Load(),
		Unanswered: c.unanswered.Load(), Overloaded: c.overloaded.Load(), Settled: c.settled.Load(),
		GaveBack: c.gaveBack.Load(), GiveBacksLost: c.giveBacksLost.Load(),
		StoresFailed: c.storesFailed.Load(), Unreachable: m.unreachable,
		RingBuilds: c.ringBuilds.Load(), ViewsRefused: c.viewsRefused.Load(), Dropped: n.runner.dropped.Load(),
		Members: len(r.nodes), Seq: r.seq,
		Partitions: m.partitions, Right: m.right, Set: m.set, Dissolved: m.dissolved, Clock: m.clock,
	}
	s.SharesUnknown = n.shares.Unheard()
	s.Forwarding = c.forwarding.Snapshot()
	s.Eventual = n.eventually.stats(n.cfg.Clock())
	s.DeniedLost = n.table.Stats().DeniedLost
	s.Receipts, s.HeldDropped = n.held.count()
	s.Owed, s.OwedForgotten = n.shares.Charges.Count()
	return s
}
