package cluster

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/sluice-project/sluice/bucket"
)

// lostLimits are the limits of the rules that deny what may have been spent before counters were lost.
type lostLimits struct {
	list atomic.Pointer[[]*bucket.Limits]
	// Of the runner: what until has worked out, for which list and clock.
	of    *[]*bucket.Limits
	ahead int64
	ends  map[int64]int64
}

// SetLostLimits says which limits the rules have under which the loss of a counter denies checks. A loss is over when nothing that was
// spent of them before it counts any more. Until it is called, a loss only ends otherwise.
func (n *Node) SetLostLimits(list []*bucket.Limits) { n.lostLimits.list.Store(&list) }

// lostUntil returns until when counters that were lost at since matter to a rule. Only for the runner.
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

// AcceptLoss has this node, and all others that it sees, take lost counters for unspent. It returns how many partitions of this node
// that ended it for, and who the others are.
func (n *Node) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	r := n.runner
	err = r.ask(ctx, func(now int64) {
		partitions = r.handoff.AcceptLoss(now)
		for _, p := range r.placement.view.Members {
			if p != r.self {
				told = append(told, p.Name)
			}
		}
	})
	return partitions, told, err
}
