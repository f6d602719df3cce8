package cluster

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/sluicecluster/sluice/bucket"
)

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
			end = max(end, n.table.LostUntil(limits, since+ahead)-ahead)
		}
		l.ends[since] = end
	}
	return end
}

// AcceptLoss makes this node, and all others that it sees, treat lost counters as unspent. It returns for how many partitions of
// this node that ended the loss, and the names of the others. It fails when ctx ends or the node does not run.
func (n *Node) AcceptLoss(ctx context.Context) (partitions int, others []string, err error) {
	r := n.runner
	err = r.do(ctx, func(now int64) {
		partitions = r.handoff.AcceptLoss(now)
		for _, p := range r.assignment.view.Members {
			if p != r.self {
				others = append(others, p.Name)
			}
		}
	})
	return partitions, others, err
}
