// Package cluster is the node: it answers every check, from its own counters or through the node that owns the key.
//
// It finds the owner of each check. Checks of keys that this node owns are decided at once while it has quorum (decide.go), all
// others are forwarded, by one call per owner (forward.go, call.go). A node never decides a record of a key that it does not own:
// it replies with the owner that it knows. While a partition is in handoff, its checks wait. When no owner replies in time, the
// rule's on_failure decides, and when this node has no quorum, on_partition (fallback.go). The package also implements atomic
// batches across keys and nodes (atomic.go), and sends deferred charges to owners (deferred.go).
//
// It leaves to others: the cost and decision of a check (bucket), membership (cluster/gossip), voters and quorum
// (cluster/quorum), ownership and replicas (cluster/handoff), transport (Peers), the format of snapshots (internal/snapshot),
// and callers (the APIs). Ring tables come from package ring.
//
// Goroutines: Run owns them all. The runner owns both machines: it gives them the time, messages and the view, and publishes
// in three atomics what checks need: the routing, until when there is quorum, and what replicas have confirmed. The assigner
// builds rings beside it, the corrector aligns windows. Others sweep expired counters, send deferred charges, return unused
// leases, and send and count reports of eventual mode. A batch that needs several nodes has one goroutine per node until it is
// answered. Charges are given back to other nodes, and leases requested, by short-lived goroutines; Run waits for them.
//
// Locks: shard locks are taken under charges.mu; no other lock is held while another is taken. No
// lock is held while a peer is called.
package cluster

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/breaker"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

// Node answers checks of this process's APIs (Decide) and of other nodes (Serve).
// It implements check.Decider and check.Handler and is safe for concurrent use.
type Node struct {
	cfg          Config
	table        *bucket.Table  // counters of partitions that it owns, and replicas of others
	shares       *share.Shares  // shares and deferred charges
	charges      *chargeLog     // charges that other nodes may give back
	denials      lease.Denials  // by other owners
	book         *lease.Book    // what it leases of other owners
	demands      *lease.Demands // of its leaseholders
	homes        homes          // what it leases of other regions
	roles        roles          // which regions decide keys of which homes
	directory    directory      // where keys with home: auto are
	leasing      *task          // there are keys in book, homes or demands
	deferredTask *task          // there are deferred charges

	deferredChanged chan struct{} // holds one when the deferred charges on disk are out of date
	deniedToPeers   deniedToPeers // what it has denied to others
	invalidation    invalidation  // keys to be sent to them
	eventual        *eventualMode
	lostLimits      lostLimits
	circuits        breaker.Breaker // of owners that do not answer in time

	// What the runner publishes: the routing, until when there is quorum, that replicas may have confirmed more, and counts.
	routing     atomic.Pointer[routing]
	quorumUntil atomic.Int64
	confirms    notifier
	published   atomic.Pointer[State]

	ahead      atomic.Int64 // how far (ns) windows are aligned ahead of this node's clock
	runner     *runner
	onFreed    atomic.Pointer[func(*bucket.Key)]
	ids        atomic.Uint64  // the last id given to a charge that can be given back
	background sync.WaitGroup // short-lived goroutines
	stats      counters
}

// New returns a node that keeps its counters in table, which must have as many shards as c.Ring has partitions. It owns nothing
// before Run, and knows no member before the first view.
func New(c Config, table *bucket.Table) (*Node, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: c.withDefaults(), table: table, charges: newChargeLog(maxUndoable)}
	n.book, n.demands, n.leasing = lease.NewBook(n.cfg.Hot), lease.NewDemands(n.cfg.Boot), newTask(leasePeriod)
	n.deferredTask, n.deferredChanged = newTask(deferredPeriod), make(chan struct{}, 1)
	n.published.Store(new(State))
	n.roles.many = n.cfg.Regions != nil && len(n.cfg.Regions.Others()) > 0
	n.roles.inbox, n.roles.calls = make(chan message.Envelope, inboxSize), make(chan func(int64))
	n.roles.wake = make(chan struct{}, 1)
	n.roles.movers, n.roles.begun = map[message.Role]*mover{}, map[string]string{}
	n.directory.moves, n.directory.mu.demand = map[bucket.Key]*keyMove{}, map[bucket.Key]dominant{}
	n.directory.mu.limits = map[string]*bucket.Limits{}
	n.roles.batches = uint64(max(0, n.cfg.Clock())) // above those of an earlier process, which may still be answered
	var err error
	if n.directory.mu.found, err = simplelru.NewLRU[bucket.Key, found](maxFound, nil); err != nil {
		return nil, err
	}
	if n.shares, err = share.New(share.Config{
		Counters: table, Shards: min(64, n.cfg.Ring.Partitions), MaxKeys: shareKeys, LastAnswers: n.cfg.LastAnswers,
		Changed: func() { signal(n.deferredChanged) },
	}); err != nil {
		return nil, err
	}
	if rec := n.cfg.Recorded; rec != nil && len(rec.deferred) > 0 {
		n.shares.Restore(rec.deferred, n.parts(rec.voters))
		n.deferredTask.call()
	}
	n.eventual = newEventualMode(n)
	n.quorumUntil.Store(math.MinInt64)
	n.shares.When.Start(n.cfg.Clock(), n.cfg.leastSilence(), n.cfg.CheckTimeout)
	if n.runner, err = newRunner(n); err != nil {
		return nil, err
	}
	return n, nil
}

