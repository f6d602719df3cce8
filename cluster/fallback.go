package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// closedRetry is the RetryAfter of a check that was denied without an owner: about when there may be one again. The counter
// is not known. It is also that of a share before the process has had quorum, and just after a pause.
const closedRetry = time.Second

var errMinority = errors.New("this node has no quorum")

// fallbackStats counts checks that were answered without an owner, by policy.
type fallbackStats struct{ share, closed, open atomic.Uint64 }

// fallback answers p without an owner: by its rule's on_partition if this node has no quorum, else by on_failure. Only Check
// and Read can be answered so; the other verbs change a counter that is not here.
func (f *forwarding) fallback(r *routing, p *pending) {
	n, req, a, cause := f.node, &f.batch.Requests[p.index], &f.batch.Answers[p.index], p.cause
	p.done = true
	if req.Verb != bucket.Check && req.Verb != bucket.Read {
		n.stats.unanswered.Add(1)
		*a = check.Answer{Err: fmt.Errorf("%w: %w", check.ErrNoOwner, cause)}
		return
	}
	policy, count := req.OnFailure, &n.stats.failure
	if cause == errMinority {
		policy, count = req.OnPartition, &n.stats.minority
	}
	if policy == rules.FailShare && !n.shares.When.MayShare(n.cfg.Clock()) {
		policy = rules.FailClosed
	}
	n.stats.cause.Store(&cause)
	*a = check.Answer{Owner: n.cfg.Name}
	switch policy {
	case rules.FailOpen:
		count.open.Add(1)
		a.Source, a.Allowed = check.Open, true
	case rules.FailClosed:
		count.closed.Add(1)
		a.Source, a.RetryAfter = check.Closed, closedRetry
	default:
		count.share.Add(1)
		a.Source = check.Share
		a.Decision = n.share(r, req, f.undo)
	}
}

// share answers req by this node's share of its limits.
func (n *Node) share(r *routing, req *check.Request, u *undoLog) bucket.Decision {
	now := n.cfg.Clock()
	at := share.Place{Voters: r.voters, Quorum: n.mayDecide(now), Owns: r.owns(req.Key)}
	var rc *share.Receipt
	if u != nil {
		rc = new(share.Receipt)
	}
	d, charged := n.shares.Answer(now, at, &req.Request, req.UnknownShare, rc)
	if charged {
		n.settles.call()
		if u != nil {
			u.shares = append(u.shares, rc)
		}
	}
	return d
}

const (
	// settlePeriod is how often deferred charges are sent to owners, settleBatch of how many keys at once.
	settlePeriod = 100 * time.Millisecond
	settleBatch  = 512
)

// settleDue sends deferred charges if this node has quorum, and reports whether there are more.
func (n *Node) settleDue(ctx context.Context) (more bool) {
	if n.mayDecide(n.cfg.Clock()) {
		n.settle(ctx, settleBatch)
	}
	keys, _ := n.shares.Charges.Count()
	return keys > 0
}

// settle sends the deferred charges of the oldest keys, at most so many.
func (n *Node) settle(ctx context.Context, most int) {
	defer n.shares.Charges.Answered()
	voters := n.routing.Load().voters
	list := n.shares.Take(n.cfg.Clock(), voters, most)
	if len(list) == 0 {
		return
	}
	b := check.Batch{Requests: make([]check.Request, len(list)), Answers: make([]check.Answer, len(list))}
	f := n.newForwarding(&b, nil)
	f.once = true
	for i, c := range list {
		b.Requests[i].Request = bucket.Request{Key: c.Key, Limits: c.Limits, Cost: c.Due, Verb: bucket.Charge, Transient: c.Transient}
		f.pending = append(f.pending, pending{index: i})
	}
	n.finish(ctx, f)
	for i, a := range b.Answers {
		outcome := share.NotCharged
		switch {
		case a.Err == nil:
			n.stats.settled.Add(uint64(list[i].Due))
			outcome = share.Charged
		case errors.Is(a.Err, check.ErrAmbiguous):
			outcome = share.AnswerLost
		}
		n.shares.Ended(n.cfg.Clock(), list[i], voters, outcome)
	}
}

// lostLimits are the limits of the rules with on_lost_state: deny.
type lostLimits struct {
	list atomic.Pointer[[]*bucket.Limits]
	// Of the runner: results of lostUntil, and for which list and clock.
	of    *[]*bucket.Limits
	ahead int64
	ends  map[int64]int64
}

// SetLostLimits sets the limits of the rules with on_lost_state: deny. A loss of counters is over when nothing that was spent
// of them before it counts any more. Until it is called, a loss only ends otherwise.
func (n *Node) SetLostLimits(list []*bucket.Limits) { n.lostLimits.list.Store(&list) }

// lostUntil returns until when counters that were lost at since matter to a rule. Only the runner may call it.
func (n *Node) lostUntil(since int64) int64 {
	l, list, ahead := &n.lostLimits, n.lostLimits.list.Load(), n.ahead.Load()
	if list == nil {
		return math.MaxInt64
	}
	if l.of != list || l.ahead != ahead || len(l.ends) > n.cfg.Ring.Partitions {
		l.of, l.ahead, l.ends = list, ahead, make(map[int64]int64)
	}
	end, known := l.ends[since]
	if !known {
		end = since
		for _, limits := range *list {
			end = max(end, limits.SpentUntil(since+ahead)-ahead)
		}
		l.ends[since] = end
	}
	return end
}

// AcceptLoss makes this node, and all others that it sees, treat lost counters as unspent. It returns for how many partitions of
// this node that ended the loss, and the names of the others. It fails when ctx ends or the node does not run.
func (n *Node) AcceptLoss(ctx context.Context) (partitions int, others []string, err error) {
	r := n.runner
	err = r.ask(ctx, func(now int64) {
		partitions = r.handoff.AcceptLoss(now)
		for _, p := range r.assignment.view.Members {
			if p != r.self {
				others = append(others, p.Name)
			}
		}
	})
	return partitions, others, err
}
