package cluster

import "sync/atomic"

// Stats counts checks since New, except for what is marked as of now.
type Stats struct {
	// Held checks of this node's doors were decided here, Forwarded ones by another
	// node. Served records came from other nodes and were decided here.
	Held, Forwarded, Served uint64
	// NotHolder records came from other nodes and are not held here. Redirected
	// ones of this node's doors were answered so by another.
	NotHolder, Redirected uint64
	// Forwards are records sent to other nodes, retries among them. Retries are
	// attempts that began after a wait. Ambiguous are records that were sent without
	// an answer.
	Forwards, Retries, Ambiguous uint64
	// Share, Closed and Open were answered by on_failure, Unanswered by an error,
	// because no holder was reached. Overloaded met a full queue.
	Share, Closed, Open, Unanswered, Overloaded uint64
	// GaveBack are charges of failed all-or-nothing batches that were given back,
	// GiveBacksLost those that could not be. HeldDropped were forgotten by this
	// node before their time, because there were too many.
	GaveBack, GiveBacksLost, HeldDropped uint64
	// RingBuilds are tables built, MovedAway partitions that left this node,
	// ViewsRefused views that no ring could be built from.
	RingBuilds, MovedAway, ViewsRefused uint64
	// Partitions is how many this node holds, Members how many the view shows, Seq
	// the view's number, Receipts how many charges can be given back, all now.
	Partitions, Members, Receipts int
	Seq                           uint64
}

// counters are the counts behind Stats.
type counters struct {
	held, forwarded, served, notHolder, redirected atomic.Uint64
	forwards, retries, ambiguous                   atomic.Uint64
	share, closed, open, unanswered, overloaded    atomic.Uint64
	gaveBack, giveBacksLost                        atomic.Uint64
	ringBuilds, movedAway, viewsRefused            atomic.Uint64
}

// Stats returns the node's counts.
func (n *Node) Stats() Stats {
	r, c := n.routing.Load(), &n.stats
	s := Stats{
		Held: c.held.Load(), Forwarded: c.forwarded.Load(), Served: c.served.Load(),
		NotHolder: c.notHolder.Load(), Redirected: c.redirected.Load(),
		Forwards: c.forwards.Load(), Retries: c.retries.Load(), Ambiguous: c.ambiguous.Load(),
		Share: c.share.Load(), Closed: c.closed.Load(), Open: c.open.Load(),
		Unanswered: c.unanswered.Load(), Overloaded: c.overloaded.Load(),
		GaveBack: c.gaveBack.Load(), GiveBacksLost: c.giveBacksLost.Load(),
		RingBuilds: c.ringBuilds.Load(), MovedAway: c.movedAway.Load(), ViewsRefused: c.viewsRefused.Load(),
		Members: len(r.nodes), Seq: r.seq,
	}
	if r.ring != nobody {
		s.Partitions = r.table.Owned(n.cfg.Name)
	}
	s.Receipts, s.HeldDropped = n.held.count()
	return s
}
