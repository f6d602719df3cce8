package cluster

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/snapshot"
)

// DeferredChanged returns what holds one whenever the deferred charges have changed since it was last received from.
func (n *Node) DeferredChanged() <-chan struct{} { return n.owed.changed }

// SaveDeferred writes what this node has admitted without owners, and no owner has been charged yet, to the writer that create
// makes, and commits it: a counter for each key, that has spent just that.
func (n *Node) SaveDeferred(ctx context.Context, create func(message.Set) (*snapshot.Writer, error)) (keys int, err error) {
	var set message.Set
	if err := n.runner.ask(ctx, func(int64) { set = n.runner.quorum.Set() }); err != nil {
		return 0, err
	}
	now, at := n.cfg.Clock(), time.Now()
	table, keys, err := n.deferredTable(now)
	if err != nil {
		return 0, err
	}
	w, err := create(set)
	if err != nil {
		return 0, err
	}
	defer w.Abort()
	c := copier{table: table, clock: n.cfg.Clock}
	for p := range n.cfg.Ring.Partitions {
		if c.read(now, p); len(c.keys) == 0 {
			continue
		}
		if err := c.write(w, snapshot.Section{Partition: p, Complete: true, At: at}); err != nil {
			return 0, err
		}
	}
	return keys, w.Commit()
}

// deferredTable returns a table in which each key has spent what is still to be charged for it.
func (n *Node) deferredTable(now int64) (*bucket.Table, int, error) {
	table, err := bucket.NewTable(bucket.Config{Shards: n.cfg.Ring.Partitions})
	if err != nil {
		return nil, 0, err
	}
	keys, voters := 0, n.routing.Load().voters
	for _, d := range n.owed.all() {
		if cost := min(d.cost, n.spentApart(now, d, voters)); cost > 0 {
			table.Do(now, &bucket.Request{Key: d.key, Limits: d.limits, Cost: cost, Verb: bucket.Charge})
			keys++
		}
	}
	return table, keys, nil
}

// LoadDeferred reads what SaveDeferred has written in an earlier run into rec, as Load reads counters.
func (rec *Recorded) LoadDeferred(r *snapshot.Reader, now time.Time) error {
	h := r.Header()
	table, err := bucket.NewTable(bucket.Config{Shards: h.Partitions})
	if err != nil {
		return err
	}
	var debts []debt
	for {
		s, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		then := now.Add(-s.Age(now)).UnixNano()
		for {
			im, err := r.Image()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if err := table.Import(then, s.Partition, im, im.Data, im.Counters, false); err != nil {
				return fmt.Errorf("deferred charges of partition %d: %w", s.Partition, err)
			}
		}
		table.Recent(then, s.Partition, math.MaxInt, func(key bucket.Key, limits *bucket.Limits, list []bucket.Standing) {
			debts = append(debts, debt{key: key, limits: limits, cost: cost(limits, list), at: then})
		})
	}
	rec.deferred, rec.voters = debts, max(1, len(h.Set.Members))
	return nil
}

// Deferred returns of how many keys there are deferred charges.
func (rec *Recorded) Deferred() int { return len(rec.deferred) }

// cost returns how much has been spent to make limits stand so: the most that any of them counts.
func cost(limits *bucket.Limits, list []bucket.Standing) (most int64) {
	for i, s := range list {
		unit := max(1, limits.At(i).Cost)
		most = max(most, (s.Spent+unit-1)/unit)
	}
	return most
}

// takeDeferred takes over what an earlier run has admitted without owners: it is charged to them, and counts against shares until then.
func (n *Node) takeDeferred(rec *Recorded) {
	for _, d := range rec.deferred {
		n.apart.Do(d.at, &bucket.Request{Key: d.key, Limits: d.limits.Share(rec.voters), Cost: d.cost, Verb: bucket.Charge})
		n.owed.put(d)
	}
}