// newRunner returns n's runner with its machines, before any view.
func newRunner(n *Node) (*runner, error) {
	now := n.cfg.Clock()
	self := message.Peer{Name: n.cfg.Name, Boot: n.cfg.Boot}
	recorded := n.cfg.Recorded
	voting := quorum.Config{
		Self: self, Timeout: n.cfg.QuorumTimeout, ForgetAfter: n.cfg.ForgetAfter, Expect: n.cfg.Expect,
		Disk: n.cfg.Store != nil,
	}
	if recorded != nil {
		voting.Record = recorded.Record
	}
	if err := voting.Validate(); err != nil {
		return nil, err
	}
	r := &runner{
		node: n, self: self, quorum: quorum.New(voting, now),
		inbox: make(chan message.Envelope, inboxSize), calls: make(chan func(int64)),
		wake: make(chan struct{}, 1), ended: make(chan struct{}), stored: make(chan stored, 1),
	}
	r.views.wake = make(chan struct{}, 1)
	r.corrector = &corrector{node: n, wake: make(chan struct{}, 1), stats: member.Clocks{MaxSkew: n.cfg.MaxClockSkew}}
	owning := handoff.Config{
		Self: self, Partitions: n.cfg.Ring.Partitions, Table: n.table, Quorum: r.quorum, Recorded: recorded != nil, Share: parallel,
		Dropping: func(partition int) { n.shares.Keep(n.cfg.Clock(), partition) },
		Replicas: n.cfg.Replicas, LostHold: n.cfg.LostHold, LostUntil: n.lostUntil,
	}
	if err := owning.Validate(); err != nil {
		return nil, err
	}
	r.handoff = handoff.New(owning, now)
	if recorded != nil {
		recorded.restore(r.handoff)
	}
	none, err := ring.Build(n.cfg.Ring, nil)
	if err != nil {
		return nil, err
	}
	nodes, at := nodesOf(member.View{}, self)
	r.live = &liveMembers{nodes: nodes, self: at}
	r.assignment = assign(n.cfg.Ring, r.live, &assignment{table: none, withoutSelf: none})
	r.assigner = newAssigner(n.cfg.Ring, n.cfg.Peers.Retain, r.assignment)
	first := newRouting(nodes, at, none)
	first.setOwners(func(int) message.Peer { return message.Peer{} })
	first.since = make([]int64, len(first.owners))
	n.routing.Store(first)
	return r, nil
}

// SetView sets the members that gossip shows. Views must come in order; one with a lower Seq than the last is ignored. Members
// that are heard and serve get the partitions. A view from which no ring can be built is logged and counted, and the last
// ring stays.
func (n *Node) SetView(v member.View) {
	views := &n.runner.views
	views.mu.Lock()
	if v.Seq >= views.next.Seq {
		views.next = v
	}
	views.mu.Unlock()
	signal(views.wake)
}

// Deliver takes a message of another node. It never blocks: when the queue is full, the message is dropped and counted. The next
// report of eventual mode includes a dropped one.
func (n *Node) Deliver(e message.Envelope) {
	switch m := e.Body.(type) {
	case *message.DenialInvalidation:
		if e.To.Boot == n.cfg.Boot {
			for _, k := range m.Keys {
				n.denials.Forget(n.cfg.Clock(), k)
			}
		}
	case *message.RegionMessages, *message.RolesRequest, *message.RolesResponse:
		if n.manyRegions() {
			enqueue(n.roles.inbox, e, &n.roles.dropped)
		}
	case *message.Report, *message.Account:
		enqueue(n.eventual.inbox, e, &n.eventual.dropped)
	default:
		enqueue(n.runner.inbox, e, &n.runner.dropped)
	}
}

