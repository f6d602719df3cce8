// Package cluster is the node: it answers every check, out of the counters it
// holds or through the node that holds them.
//
// It decides where a check is decided, and whether here and now it may be: what this node
// holds it decides at once while it has quorum to; the rest goes to the owners, one
// call for each. A node that is asked by another for what it does not hold never
// decides: it names the owner it knows, and the requester learns. While a partition is being
// handed over, checks wait behind it. When no owner answers in time, the rule's
// on_failure does, and when this node has no right, on_partition. It also decides what
// all-or-nothing means across keys and nodes, and tells owners what was admitted
// without them.
//
// It leaves to others: what a check costs and whether that is too much (bucket), who
// is a member (cluster/gossip), who is counted and has quorum (cluster/quorum), who
// holds what and has copies (cluster/handoff), how records and messages travel
// (whoever implements Peers), how a snapshot lies on disk (internal/snapshot), and who asked (the
// APIs). Ring tables come from package ring.
//
// Goroutines: Run is the caller's and owns five. The runner owns both machines: it gives
// them the time, messages and the view, and publishes what checks need in three atomics:
// the routing, until when there is a right, and what copies have confirmed. The placer
// builds rings beside it. The three others sweep expired counters, settle what was
// admitted as shares, and return what is not used of leases. A batch that needs several nodes has one goroutine per further
// node until it is answered. Charges are given back to other nodes by goroutines
// that live at most GiveBackTimeout; Run waits for them, as for those that carry what has gathered of a
// hot key, and ask for leases of it.
//
// Locks: held.mu takes shard locks under it; no other lock is held while another is
// taken. No lock is held while a peer is called.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
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

// Node answers checks of this process's APIs (Decide) and of other nodes (Serve).
// It implements check.Decider and check.Handler and is safe for concurrent use.
type Node struct {
	cfg     Config
	table   *bucket.Table  // the counters it holds, and copies of others
	shares  *share.Shares  // what it admits without owners, and has still to charge to them
	held    *held          // charges that other nodes may give back
	denials lease.Denials  // what other owners have denied
	book    *lease.Book    // what it has leased of other owners
	demands *lease.Demands // who leases of it
	leasing *task          // there are keys in book or demands
	settles *task          // there are deferred charges
	// deferredChanged holds one when the deferred charges on disk are out of date.
	deferredChanged chan struct{}
	rejected        rejected     // what it has denied to others
	invalidation    invalidation // what it is to tell them
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
	n.book, n.demands = lease.NewBook(n.cfg.Hot), lease.NewDemands(n.cfg.Boot)
	n.leasing = newTask(leasePeriod)
	n.settles, n.deferredChanged = newTask(settlePeriod), make(chan struct{}, 1)
	var err error
	if n.shares, err = share.New(share.Config{
		Counters: table, Shards: min(64, n.cfg.Ring.Partitions), MaxKeys: shareKeys, LastAnswers: n.cfg.LastAnswers, Changed: func() { signal(n.deferredChanged) },
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
		Self: self, Timeout: n.cfg.Right, Dead: n.cfg.dead(), ForgetAfter: n.cfg.ForgetAfter, Expect: n.cfg.Expect, Disk: n.cfg.Store != nil,
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
		r.handoff.ClusterID(recorded.ClusterID)
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
	first.setOwners(func(int) message.Peer { return message.Peer{} })
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

// Tell sends a message to every other member that gossip shows. It does not block, and any of them may miss it.
func (n *Node) Tell(b message.Body) {
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
func (n *Node) reroute(r *routing) { close(n.routing.Swap(r).superseded) }

// mayDecide reports whether this process has quorum to decide at now.
func (n *Node) mayDecide(now int64) bool { return now < n.right.Load() }

// Ring returns the ring table in force: who should hold what.
func (n *Node) Ring() *ring.Table { return n.routing.Load().table }

// Run keeps this node in its standing among the others, until ctx ends: without it the
// node has no right to decide. It also drops expired counters, and tells owners
// what was admitted without them. When ctx has ended it waits for charges that are being
// given back and returns nil; by then no Decide may be running or begin.
func (n *Node) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { n.runner.run(ctx) })
	parts.Go(func() { n.runner.placer.run(ctx) })
	parts.Go(func() { n.runner.corrector.run(ctx) })
	parts.Go(func() { n.settles.run(ctx, func() bool { return n.settleDue(ctx) }) })
	parts.Go(func() { n.eventually.run(ctx) })
	parts.Go(func() { n.eventually.task.run(ctx, n.eventually.report) })
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
			n.table.Sweep(now, next)
			n.shares.Sweep(now, next)
			next = (next + 1) % partitions
			runtime.Gosched()
		}
	}
}

