package cluster

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/lease"
	"github.com/sluice-project/sluice/cluster/quorum"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/ring"
)

// Node answers checks of this process's doors (Decide) and of other nodes (Serve).
// It implements check.Decider and check.Handler and is safe for concurrent use.
type Node struct {
	cfg     Config
	table   *bucket.Table  // the counters it holds, and copies of others
	shares  *share.Shares  // what it admits without owners, and has still to charge to them
	held    *held          // charges that other nodes may give back
	denials lease.Denials  // what other holders have denied
	book    *lease.Book    // what it has borrowed of other holders
	demands *lease.Demands // who borrows of it
	leasing *task          // there are keys in book or demands
	settles *task          // there are deferred charges
	// deferredChanged holds one when the deferred charges on disk are out of date.
	deferredChanged chan struct{}
	refused         refused // what it has denied to others
	roomy           roomy   // what it is to tell them
	// eventually is its part in eventual mode.
	eventually *eventually

	// What the runner publishes: where checks go, until when this process may decide,
	// and that copies may have confirmed more.
	routing  atomic.Pointer[routing]
	right    atomic.Int64
	confirms bell
	// lostLimits are those of the rules that mind lost counters.
	lostLimits lostLimits
	ahead      atomic.Int64 // how far (ns) windows are aligned ahead of this node's clock
	machines   atomic.Pointer[machines]

	runner    *runner
	ids       atomic.Uint64 // the last id given to a held charge
	returning sync.WaitGroup
	stats     counters
}

// New returns a node that keeps its counters in table, which must have as many
// shards as c.Ring has partitions. It holds nothing before Run, and knows nobody before
// the first view.
func New(c Config, table *bucket.Table) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: c.withDefaults(), table: table, held: newHeld(maxHeld)}
	n.book, n.demands = lease.NewBook(n.cfg.Lease), lease.NewDemands(n.cfg.Boot)
	n.leasing = newTask(leasePeriod)
	n.settles, n.deferredChanged = newTask(settlePeriod), make(chan struct{}, 1)
	var err error
	if n.shares, err = share.New(share.Config{
		Counters: table, Shards: min(64, n.cfg.Ring.Partitions), MaxKeys: n.cfg.ApartEntries, LastAnswers: n.cfg.LastAnswers, Changed: func() { signal(n.deferredChanged) },
	}); err != nil {
		return nil, err
	}
	if rec := n.cfg.Recorded; rec != nil && len(rec.deferred) > 0 {
		n.shares.Restore(rec.deferred, rec.voters)
		n.settles.call()
	}
	n.eventually = newEventually(n)
	n.right.Store(math.MinInt64)
	n.shares.When.Start(n.cfg.Clock(), n.cfg.dead(), n.cfg.CheckTimeout)
	if n.runner, err = newRunner(n); err != nil {
		return nil, err
	}
	return n, nil
}

// newRunner returns n's runner with its machines, before any view.
func newRunner(n *Node) (*runner, error) {
	now := n.cfg.Clock()
	self := message.Peer{Name: n.cfg.Name, Boot: n.cfg.Boot}
	counted := quorum.Config{
		Self: self, Right: n.cfg.Right, Dead: n.cfg.dead(), ForgetAfter: n.cfg.ForgetAfter, Expect: n.cfg.Expect, Disk: n.cfg.Store != nil,
	}
	recorded := n.cfg.Recorded
	if recorded != nil {
		counted.Record = recorded.Record
	}
	if err := counted.Validate(); err != nil {
		return nil, err
	}
	r := &runner{
		node: n, self: self, quorum: quorum.New(counted, now),
		inbox: make(chan message.Envelope, inboxSize), asks: make(chan func(int64)),
		kick: make(chan struct{}, 1), ended: make(chan struct{}), stored: make(chan stored, 1),
	}
	r.views.wake, r.corrector = make(chan struct{}, 1), newCorrector(n)
	holding := handoff.Config{
		Self: self, Partitions: n.cfg.Ring.Partitions, Table: n.table, Quorum: r.quorum, Recorded: recorded != nil,
		Dropping: func(partition int) { n.shares.Keep(n.cfg.Clock(), partition) }, Replicas: n.cfg.Replicas, LostHold: n.cfg.LostHold, LostUntil: n.lostUntil,
	}
	if err := holding.Validate(); err != nil {
		return nil, err
	}
	r.handoff = handoff.New(holding, now)
	if recorded != nil {
		recorded.restore(r.handoff)
		r.handoff.Lineage(recorded.Lineage)
	}
	none, err := ring.Build(n.cfg.Ring, nil)
	if err != nil {
		return nil, err
	}
	nodes, at := nodesOf(member.View{}, self)
	r.scene = &scene{nodes: nodes, self: at}
	r.placement = place(n.cfg.Ring, r.scene, &placement{table: none, without: none})
	r.placer = newPlacer(n.cfg.Ring, n.cfg.Peers.Retain, r.placement)
	n.machines.Store(new(machines))
	first := newRouting(nodes, at, none)
	first.setHolders(func(int) message.Peer { return message.Peer{} })
	n.routing.Store(first)
	return r, nil
}

