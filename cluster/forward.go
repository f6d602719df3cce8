package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
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
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > n.cfg.CheckTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, n.cfg.CheckTimeout)
		defer cancel()
	}
	f := forwardings.Get().(*forwarding)
	f.node, f.batch, f.whole = n, b, w
	for i := range b.Requests {
		f.pending = append(f.pending, pending{index: i})
	}
	f.run(ctx)
	f.release()
}

// release returns f without what it points to.
func (f *forwarding) release() {
	clear(f.pending)
	clear(f.records)
	clear(f.replies)
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

// pack sorts what is pending by node and writes the records.
func (f *forwarding) pack(r *routing) {
	f.groups = append(f.groups[:0], make([]group, len(r.nodes))...)
	f.busy, f.here = f.busy[:0], f.here[:0]
	total := 0
	for i := range f.pending {
		switch to := f.pending[i].to; to {
		case nobody:
		case r.self:
			f.here = append(f.here, i)
		default:
			if f.groups[to].n == 0 {
				f.busy = append(f.busy, to)
			}
			f.groups[to].n++
			total++
		}
	}
	f.records, f.replies, f.places = grow(f.records, total), grow(f.replies, total), grow(f.places, total)
	first := 0
	for _, to := range f.busy {
		f.groups[to].first = first
		first += f.groups[to].n
		f.groups[to].n = 0 // counted again below
	}
	for i := range f.pending {
		p := &f.pending[i]
		if p.to == nobody || p.to == r.self {
			continue
		}
		p.forwards++
		g := &f.groups[p.to]
		at := g.first + g.n
		g.n++
		f.places[at] = i
		f.records[at] = check.Record{Request: f.batch.Requests[p.index].Request}
		if f.whole != nil {
			f.whole.mark(&f.records[at], p.index)
		}
	}
	f.node.stats.forwards.Add(uint64(total))
}

// grow returns s with length n; values are undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// send calls the nodes of this round at once, decides meanwhile what is held here,
// and takes the answers in.
func (f *forwarding) send(ctx context.Context, r *routing) {
	call := func(to int) {
		g := &f.groups[to]
		end := g.first + g.n
		if r.nodes[to].addr == "" {
			g.err = fmt.Errorf("%w: member %s has no address", check.ErrUnsent, r.nodes[to].name)
			return
		}
		g.err = f.node.cfg.Peers.Call(ctx, r.nodes[to].addr, f.records[g.first:end], f.replies[g.first:end])
	}
	elsewhere := f.busy
	if len(f.here) == 0 && len(f.busy) > 0 {
		// Nothing to do meanwhile: the last call, mostly the only one, needs no goroutine.
		elsewhere = f.busy[:len(f.busy)-1]
	}
	var wg sync.WaitGroup
	for _, to := range elsewhere {
		wg.Go(func() { call(to) })
	}
	if len(f.here) > 0 {
		f.decideHere()
	} else if len(f.busy) > 0 {
		call(f.busy[len(f.busy)-1])
	}
	wg.Wait()
	for _, to := range f.busy {
		f.take(r, to)
	}
	f.sift()
}

// decideHere decides what this node holds.
func (f *forwarding) decideHere() {
	n := f.node
	now := n.cfg.Clock()
	for _, i := range f.here {
		p := &f.pending[i]
		req := &f.batch.Requests[p.index]
		f.batch.Answers[p.index] = check.Answer{
			Decision: f.whole.do(n.table, now, &req.Request),
			Source:   check.Held, Holder: n.cfg.Name,
		}
		p.done = true
	}
	n.stats.held.Add(uint64(len(f.here)))
}

// take reads what became of the records for node to.
func (f *forwarding) take(r *routing, to int) {
	g := &f.groups[to]
	for at := g.first; at < g.first+g.n; at++ {
		p := &f.pending[f.places[at]]
		if g.err != nil {
			f.unanswered(r, p, to, g.err)
		} else {
			f.answered(r, p, to, &f.replies[at])
		}
		if !p.done && p.forwards >= maxForwards {
			p.to = nobody
		}
	}
}

// answered takes the reply of node to.
func (f *forwarding) answered(r *routing, p *pending, to int, reply *check.Reply) {
	n := f.node
	switch reply.Status {
	case check.Decided:
		f.batch.Answers[p.index] = check.Answer{Decision: reply.Decision, Source: check.Forwarded, Holder: reply.Holder}
		p.done = true
		n.stats.forwarded.Add(1)
		if f.whole != nil && reply.Allowed {
			f.whole.sent(r.nodes[to].addr, p.index)
		}
	case check.NotHolder:
		n.stats.redirected.Add(1)
		p.hint = reply.Holder
		p.cause = fmt.Errorf("node %s does not hold the key", r.nodes[to].name)
		if p.hint == "" || p.hint == r.nodes[to].name || p.hint == n.cfg.Name {
			p.to = nobody
		}
	case check.Overloaded:
		f.overloaded(p)
	default:
		// Asking again would be answered alike.
		p.cause = fmt.Errorf("node %s cannot decide this check: it does not know its limits", r.nodes[to].name)
		f.giveUp(r, p)
	}
}

// unanswered takes the error of a call to node to.
func (f *forwarding) unanswered(r *routing, p *pending, to int, err error) {
	p.cause, p.hint = err, ""
	switch {
	case errors.Is(err, check.ErrOverloaded):
		f.overloaded(p)
	case errors.Is(err, check.ErrUnsent):
		// As if never asked.
	default:
		f.node.stats.ambiguous.Add(1)
		if f.whole != nil {
			f.whole.sent(r.nodes[to].addr, p.index)
		}
		if f.batch.Requests[p.index].Verb == bucket.Refund {
			f.giveUp(r, p)
		}
	}
}

func (f *forwarding) overloaded(p *pending) {
	f.batch.Answers[p.index] = check.Answer{Err: check.ErrOverloaded}
	f.node.stats.overloaded.Add(1)
	p.done = true
}

// giveUp answers p without a holder.
func (f *forwarding) giveUp(r *routing, p *pending) {
	f.batch.Answers[p.index] = f.node.onFailure(r, &f.batch.Requests[p.index], f.whole, p.cause)
	p.done = true
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

// sift keeps what is still pending.
func (f *forwarding) sift() {
	kept := f.pending[:0]
	for _, p := range f.pending {
		if !p.done {
			kept = append(kept, p)
		}
	}
	clear(f.pending[len(kept):])
	f.pending = kept
}
