package cluster

import (
	"context"
	"math"
)

// Quiet waits until no living node has asked this one anything for as long as gossip takes to
// tell everybody that all are leaving: who learns it last asks until then.
func (n *Node) Quiet(ctx context.Context) error {
	r := n.runner
	var asked uint64
	var since int64
	return r.await(ctx, func(now int64) bool {
		if a := n.asked(); since == 0 || a != asked {
			asked, since = a, now
		}
		return len(r.placement.view.Members) == 1 || now-since >= int64(spread)
	})
}

// asked counts the records of other nodes.
func (n *Node) asked() uint64 {
	c := &n.stats
	return c.served.Load() + c.notHolder.Load() + c.toldLater.Load()
}

// Rest makes this node decide nothing any more, and neither give nor take partitions, while it goes on
// running: what it has stays as it is, for a last Snapshot. When it returns, no decision is
// under way. There is no way back.
func (n *Node) Rest(ctx context.Context) error {
	r := n.runner
	return r.ask(ctx, func(int64) {
		r.resting = true
		r.quorum.Rest()
		n.right.Store(math.MinInt64)
		for p := range n.cfg.Ring.Partitions {
			n.table.Seal(p)
		}
	})
}
