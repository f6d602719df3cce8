package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/check"
)

// maxForwards is how often a check is forwarded within one attempt. Then it waits for a new routing, or a little, and starts
// again from there.
const maxForwards = 3

// Values of pending.to that are no node's index.
const (
	// nextAttempt: the check waits for the next attempt.
	nextAttempt = noNode
	// notRouted: route must choose a node. It replaces every value but nextAttempt.
	notRouted = -2
)

// Backoff between attempts, doubling. The first is about as long as a handoff.
const (
	firstWait = time.Millisecond
	lastWait  = 50 * time.Millisecond
)

var (
	errNoneServes  = errors.New("no member serves")
	errSealed      = errors.New("the owner is changing just now")
	errBehind      = errors.New("the owner's replica is too far behind")
	errOverslept   = fmt.Errorf("%w: this node was stopped, and lost quorum meanwhile", check.ErrAmbiguous)
	errUnconfirmed = fmt.Errorf("%w: charged, but no replica has confirmed it in time", check.ErrAmbiguous)
)

// forwarding is the work on a batch of which not all could be decided at once. It goes in rounds: every pending check is
// routed, grouped by owner, and sent, one call per node, all at once. Undecided checks stay pending for the next round.
type forwarding struct {
	node     *Node
	batch    *check.Batch
	undo     *undoLog // of an atomic batch, else nil
	once     bool     // a check that may have been charged is not sent again
	deadline time.Time
	attempt  int
	pending  []pending

	// Of a round.
	sent    int64 // when it began
	groups  []group
	busy    []int // the groups with records
	here    []int // the pending checks whose owner is this node
	records []check.Record
	replies []check.Reply
	changes []change // made here by checks of sync rules
}

// pending is a check without an answer.
type pending struct {
	index    int    // in the batch
	forwards int    // in this attempt
	to       int    // where it goes next: an index in routing.nodes, notRouted or nextAttempt
	hint     string // the owner that the last node named, for this attempt
	// relay: to must ask the owner, which this node does not hear. relayed: that was tried in this attempt.
	relay, relayed bool
	cause          error // why it is still pending
	done           bool
	away           bool // in this round it goes to another node
	at             int  // its index in records then
}

// group is the records for one node in one round: records[first:first+n]. A node has two groups, because replies to checks
// of sync rules wait for a replica, and relayed ones for another node: the others must not wait for them.
type group struct {
	first, n int
	err      error
}

func (f *forwarding) groupOf(p *pending) int {
	if p.relay || f.batch.Requests[p.index].Sync {
		return 2*p.to + 1
	}
	return 2 * p.to
}

// forward answers b through the owners of its keys, this node included, until ctx ends or CheckTimeout has passed; on_failure
// answers the rest. u is nil unless b is atomic.
func (n *Node) forward(ctx context.Context, b *check.Batch, u *undoLog) {
	r, now := n.routing.Load(), int64(0)
	recall := u == nil && onlyAsks(b)
	if recall {
		now = n.cfg.Clock()
	}
	var f *forwarding
	for i := range b.Requests {
		if u == nil && n.eventual.decide(b, i) || recall && n.recalled(r, now, b, i) {
			continue
		}
		if f == nil {
			f = n.newForwarding(b, u)
		}
		f.pending = append(f.pending, pending{index: i, to: notRouted})
	}
	if f != nil {
		n.finish(ctx, f)
	}
}

