package cluster

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/ring"
)

// Join wants this node counted in the voter set, from now on, and waits until it is. A node that was counted when it crashed is counted
// at once, but may claim nothing until what its earlier run has promised has run out. Join waits for that too, unless most voters have no
// quorum either: meanwhile others own what the earlier run has owned.
func (n *Node) Join(ctx context.Context) error {
	r := n.runner
	if err := r.ask(ctx, func(now int64) { r.quorum.Wish(now, message.Join) }); err != nil {
		return err
	}
	return r.await(ctx, func(now int64) bool { return r.quorum.In() && (r.quorum.Promises(now) || r.quorum.NoneDecides(now)) })
}

// Settled waits until this node has settled, see runner.settled.
func (n *Node) Settled(ctx context.Context) error { return n.runner.await(ctx, n.runner.settled) }

// settled reports whether this node serves and may decide, holds what the ring gives it, and has as many
// complete replicas of everything as it wants and there are other nodes for.
func (r *runner) settled(now int64) bool {
	v := &r.placement.view
	if r.placement.scene.state() != member.Serving || v.Owner == nil || !r.node.mayDecide(now) {
		return false
	}
	for p, owner := range v.Owner {
		if owner != noNode && v.Members[owner] == r.self && !r.handoff.Holds(p) {
			return false
		}
	}
	s := r.handoff.Stats()
	return len(v.Members) == 1 || s.Unprotected == 0 && s.Below == 0
}

// gentle is how long a node that leaves hands over gently, so that those who ask the
// others do not notice. Then it wants to be gone.
const gentle = 5 * time.Second

// HandOver waits until this node holds nothing any more and nobody needs its copies, once it is leaving. It returns how many
// partitions it gave away meanwhile, and how many are left: not 0 if nobody serves who could
// take them, or if ctx ended.
func (n *Node) HandOver(ctx context.Context) (gave, left int, err error) {
	r := n.runner
	var before, after uint64
	if err := r.ask(ctx, func(int64) { before = r.handoff.Stats().HandedOver }); err != nil {
		return 0, 0, err
	}
	hurry := time.AfterFunc(gentle, func() {
		// An error means that the runner has ended, and so has this.
		_ = r.ask(context.Background(), func(int64) { r.handoff.Hurry() })
	})
	defer hurry.Stop()
	err = r.await(ctx, func(int64) bool {
		nobodyTakes := r.placement.scene.state() == member.Leaving && len(r.placement.table.Members()) == 0
		return r.handoff.Held() == 0 && r.handoff.Needed() == 0 || nobodyTakes
	})
	// The runner goes on whether ctx has ended or not.
	gone := r.ask(context.WithoutCancel(ctx), func(int64) { after, left = r.handoff.Stats().HandedOver, r.handoff.Held() })
	if gone != nil {
		return 0, 0, gone
	}
	return int(after - before), left, err
}

// LeaveSet wants this node out of the voter set, from now on, and waits until it is. It
// does not wait where nobody else is counted.
func (n *Node) LeaveSet(ctx context.Context) error {
	r := n.runner
	if err := r.ask(ctx, func(now int64) { r.quorum.Wish(now, message.Leave) }); err != nil {
		return err
	}
	return r.await(ctx, func(int64) bool { return !r.quorum.In() || len(r.quorum.Set().Members) == 1 })
}

// Why a member is not forgotten.
var (
	ErrNoSet       = errors.New("this node knows no voter set")
	ErrThisNode    = errors.New("it is this node")
	ErrNotCounted  = errors.New("it is not in the voter set")
	ErrLives       = errors.New("it lives")
	ErrLastCounted = errors.New("nobody else is in the voter set")
)

// Forget takes name out of the voter set without asking a majority: whoever wants it
// says that this member is gone for good. Its errors wrap those above, that of ctx, or say
// that the node does not run.
func (n *Node) Forget(ctx context.Context, name string) error {
	r := n.runner
	var rejected error
	err := r.ask(ctx, func(now int64) {
		if rejected = r.keeps(now, name); rejected == nil {
			rejected = r.quorum.Forget(now, name)
		}
	})
	if err != nil || rejected != nil {
		return cmp.Or(err, rejected)
	}
	return n.runner.await(ctx, func(int64) bool { return !n.runner.quorum.Set().Has(name) })
}

// keeps returns why name is not to be forgotten, if so.
func (r *runner) keeps(now int64, name string) error {
	set := r.quorum.Set()
	switch {
	case set.Zero():
		return ErrNoSet
	case name == r.self.Name:
		return ErrThisNode
	case !set.Has(name):
		return ErrNotCounted
	case len(set.Members) == 1:
		return ErrLastCounted
	}
	for _, n := range r.scene.nodes {
		if n.name == name && r.quorum.Lives(now, n.peer()) {
			return ErrLives
		}
	}
	return nil
}

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
	return c.served.Load() + c.notOwner.Load() + c.toldLater.Load()
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

// scene is who is there at a moment: what gossip shows, and who of them lives. It is
// immutable.
type scene struct {
	seq   uint64 // of gossip's view
	nodes []node // sorted by name
	self  int    // place in nodes
}

// placement is who should hold and copy which partition in a scene: the ring of those
// who serve and live, and the same ring without this process, whose owners have its
// copies where zones allow it.
type placement struct {
	scene   *scene
	table   *ring.Table
	without *ring.Table
	view    handoff.View
	built   bool // table is another than before
	err     error
}