func enqueue(to chan<- message.Envelope, e message.Envelope, dropped *atomic.Uint64) {
	select {
	case to <- e:
	default:
		dropped.Add(1)
	}
}

// Broadcast sends a message to every other member that gossip shows. It does not block, and any of them may miss it.
func (n *Node) Broadcast(b message.Body) {
	for p, addr := range n.Others() {
		n.cfg.Peers.Post(addr, message.Envelope{From: n.runner.self, To: p, Body: b})
	}
}

// Others returns the address of every other member that gossip shows and that has one.
func (n *Node) Others() map[message.Peer]string {
	r := n.routing.Load()
	others := make(map[message.Peer]string, len(r.nodes))
	for i := range r.nodes {
		if to := &r.nodes[i]; i != r.self && to.addr != "" {
			others[to.peer()] = to.addr
		}
	}
	return others
}

// reroute makes r the routing in force.
func (n *Node) reroute(r *routing) {
	r.noteOwned(n.routing.Load(), n.cfg.Clock())
	close(n.routing.Swap(r).superseded)
	n.retainCircuits(r)
	n.freed(nil)
}

// OnFreed sets what is called when units of a key that is decided here may have become free, and with nil when keys may have other
// owners. f must not block.
func (n *Node) OnFreed(f func(*bucket.Key)) { n.onFreed.Store(&f) }

func (n *Node) freed(k *bucket.Key) {
	if f := n.onFreed.Load(); f != nil {
		(*f)(k)
	}
}

// Owner returns the name of k's owner, "" if no member serves, and whether it is this node.
func (n *Node) Owner(k bucket.Key) (name string, here bool) {
	r := n.routing.Load()
	return r.nameOf(r.owner(k)), r.owns(k)
}

// Owned returns for how long this node has owned k, 0 if it does not.
func (n *Node) Owned(k bucket.Key) time.Duration {
	r := n.routing.Load()
	if !r.owns(k) {
		return 0
	}
	return time.Duration(n.cfg.Clock() - r.since[r.partition(k)])
}

// mayDecide reports whether this process has quorum to decide at now.
func (n *Node) mayDecide(now int64) bool { return now < n.quorumUntil.Load() }

// Ring returns the ring table in force, with the assigned owners.
func (n *Node) Ring() *ring.Table { return n.routing.Load().table }

// Run takes part in the cluster until ctx ends: without it the node has no quorum. It also drops expired counters, and sends
// deferred charges to owners. When ctx has ended it waits for charges that are being given back and returns nil; by then no
// Decide may be running or begin.
func (n *Node) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { n.runner.run(ctx) })
	parts.Go(func() { n.runner.assigner.run(ctx) })
	parts.Go(func() { n.runner.corrector.run(ctx) })
	parts.Go(func() { n.deferredTask.run(ctx, func() bool { return n.sendDueDeferred(ctx) }) })
	parts.Go(func() { n.eventual.run(ctx) })
	parts.Go(func() { n.eventual.task.run(ctx, n.eventual.report) })
	parts.Go(func() { n.maintainLeases(ctx) })
	parts.Go(func() { n.runRoles(ctx) })
	n.sweep(ctx)
	parts.Wait()
	n.background.Wait()
	return nil
}

// sweep drops expired counters, each once per sweepPeriod. It takes a few shards at a time, so that an idle node sleeps.
func (n *Node) sweep(ctx context.Context) {
	partitions := n.cfg.Ring.Partitions
	const batch = 8
	tick := time.NewTicker(max(batch*sweepPeriod/time.Duration(partitions), time.Microsecond))
	defer tick.Stop()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for range batch {
			now := n.cfg.Clock()
			// Without quorum the node may not be the owner any more, and ends no reservation: the
			// present owner may settle or extend it.
			if n.mayDecide(now) || n.table.Sealed(next) {
				n.table.Sweep(now, next)
			}
			n.shares.Sweep(now, next)
			next = (next + 1) % partitions
			runtime.Gosched()
		}
	}
}