// MayFound says whether this node may take part in founding a voter set: join targets were asked, the view shows who answered, and none
// has rejected it.
func (n *Node) MayFound(ctx context.Context, may bool) error {
	return n.runner.ask(ctx, func(now int64) { n.runner.quorum.MayFound(now, may) })
}

// ErrHasQuorum is why a node founds no voter set by hand.
var ErrHasQuorum = errors.New("it has quorum")

// Bootstrap makes this node found a voter set of its own, by hand. It fails with ErrHasQuorum where the node has quorum. Whoever wants it says that
// the nodes that are not reached are gone for good: if they are alive, there are two clusters.
func (n *Node) Bootstrap(ctx context.Context) error {
	r := n.runner
	var rejected error
	var was string
	err := r.ask(ctx, func(now int64) {
		was = r.quorum.Set().ID
		if rejected = r.quorum.Bootstrap(now); rejected != nil {
			rejected = fmt.Errorf("%w: %w", ErrHasQuorum, rejected)
		}
	})
	if err != nil {
		return err
	}
	if rejected != nil {
		return rejected
	}
	return r.await(ctx, func(int64) bool { s := r.quorum.Set(); return !s.Zero() && s.ID != was })
}

// Waits says in plain words what this node waits for before it can have quorum and claim partitions, one item each; none if it can. fails says why the last
// message to the peer port at an address did not arrive, "" if it did or that is not known.
func (n *Node) Waits(ctx context.Context, fails func(addr string) string) (waits []string, err error) {
	r := n.runner
	err = r.ask(ctx, func(now int64) {
		switch set := r.quorum.Set(); {
		case n.mayDecide(now):
			if !r.quorum.Promises(now) {
				waits = []string{"waiting until the promises of an earlier run of this node have run out"}
			}
		case set.Zero():
			waits = r.waitsForSet(now, fails)
		default:
			waits = append([]string{r.whyNot(now)}, r.unheardVoters(now, set, fails)...)
		}
	})
	return waits, err
}

// Unreached says which members gossip shows and are not heard over the peer ports; with what Waits says where the node has no quorum.
func (n *Node) Unreached(ctx context.Context, fails func(addr string) string) (all []string, err error) {
	if all, err = n.Waits(ctx, fails); err != nil || len(all) > 0 {
		return all, err
	}
	r := n.runner
	err = r.ask(ctx, func(now int64) {
		for i, m := range r.scene.nodes {
			if i != r.scene.self && !r.lives(now, m.peer()) {
				all = append(all, r.unheard(now, m.peer(), fails))
			}
		}
	})
	return all, err
}

// AwaitQuorum waits until this node has quorum: it has exchanged messages over the peer ports with a majority of the voters.
func (n *Node) AwaitQuorum(ctx context.Context) error {
	return n.runner.await(ctx, n.mayDecide)
}

// waitsForSet is Waits for a node that knows no voter set.
func (r *runner) waitsForSet(now int64, fails func(string) string) (waits []string) {
	w := r.quorum.Waiting(now)
	say := func(format string, args ...any) { waits = append(waits, fmt.Sprintf(format, args...)) }
	missing := w.Expect - len(w.Have)
	switch {
	case len(w.Know) > 0:
		for _, p := range w.Know {
			say("%s knows a voter set that has no quorum: start its other voters, or `sluice members bootstrap` if they are gone for good", p.Name)
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
		say("waiting for %s to bootstrap with: --bootstrap-expect is %d, have %s", nodes(missing), w.Expect, strings.Join(w.Have, ", "))
	default:
		say("founding a voter set: have %s", strings.Join(w.Have, ", "))
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

func nodes(n int) string {
	if n == 1 {
		return "1 more node"
	}
	return fmt.Sprintf("%d more nodes", n)
}

// unheardVoters names the voters that this node does not hear, and what of them fails.
func (r *runner) unheardVoters(now int64, set message.Set, fails func(string) string) (all []string) {
	for _, name := range set.Members {
		at := r.scene.of(name)
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

// of returns the node that gossip shows under name, nil if none.
func (s *scene) of(name string) *node {
	for i := range s.nodes {
		if s.nodes[i].name == name {
			return &s.nodes[i]
		}
	}
	return nil
}