// finish answers the pending checks of f, and releases it.
func (n *Node) finish(ctx context.Context, f *forwarding) {
	ctx, cancel := n.bounded(ctx)
	defer cancel()
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

// run sends rounds until nothing is pending, or ctx ends, which must have a deadline.
func (f *forwarding) run(ctx context.Context) {
	wait := firstWait
	f.deadline, _ = ctx.Deadline()
	for {
		r := f.node.routing.Load()
		f.route(r)
		f.group(r)
		again := f.send(ctx, r)
		if len(f.pending) == 0 {
			return
		}
		if again && ctx.Err() == nil {
			continue
		}
		if !f.backOff(ctx, r, wait) {
			f.fail(f.node.routing.Load(), ctx.Err())
			return
		}
		wait = min(2*wait, lastWait)
		f.node.stats.retries.Add(uint64(len(f.pending)))
		for i := range f.pending {
			p := &f.pending[i]
			p.forwards, p.hint, p.to, p.relayed = 0, "", notRouted, false
		}
		f.attempt++
	}
}

// route sets the next node of each pending check: the one that the last node named, else the known owner. Without quorum,
// checks that have no owner to ask get a fallback, or wait if they may soon have one.
func (f *forwarding) route(r *routing) {
	f.sent = f.node.cfg.Clock()
	quorum, atOnce := f.node.mayDecide(f.sent), f.node.shares.When.AtOnce(f.sent)
	for i := range f.pending {
		p := &f.pending[i]
		if p.to == nextAttempt {
			continue
		}
		key := f.batch.Requests[p.index].Key
		p.to = r.owner(key)
		if p.hint != "" && p.to != r.self {
			p.to = r.find(p.hint)
		}
		if p.relay = false; f.undo == nil && !p.relayed {
			if via := r.relay(key, f.attempt); via != noNode {
				p.to, p.relay, p.relayed = via, true, true
				continue
			}
		}
		switch {
		case !quorum && (p.to == noNode || p.to == r.self || !r.nodes[p.to].lives):
			if p.cause = errMinority; atOnce {
				f.fallback(r, p)
			} else {
				p.to = nextAttempt // the next routing may have an owner that is heard
			}
		case p.to == noNode && p.hint == "":
			p.cause = errNoneServes
			if len(r.table.Members()) == 0 {
				f.fallback(r, p)
			} // else the next routing has an owner
		case p.to == r.self && !r.owns(key):
			p.to = nextAttempt // the hint names this node, which does not own the key: the next routing tells which is outdated
		}
	}
	f.compact()
}

// group groups the pending checks by owner, and writes their records.
func (f *forwarding) group(r *routing) {
	f.groups = append(f.groups[:0], make([]group, 2*len(r.nodes))...)
	f.busy, f.here = f.busy[:0], f.here[:0]
	total := 0
	for i := range f.pending {
		p := &f.pending[i]
		switch p.away = p.to != nextAttempt && p.to != r.self; {
		case p.to == r.self:
			f.here = append(f.here, i)
		case p.away:
			g := f.groupOf(p)
			if f.groups[g].n == 0 {
				f.busy = append(f.busy, g)
			}
			f.groups[g].n++
			total++
		}
	}
	first := 0
	for _, g := range f.busy {
		f.groups[g].first = first
		first += f.groups[g].n
		f.groups[g].n = 0 // counted again below
	}
	f.records, f.replies = slices.Grow(f.records[:0], total)[:total], slices.Grow(f.replies[:0], total)[:total]
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away {
			continue
		}
		g := &f.groups[f.groupOf(p)]
		p.at = g.first + g.n
		g.n++
		p.forwards++
		req, rec := &f.batch.Requests[p.index], &f.records[p.at]
		*rec = check.Record{Request: req.Request, Sync: req.Sync}
		if p.relay {
			rec.Relay, rec.For = true, max(time.Millisecond, time.Until(f.deadline))
		}
		if f.undo.mayUndo(rec.Verb) {
			rec.Undoable, rec.ID = true, f.undo.base+uint64(p.index)
		}
	}
	f.node.stats.forwards.Add(uint64(total))
}

// send calls the nodes of this round at once, decides meanwhile the checks that this node owns, and takes the replies. It
// reports whether some check can be sent again without waiting.
func (f *forwarding) send(ctx context.Context, r *routing) (again bool) {
	if len(f.busy) == 1 && len(f.here) == 0 {
		f.call(ctx, r, f.busy[0]) // needs no goroutine
	} else {
		var calls sync.WaitGroup
		for _, g := range f.busy {
			calls.Go(func() { f.call(ctx, r, g) })
		}
		f.decideHere(ctx, r)
		f.confirmHere(ctx, r)
		calls.Wait()
	}
	f.take(r)
	return f.compact()
}

// backOff waits for d, or less where something has changed: a partition in handoff has no owner for some milliseconds, and
// its checks wait here for the next one. It reports false when ctx ended.
func (f *forwarding) backOff(ctx context.Context, r *routing, d time.Duration) bool {
	var confirmed <-chan struct{}
	if slices.ContainsFunc(f.pending, func(p pending) bool { return p.cause == errBehind }) {
		confirmed = f.node.confirms.wait()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-r.superseded:
	case <-confirmed:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// fail answers all pending checks without an owner.
func (f *forwarding) fail(r *routing, cause error) {
	for i := range f.pending {
		p := &f.pending[i]
		if p.cause == nil {
			p.cause = cause
		}
		f.fallback(r, p)
	}
	f.compact()
}

// compact drops the checks that are done, and reports whether another can be sent without waiting.
func (f *forwarding) compact() (again bool) {
	kept := f.pending[:0]
	for i := range f.pending {
		if p := &f.pending[i]; !p.done {
			kept, again = append(kept, *p), again || p.to != nextAttempt
		}
	}
	clear(f.pending[len(kept):])
	f.pending = kept
	return again
}

// forwardings are released ones, for their memory.
var forwardings = sync.Pool{New: func() any { return new(forwarding) }}

func (n *Node) newForwarding(b *check.Batch, u *undoLog) *forwarding {
	f := forwardings.Get().(*forwarding)
	f.node, f.batch, f.undo = n, b, u
	return f
}

// release keeps the memory of f for another batch.
func (f *forwarding) release() {
	clear(f.pending)
	clear(f.records[:cap(f.records)]) // an earlier round may have had more
	clear(f.replies[:cap(f.replies)])
	*f = forwarding{
		pending: f.pending[:0], groups: f.groups[:0], busy: f.busy[:0], here: f.here[:0],
		records: f.records[:0], replies: f.replies[:0], changes: f.changes[:0],
	}
	forwardings.Put(f)
}
