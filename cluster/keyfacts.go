package cluster

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
)

// KeyFacts tells what this node knows of a key under limits, and changes nothing. It fails when ctx ends or the node does
// not run.
func (n *Node) KeyFacts(ctx context.Context, key bucket.Key, limits *bucket.Limits) (k facts.Key, err error) {
	k.Node, k.Partition = n.cfg.Name, key.Shard(n.cfg.Ring.Partitions)
	err = n.runner.ask(ctx, func(now int64) {
		k.Holds = n.runner.handoff.Holds(k.Partition) && n.mayDecide(now)
		s, has := n.runner.handoff.State(k.Partition)
		k.Copy, k.Whole = has && !s.Held, s.Complete && !s.Held
		if has {
			k.Gen = s.Mark.Epoch.Gen
		}
	})
	if err != nil {
		return k, err
	}
	now := n.cfg.Clock()
	if k.Holds {
		list, known := n.table.Look(now, key, limits)
		k.Counted = known
		for _, s := range list {
			k.Limits = append(k.Limits, facts.Limit(s))
		}
		k.Grants, k.Lent = n.table.Lent(now, key)
	}
	k.LeaseLeft, k.Leased = n.book.Left(now, key)
	k.Denies = n.denials.Left(now, key)
	return k, nil
}
