package cluster

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// Join wants this node counted in the stable set, from now on, and waits until it is. A node that was counted when it crashed is counted
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
		if owner != nobody && v.Members[owner] == r.self && !r.handoff.Holds(p) {
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

// LeaveSet wants this node out of the stable set, from now on, and waits until it is. It
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
	ErrNoSet       = errors.New("this node knows no stable set")
	ErrThisNode    = errors.New("it is this node")
	ErrNotCounted  = errors.New("it is not in the stable set")
	ErrLives       = errors.New("it lives")
	ErrLastCounted = errors.New("nobody else is in the stable set")
)

// Forget takes name out of the stable set without asking a majority: whoever wants it
// says that this member is gone for good. Its errors wrap those above, that of ctx, or say
// that the node does not run.
func (n *Node) Forget(ctx context.Context, name string) error {
	r := n.runner
	var refused error
	err := r.ask(ctx, func(now int64) {
		if refused = r.keeps(now, name); refused == nil {
			refused = r.quorum.Forget(now, name)
		}
	})
	if err != nil || refused != nil {
		return cmp.Or(err, refused)
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