// SetView tells who gossip shows. Views must come in order; one with a lower Seq than
// the last is ignored. Members that are heard and serve get the partitions. A view from
// which no ring can be built is logged and counted, and the last ring stays.
func (n *Node) SetView(v member.View) { n.runner.setView(v) }

// Deliver takes a message of another node. It never blocks: what is too much is dropped
// and counted.
func (n *Node) Deliver(e message.Envelope) {
	switch m := e.Body.(type) {
	case *message.Room:
		n.heardRoom(e.To, m)
	case *message.Report, *message.Account:
		n.eventually.deliver(e)
	default:
		n.runner.deliver(e)
	}
}

// Tell sends a message to every other member that gossip shows, and returns whom. It does not block, and
// any of them may miss it.
func (n *Node) Tell(b message.Body) (told []message.Peer) {
	r := n.routing.Load()
	for i := range r.nodes {
		if to := &r.nodes[i]; i != r.self {
			told = append(told, to.peer())
			n.tell(to, b)
		}
	}
	return told
}

// TellOne is Tell for one member, if gossip shows it.
func (n *Node) TellOne(p message.Peer, b message.Body) {
	r := n.routing.Load()
	if i := r.find(p.Name); i != nobody && i != r.self && r.nodes[i].boot == p.Boot {
		n.tell(&r.nodes[i], b)
	}
}

func (n *Node) tell(to *node, b message.Body) {
	if to.addr != "" {
		n.cfg.Peers.Post(to.addr, message.Envelope{From: n.runner.self, To: to.peer(), Body: b})
	}
}

// reroute makes r the routing in force.
func (n *Node) reroute(r *routing) { close(n.routing.Swap(r).superseded) }

// mayDecide reports whether this process has the right to decide at now.
func (n *Node) mayDecide(now int64) bool { return now < n.right.Load() }

// Ring returns the ring table in force: who should hold what.
func (n *Node) Ring() *ring.Table { return n.routing.Load().table }

// Run keeps this node in its standing among the others, until ctx ends: without it the
// node has no right to decide. It also drops expired counters, and tells holders
// what was admitted without them. When ctx has ended it waits for charges that are being
// given back and returns nil; by then no Decide may be running or begin.
func (n *Node) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { n.runner.run(ctx) })
	parts.Go(func() { n.runner.placer.run(ctx) })
	parts.Go(func() { n.runner.corrector.run(ctx) })
	parts.Go(func() { n.settleUp(ctx) })
	parts.Go(func() { n.eventually.run(ctx) })
	parts.Go(func() { n.tendLeases(ctx) })
	n.sweep(ctx)
	parts.Wait()
	n.returning.Wait()
	return nil
}

// sweep drops expired counters, a few shards at a time, spread so that all are looked at
// once per SweepPeriod.
func (n *Node) sweep(ctx context.Context) {
	partitions := n.cfg.Ring.Partitions
	// Some at a time, so that an idle node sleeps.
	const batch = 8
	tick := time.NewTicker(max(batch*n.cfg.SweepPeriod/time.Duration(partitions), time.Microsecond))
	defer tick.Stop()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for range batch {
			now := n.cfg.Clock()
			n.table.Sweep(now, next)
			n.shares.Sweep(now, next)
			next = (next + 1) % partitions
			runtime.Gosched()
		}
	}
}
