package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/snapshot"
)

// DeferredChanged returns what holds one whenever the deferred charges have changed since it was last received from.
func (n *Node) DeferredChanged() <-chan struct{} { return n.deferredChanged }

// SaveDeferred writes what this node has admitted without owners, and no owner has been charged yet, to the writer that create
// makes, and commits it: a counter for each key, that has spent just that.
func (n *Node) SaveDeferred(ctx context.Context, create func(message.Set) (*snapshot.Writer, error)) (keys int, err error) {
	var set message.Set
	if err := n.runner.ask(ctx, func(int64) { set = n.runner.quorum.Set() }); err != nil {
		return 0, err
	}
	now, at := n.cfg.Clock(), time.Now()
	table, keys, err := n.shares.Table(now, n.routing.Load().voters, n.cfg.Ring.Partitions)
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

// LoadDeferred reads what SaveDeferred has written in an earlier run into rec, as Load reads counters.
func (rec *Recorded) LoadDeferred(r *snapshot.Reader, now time.Time) error {
	h := r.Header()
	table, err := bucket.NewTable(bucket.Config{Shards: h.Partitions})
	if err != nil {
		return err
	}
	var list []share.Charge
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
		list = append(list, share.FromTable(then, table, s.Partition)...)
	}
	rec.deferred, rec.voters = list, max(1, len(h.Set.Members))
	return nil
}

// Deferred returns of how many keys there are deferred charges.
func (rec *Recorded) Deferred() int { return len(rec.deferred) }

const (
	// settlePeriod is how often owners are told what was admitted without them, and
	// settleBatch of how many keys at once.
	settlePeriod = 100 * time.Millisecond
	settleBatch  = 512
)

// settleUp charges to owners what was admitted without them, whenever this node has
// quorum, until ctx ends.
func (n *Node) settleUp(ctx context.Context) {
	task := n.settles
	defer task.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-task.woken:
			task.begin()
		case <-task.due:
			if n.mayDecide(n.cfg.Clock()) {
				n.settle(ctx, settleBatch)
			}
			keys, _ := n.shares.Charges.Count()
			task.done(keys > 0)
		}
	}
}

// settle charges the deferred charges of the oldest keys, at most so many.
func (n *Node) settle(ctx context.Context, most int) {
	defer n.shares.Charges.Answered()
	voters := n.routing.Load().voters
	list := n.shares.Take(n.cfg.Clock(), voters, most)
	if len(list) == 0 {
		return
	}
	var b check.Batch
	for _, c := range list {
		b.Requests = append(b.Requests, check.Request{Request: bucket.Request{
			Key: c.Key, Limits: c.Limits, Cost: c.Due, Verb: bucket.Charge, Transient: c.Transient,
		}})
	}
	b.Answers = make([]check.Answer, len(list))
	f := n.newForwarding(&b, nil)
	f.once = true
	for i := range list {
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
