package cluster

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// MayFound sets whether this node may take part in founding a voter set: all join targets were
// asked, the view shows those that answered, and none has rejected this node. all: every target has
// answered, or is this node. Without that, a node that is the only voter of a set from disk has no
// quorum before it hears other nodes.
func (n *Node) MayFound(ctx context.Context, may, all bool) error {
	return n.runner.do(ctx, func(now int64) { n.runner.quorum.MayFound(now, may, all) })
}

// Bootstrap makes this node found a voter set of its own, by hand. It fails with member.ErrHasQuorum where the node has quorum. All
// nodes that are not reached must be gone for good: if they are alive, there are two clusters.
func (n *Node) Bootstrap(ctx context.Context) error {
	r := n.runner
	var rejected error
	var was string
	err := r.do(ctx, func(now int64) {
		was = r.quorum.Set().ID
		rejected = r.quorum.Bootstrap(now)
	})
	if err != nil || rejected != nil {
		return cmp.Or(err, rejected)
	}
	return r.await(ctx, func(int64) bool { s := r.quorum.Set(); return !s.Zero() && s.ID != was })
}

// AwaitQuorum waits until this node has quorum: a majority of the voters has acknowledged its messages.
func (n *Node) AwaitQuorum(ctx context.Context) error {
	return n.runner.await(ctx, n.mayDecide)
}

// Join makes this node a voter, and waits until it is. A node that was a voter when it crashed is one at once, but must claim
// nothing until the promises of its earlier run have expired. Join waits for that too, unless most voters have no quorum either:
// meanwhile others own its earlier partitions.
func (n *Node) Join(ctx context.Context) error {
	r := n.runner
	if err := r.do(ctx, func(now int64) { r.quorum.Wish(now, message.Join) }); err != nil {
		return err
	}
	return r.await(ctx, func(now int64) bool { return r.quorum.In() && (r.quorum.Promises(now) || r.quorum.NoneDecides(now)) })
}

// Settled waits until this node has settled, see runner.settled.
func (n *Node) Settled(ctx context.Context) error { return n.runner.await(ctx, n.runner.settled) }

// settled reports whether this node serves and has quorum, owns what the ring assigns to it, and has as many complete replicas
// as it wants and there are other nodes for.
func (r *runner) settled(now int64) bool {
	v := &r.assignment.view
	if r.assignment.live.state() != member.Serving || v.Owner == nil || !r.node.mayDecide(now) {
		return false
	}
	for p, owner := range v.Owner {
		if owner != noNode && v.Members[owner] == r.self && !r.handoff.Owns(p) {
			return false
		}
	}
	s := r.handoff.Stats()
	return len(v.Members) == 1 || s.Unprotected == 0 && s.BelowReplicas == 0
}

// hurryAfter is how long a leaving node throttles its handoffs, so that they delay no checks.
const hurryAfter = 5 * time.Second

// HandOff waits until this node, which must be leaving, owns nothing any more and no node needs its replicas. It returns how
// many partitions it gave away meanwhile, and how many are left: not 0 if no other member serves, or if ctx ended.
func (n *Node) HandOff(ctx context.Context) (gave, left int, err error) {
	r := n.runner
	var before, after uint64
	if err := r.do(ctx, func(int64) { before = r.handoff.Stats().HandedOff }); err != nil {
		return 0, 0, err
	}
	hurry := time.AfterFunc(hurryAfter, func() {
		// An error means that the runner has ended, and so has this.
		_ = r.do(context.Background(), func(int64) { r.handoff.Hurry() })
	})
	defer hurry.Stop()
	err = r.await(ctx, func(int64) bool {
		noneServes := r.assignment.live.state() == member.Leaving && len(r.assignment.table.Members()) == 0
		return r.handoff.OnlyHere() == 0 && r.handoff.Needed() == 0 || noneServes
	})
	// The runner goes on whether ctx has ended or not.
	gone := r.do(context.WithoutCancel(ctx), func(int64) { after, left = r.handoff.Stats().HandedOff, r.handoff.OnlyHere() })
	if gone != nil {
		return 0, 0, gone
	}
	return int(after - before), left, err
}

// OtherVoters returns the names of the other voters.
func (n *Node) OtherVoters() []string {
	voters := slices.Clone(n.published.Load().Set.Members)
	return slices.DeleteFunc(voters, func(name string) bool { return name == n.cfg.Name })
}

// LeaveSet takes this node out of the voter set, and waits until it is. It does not wait if there is no other voter.
func (n *Node) LeaveSet(ctx context.Context) error {
	r := n.runner
	if err := r.do(ctx, func(now int64) { r.quorum.Wish(now, message.Leave) }); err != nil {
		return err
	}
	return r.await(ctx, func(int64) bool { return !r.quorum.In() || len(r.quorum.Set().Members) == 1 })
}

// Forget takes name out of the voter set without asking a majority: that member must be gone for good. Its errors are a
// member.Rejection and that of ctx, or say that the node does not run.
func (n *Node) Forget(ctx context.Context, name string) error {
	r := n.runner
	var rejected error
	err := r.do(ctx, func(now int64) { rejected = r.quorum.Forget(now, name) })
	if err != nil || rejected != nil {
		return cmp.Or(err, rejected)
	}
	return r.await(ctx, func(int64) bool { return !r.quorum.Set().Has(name) })
}

// Quiet waits until no node has sent this one a record for gossipDelay: by then each node knows that all nodes are leaving.
func (n *Node) Quiet(ctx context.Context) error {
	r := n.runner
	var asked uint64
	var since int64
	return r.await(ctx, func(now int64) bool {
		c := &n.stats
		if a := c.served.Load() + c.notOwner.Load() + c.servedNotReady.Load(); since == 0 || a != asked {
			asked, since = a, now
		}
		return len(r.assignment.view.Members) == 1 || now-since >= int64(gossipDelay)
	})
}

// Rest makes this node decide nothing any more, and neither give nor take partitions, while it goes on running: its counters
// stay as they are, for a last Snapshot. When it returns, no decision is in progress. It cannot be undone.
func (n *Node) Rest(ctx context.Context) error {
	r := n.runner
	return r.do(ctx, func(int64) {
		r.resting = true
		r.quorum.Rest()
		n.quorumUntil.Store(math.MinInt64)
		for p := range n.cfg.Ring.Partitions {
			n.table.Seal(p)
		}
	})
}