// place works out the placement of s. Tables of before are kept where the members are
// the same.
func place(c ring.Config, s *scene, before *placement) *placement {
	p := &placement{scene: s}
	var all, others []string
	for i, n := range s.nodes {
		if !n.lives {
			continue
		}
		p.view.Members, p.view.Serves = append(p.view.Members, n.peer()), append(p.view.Serves, n.state == member.Serving)
		if n.state == member.Serving {
			all = append(all, n.name)
			if i != s.self {
				others = append(others, n.name)
			}
		}
	}
	p.table, p.without = before.table, before.without
	if !slices.Equal(p.table.Members(), all) {
		p.built = true
		if p.table, p.err = ring.Build(c, all); p.err != nil {
			return p
		}
	}
	switch {
	case len(all) == len(others):
		p.without = p.table
	case !slices.Equal(p.without.Members(), others):
		if p.without, p.err = ring.Build(c, others); p.err != nil {
			return p
		}
	}
	p.view.Owner = owners(p.table, p.view.Members)
	p.view.Replica, p.view.Second = replicaNodes(s, owners(p.without, p.view.Members))
	return p
}

// owners lists t's owners by partition, as places in members, which has them all.
func owners(t *ring.Table, members []message.Peer) []int {
	places := make([]int, len(t.Members()))
	for i, name := range t.Members() {
		places[i] = slices.IndexFunc(members, func(p message.Peer) bool { return p.Name == name })
	}
	list := make([]int, t.Partitions())
	for p := range list {
		list[p] = noNode
		if i := t.OwnerIndex(p); i >= 0 {
			list[p] = places[i]
		}
	}
	return list
}

// placer builds placements beside the runner, whose heartbeats must not wait for the
// milliseconds that a ring takes. Of several requests it serves the last.
type placer struct {
	config ring.Config
	retain func(addrs []string)
	last   *placement // of the goroutine
	wake   chan struct{}
	done   chan *placement // to the runner
	mu     struct {
		sync.Mutex
		next *scene
	}
}

func newPlacer(c ring.Config, retain func([]string), first *placement) *placer {
	return &placer{config: c, retain: retain, last: first, wake: make(chan struct{}, 1), done: make(chan *placement)}
}

// ask wants the placement of s; it does not wait.
func (p *placer) ask(s *scene) {
	p.mu.Lock()
	p.mu.next = s
	p.mu.Unlock()
	signal(p.wake)
}

// run builds what is asked for until ctx ends.
func (p *placer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		p.mu.Lock()
		s := p.mu.next
		p.mu.Unlock()
		next := place(p.config, s, p.last)
		if next.err == nil {
			p.last = next
			p.retain(next.addrs())
		}
		select {
		case <-ctx.Done():
			return
		case p.done <- next:
		}
	}
}

// addrs returns where the other members are, also those that do not live.
func (p *placement) addrs() []string {
	var addrs []string
	for i, n := range p.scene.nodes {
		if i != p.scene.self && n.addr != "" {
			addrs = append(addrs, n.addr)
		}
	}
	return addrs
}

// signal wakes whoever waits on a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replicaNode is a member that may have replicas of this process's partitions.
type replicaNode struct {
	place int // in the view's Members
	hash  uint64
	zone  string
}

// replicaNodes returns for each partition the members that should have this process's first and second replica, as places in the view's
// Members, or nobody. The first is the owner in the ring without this process, who would take the partition over, unless
// another zone than this process's has members and that one is not in it. The second is in a third zone where there is one. What the ring
// does not say is placed by rendezvous hashing, so few replicas move when a member comes or goes.
func replicaNodes(s *scene, ringOwner []int) (first, second []int) {
	var others []replicaNode
	at, zone := 0, s.nodes[s.self].zone
	for i, n := range s.nodes {
		if !n.lives {
			continue
		}
		if i != s.self && n.state == member.Serving {
			others = append(others, replicaNode{at, xxhash.Sum64String(n.name), n.zone})
		}
		at++
	}
	first, second = make([]int, len(ringOwner)), make([]int, len(ringOwner))
	for p, owner := range ringOwner {
		a := best(others, p, func(n replicaNode) int {
			switch {
			case apart(zone, n.zone):
				return 1 + boolInt(n.place == owner)
			case n.place == owner:
				return 0
			}
			return -1
		})
		first[p], second[p] = noNode, noNode
		if a == nil {
			continue
		}
		first[p] = a.place
		b := best(others, p, func(n replicaNode) int {
			if n.place == a.place {
				return -1
			}
			return boolInt(apart(zone, n.zone) && apart(a.zone, n.zone))
		})
		if b != nil {
			second[p] = b.place
		}
	}
	return first, second
}

// apart reports whether two zones are known and not the same.
func apart(a, b string) bool { return a != "" && b != "" && a != b }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// best returns the node of the highest rank, and of those the one of the highest weight for a partition; nil if all ranks are below 0.
func best(nodes []replicaNode, partition int, rank func(replicaNode) int) (found *replicaNode) {
	most, weight := 0, uint64(0)
	for i := range nodes {
		n := &nodes[i]
		r := rank(*n)
		if r < most {
			continue
		}
		if w := mix(n.hash + uint64(partition)); found == nil || r > most || w > weight {
			found, most, weight = n, r, w
		}
	}
	return found
}

// mix is the finalizer of splitmix64: every bit of x moves every bit of the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
