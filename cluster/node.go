package cluster

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/ring"
)

// Node answers checks of this process's doors (Decide) and of other nodes (Serve).
// It implements check.Decider and check.Handler and is safe for concurrent use.
type Node struct {
	cfg   Config
	table *bucket.Table // the counters it holds
	apart *bucket.Table // what on_failure share spends
	held  *held         // charges that other nodes may give back

	routing atomic.Pointer[routing]
	views   sync.Mutex // one SetView at a time

	ids       atomic.Uint64 // the last id given to a held charge
	returning sync.WaitGroup
	stats     counters
	apartSize int // shards of apart
}

// New returns a node that holds its counters in table, which must have as many
// shards as c.Ring has partitions. Until the first view it is alone and not in the
// ring, so it holds nothing.
func New(c Config, table *bucket.Table) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: c.withDefaults(), table: table, held: newHeld(maxHeld)}
	n.apartSize = min(64, n.cfg.Ring.Partitions)
	apart, err := bucket.NewTable(bucket.Config{Shards: n.apartSize, MaxEntries: n.cfg.ApartEntries})
	if err != nil {
		return nil, err
	}
	n.apart = apart
	r, err := newRouting(n.cfg.Ring, member.View{}, c.Name, c.Boot, nil)
	if err != nil {
		return nil, err
	}
	n.routing.Store(r)
	return n, nil
}

// SetView makes v the view that checks are routed by. Views must come in order; one
// with a lower Seq than the last is ignored. The ring is built from the members that
// serve, and the counters of partitions that go to other nodes are dropped. A view
// from which no ring can be built is logged and counted, and the last one stays.
func (n *Node) SetView(v member.View) {
	n.views.Lock()
	defer n.views.Unlock()
	before := n.routing.Load()
	if v.Seq < before.seq {
		return
	}
	r, err := newRouting(n.cfg.Ring, v, n.cfg.Name, n.cfg.Boot, before)
	if err != nil {
		n.stats.viewsRefused.Add(1)
		n.cfg.Log.Error("view refused, the last one stays", "view", v.Seq, "error", err)
		return
	}
	if r.table != before.table {
		n.stats.ringBuilds.Add(1)
	}
	// First the routing, then the counters: a check that still saw the old routing may
	// leave a counter behind. It only ever holds what was spent, so should the
	// partition come back, it is no more permissive for that.
	n.routing.Store(r)
	close(before.superseded)
	for p := range r.table.Partitions() {
		if before.holdsPartition(p) && !r.holdsPartition(p) {
			n.table.DropShard(p)
			n.stats.movedAway.Add(1)
		}
	}
	n.cfg.Peers.Retain(r.peerAddrs())
}

// holdsPartition is holds for a whole partition.
func (r *routing) holdsPartition(p int) bool {
	return r.ring != nobody && r.table.OwnerIndex(p) == r.ring
}

// Ring returns the ring table in force.
func (n *Node) Ring() *ring.Table { return n.routing.Load().table }

// InRing reports whether this process is one that the ring gives partitions to.
func (n *Node) InRing() bool { return n.routing.Load().ring != nobody }

// Run drops expired counters, one shard at a time, spread so that all are looked at
// once per SweepPeriod. When ctx ends it waits for charges that are being given back
// and returns nil; by then no Decide may be running or begin.
func (n *Node) Run(ctx context.Context) error {
	defer n.returning.Wait()
	partitions := n.cfg.Ring.Partitions
	tick := time.NewTicker(max(n.cfg.SweepPeriod/time.Duration(partitions), time.Microsecond))
	defer tick.Stop()
	for p := 0; ; p = (p + 1) % partitions {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := n.cfg.Clock()
		n.table.Sweep(now, p)
		n.apart.Sweep(now, p%n.apartSize)
	}
}
