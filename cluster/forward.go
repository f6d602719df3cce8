package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/check"
)

// maxForwards is how often a check is sent on within one attempt. Then it waits for
// a new view, or a little, and starts again from the ring.
const maxForwards = 3

// Waits between attempts, doubling.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 50 * time.Millisecond
)

// forwarding is the work on one batch of which not all is held here. It goes in
// rounds: everything that is pending is sent where it seems to belong, one call per
// node, all at once; what was not decided stays pending for the next round.
type forwarding struct {
	node  *Node
	batch *check.Batch
	whole *whole // of an all-or-nothing batch, else nil

	pending []pending
	groups  []group // of this round, by place in routing.nodes
	busy    []int   // the groups to be called in this round
	here    []int   // places in pending of what is held here
	records []check.Record
	replies []check.Reply
	places  []int // place in pending of each record
}

// pending is a check without an answer.
type pending struct {
	index    int // in the batch
	forwards int // in this attempt
	// to is where it goes next, a place in routing.nodes, or nobody if it waits for
	// the next attempt.
	to int
	// hint is the holder that the last node asked has named, for this attempt.
	hint string
	// cause is why it is still pending.
	cause error
	done  bool
}

// group is what goes to one node in one round: records[first:first+n].
type group struct {
	first, n int
	err      error
}

var forwardings = sync.Pool{New: func() any { return new(forwarding) }}

// forward answers b wherever its holders are, this node included, until ctx ends or
// CheckTimeout has passed; on_failure answers the rest. w is nil unless b is
// all-or-nothing.
func (n *Node) forward(ctx context.Context, b *check.Batch, w *whole) {
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	f := forwardings.Get().(*forwarding)
	f.node, f.batch, f.whole = n, b, w
	for i := range b.Requests {
		f.pending = append(f.pending, pending{index: i})
	}
	f.run(ctx)
	f.release()
}

// bounded returns ctx with a deadline within CheckTimeout.
func (n *Node) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= n.cfg.CheckTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, n.cfg.CheckTimeout)
}

// release returns f without what it points to.
func (f *forwarding) release() {
	clear(f.pending)
	clear(f.records[:cap(f.records)]) // an earlier round may have had more
	clear(f.replies[:cap(f.replies)])
	*f = forwarding{
		pending: f.pending[:0], groups: f.groups[:0], busy: f.busy[:0], here: f.here[:0],
		records: f.records[:0], replies: f.replies[:0], places: f.places[:0],
	}
	forwardings.Put(f)
}

func (f *forwarding) run(ctx context.Context) {
	wait := firstWait
	for {
		r := f.node.routing.Load()
		if len(r.table.Members()) == 0 {
			f.fail(r, errNobodyServes)
			return
		}
		f.aim(r)
		f.pack(r)
		f.send(ctx, r)
		if len(f.pending) == 0 {
			return
		}
		if ctx.Err() == nil && f.goesOn() {
			continue
		}
		if !pause(ctx, r.superseded, wait) {
			f.fail(f.node.routing.Load(), ctx.Err())
			return
		}
		wait = min(2*wait, lastWait)
		f.node.stats.retries.Add(uint64(len(f.pending)))
		for i := range f.pending {
			p := &f.pending[i]
			p.forwards, p.hint, p.to = 0, "", 0
		}
	}
}

var errNobodyServes = errors.New("no member serves")

// goesOn reports whether some check can be sent again without waiting.
func (f *forwarding) goesOn() bool {
	for i := range f.pending {
		if f.pending[i].to != nobody {
			return true
		}
	}
	return false
}

// pause waits until something has changed, or d has passed. It reports false when
// ctx ended.
func pause(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// aim says where each pending check goes in this round: where the last node asked
// has pointed, else where the ring does.
func (f *forwarding) aim(r *routing) {
	for i := range f.pending {
		p := &f.pending[i]
		if p.to == nobody {
			continue
		}
		key := f.batch.Requests[p.index].Key
		p.to = r.owner(key)
		if p.hint != "" && p.to != r.self {
			p.to = r.find(p.hint)
		}
		// A hint at this node, which does not hold the key by its own ring: one of
		// the two views is old, and the next one tells which.
		if p.to != nobody && p.to == r.self && !r.holds(key) {
			p.to = nobody
		}
	}
}

// fail answers all that is pending without a holder.
func (f *forwarding) fail(r *routing, cause error) {
	for i := range f.pending {
		p := &f.pending[i]
		if p.cause == nil {
			p.cause = cause
		}
		f.giveUp(r, p)
	}
	f.sift()
}
