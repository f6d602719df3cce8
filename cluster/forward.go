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

// maxForwards is how often a check is forwarded within one attempt. Then it waits for
// a new routing, or a little, and starts again from there.
const maxForwards = 3

// Waits between attempts, doubling. The first is about as long as a handoff.
const (
	firstWait = time.Millisecond
	lastWait  = 50 * time.Millisecond
)

var (
	errNobodyServes = errors.New("no member serves")
	errSealed       = errors.New("the owner is changing just now")
	errBehind       = errors.New("the owner's replica is too far behind")
	errOverslept    = fmt.Errorf("%w: this node was stopped, and lost quorum meanwhile", check.ErrAmbiguous)
)

// forwarding is the work on a batch of which not all could be decided at once. It goes
// in rounds: every pending check is routed and sent to the node that seems to own its key, one call per
// node, all at once. What was not decided stays pending for the next round.
type forwarding struct {
	node  *Node
	batch *check.Batch
	whole *whole // of an all-or-nothing batch, else nil
	// once: a check that may have been charged is not sent again.
	once     bool
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
	index    int // in the batch
	forwards int // in this attempt
	// to is where it goes next, a place in routing.nodes, or nobody if it waits for
	// the next attempt.
	to int
	// hint is the owner that the last node asked has named, for this attempt.
	hint string
	// relay: to is to ask the owner, which this node does not hear. relayed: that was tried in this attempt.
	relay, relayed bool
	// cause is why it is still pending.
	cause error
	done  bool
	// away: in this round it goes to another node, and at is its place in records.
	away bool
	at   int
}

// group is what goes to one node in one round: records[first:first+n]. A node has two of them, because replies to checks of sync rules take a
// replica's confirmation longer, as relayed ones take another node's reply, and the others shall not wait for them.
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

// forward answers b wherever the owners of its keys are, this node included, until ctx ends or
// CheckTimeout has passed; on_failure answers the rest. w is nil unless b is
// all-or-nothing.
func (n *Node) forward(ctx context.Context, b *check.Batch, w *whole) {
	r, now := n.routing.Load(), int64(0)
	recall := w == nil && onlyAsks(b)
	if recall {
		now = n.cfg.Clock()
	}
	var f *forwarding
	for i := range b.Requests {
		if w == nil && n.eventually.decide(b, i) || recall && n.recalled(r, now, b, i) {
			continue
		}
		if f == nil {
			f = n.newForwarding(b, w)
		}
		f.pending = append(f.pending, pending{index: i})
	}
	if f != nil {
		n.finish(ctx, f)
	}
}

// finish answers what is pending in f, and releases it.
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

// run sends rounds until nothing is pending, or ctx ends, which has a deadline.
func (f *forwarding) run(ctx context.Context) {
	wait := firstWait
	f.deadline, _ = ctx.Deadline()
	for {
		r := f.node.routing.Load()
		f.route(r)
		f.group(r)
		f.send(ctx, r)
		if len(f.pending) == 0 {
			return
		}
		if ctx.Err() == nil && f.goesOn() {
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
			p.forwards, p.hint, p.to, p.relayed = 0, "", 0, false
		}
		f.attempt++
	}
}

// route says where each pending check goes in this round: to the node that the last node asked
// has named, else to the owner that is known. Checks for which a node without quorum
// has no owner to ask are answered, or wait if it may soon have one.
func (f *forwarding) route(r *routing) {
	f.sent = f.node.cfg.Clock()
	quorum, atOnce := f.node.mayDecide(f.sent), f.node.shares.When.AtOnce(f.sent)
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
		if p.relay = false; f.whole == nil && !p.relayed {
			if via := r.relay(key, f.attempt); via != nobody {
				p.to, p.relay, p.relayed = via, true, true
				continue
			}
		}
		switch {
		case !quorum && (p.to == nobody || p.to == r.self || !r.nodes[p.to].lives):
			if atOnce {
				f.standApart(r, p)
			} else { // the next routing may have an owner that is heard
				p.to, p.cause = nobody, errMinority
			}
		case p.to == nobody && p.hint == "":
			p.cause = errNobodyServes
			if len(r.table.Members()) == 0 {
				f.giveUp(r, p)
			} // else the next routing has an owner
		case p.to == r.self && !r.holds(key):
			// A hint at this node, which does not own the key by what it knows: one of
			// the two is behind, and what comes next tells which.
			p.to = nobody
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
		switch p.away = p.to != nobody && p.to != r.self; {
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
	f.records, f.replies = grow(f.records, total), grow(f.replies, total)
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
		if f.whole != nil {
			f.whole.mark(rec, p.index)
		}
	}
	f.node.stats.forwards.Add(uint64(total))
}

// send calls the nodes of this round at once, decides meanwhile what this node owns,
// and takes the replies.
func (f *forwarding) send(ctx context.Context, r *routing) {
	if len(f.busy) == 1 && len(f.here) == 0 {
		f.call(ctx, r, f.busy[0]) // needs no goroutine
	} else {
		f.sendAll(ctx, r)
	}
	f.take(r)
	f.compact()
}

func (f *forwarding) sendAll(ctx context.Context, r *routing) {
	var calls sync.WaitGroup
	for _, g := range f.busy {
		calls.Go(func() { f.call(ctx, r, g) })
	}
	f.decideHere(ctx, r)
	f.confirmHere(ctx, r)
	calls.Wait()
}

// call sends the records of one group, and fills in their replies.
func (f *forwarding) call(ctx context.Context, r *routing, to int) {
	g := &f.groups[to]
	n, records, replies := &r.nodes[to/2], f.records[g.first:g.first+g.n], f.replies[g.first:g.first+g.n]
	if n.addr == "" {
		clear(replies)
		g.err = fmt.Errorf("%w: member %s has no address", check.ErrUnsent, n.name)
		return
	}
	span := f.node.ask(f.batch.Trace, n.addr, records)
	g.err = f.node.cfg.Peers.Call(ctx, n.addr, records, replies)
	endAsk(span, replies, g.err)
	f.node.stats.forwarding.Observe(time.Duration(f.node.cfg.Clock() - f.sent))
}

// take reads the replies of this round. A reply without a Status is one
// that its node could not give in time, though it may have charged the record.
func (f *forwarding) take(r *routing) {
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away {
			continue
		}
		reply, err := &f.replies[p.at], f.groups[f.groupOf(p)].err
		switch {
		case reply.Status != 0:
			f.answered(r, p, p.to, reply)
		case err != nil:
			f.unanswered(r, p, p.to, err)
		default:
			f.unanswered(r, p, p.to, fmt.Errorf("%w: %w", check.ErrAmbiguous, errUnconfirmed))
		}
		if !p.done && p.forwards >= maxForwards {
			p.to = nobody
		}
	}
	f.noteRound()
}

// answered takes the reply of node to.
func (f *forwarding) answered(r *routing, p *pending, to int, reply *check.Reply) {
	n := f.node
	switch reply.Status {
	case check.Decided:
		f.batch.Answers[p.index] = check.Answer{Decision: reply.Decision, Source: check.Forwarded, Owner: reply.Owner}
		if reply.LeasedOut {
			f.batch.Answers[p.index].Age = check.MaxDenied
		}
		p.done = true
		n.stats.forwarded.Add(1)
		f.learn(p, reply)
		if f.whole != nil && reply.Allowed {
			f.whole.sent(r.nodes[to].addr, p.index)
		}
	case check.NotOwner:
		n.stats.redirected.Add(1)
		if p.relay { // the owner is not to be reached that way either
			p.hint, p.to, p.cause = "", 0, fmt.Errorf("the key's owner is not heard here, nor does node %s reach it", r.nodes[to].name)
			break
		}
		p.hint = reply.Owner
		p.cause = fmt.Errorf("node %s does not own the key", r.nodes[to].name)
		if p.hint == "" || p.hint == r.nodes[to].name {
			p.to = nobody
		}
	case check.Later:
		n.stats.later.Add(1)
		p.hint, p.to = "", nobody
		if reply.Owner != r.nodes[to].name && reply.Owner != "" {
			p.hint, p.to = reply.Owner, 0
		}
		p.cause = fmt.Errorf("node %s: %w", r.nodes[to].name, errSealed)
		if now := n.cfg.Clock(); reply.Owner == "" && !n.mayDecide(now) {
			// Neither it nor this node has quorum: both are in a minority, or both have just lost it.
			if p.cause = errMinority; n.shares.When.AtOnce(now) {
				f.standApart(r, p)
			}
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
		if req := &f.batch.Requests[p.index]; invalidates(req.Verb) {
			f.node.denials.Forget(f.node.cfg.Clock(), req.Key)
		}
		if f.whole != nil && to != r.self { // here there is a receipt
			f.whole.sent(r.nodes[to].addr, p.index)
		}
		if f.once || f.batch.Requests[p.index].Verb == bucket.Refund {
			f.giveUp(r, p)
		}
	}
}

// learn takes note of the reply to p. In an all-or-nothing batch a
// denial is not remembered: what the other checks have charged may be given back.
func (f *forwarding) learn(p *pending, reply *check.Reply) {
	n, req := f.node, &f.batch.Requests[p.index]
	switch {
	case invalidates(req.Verb):
		n.denials.Forget(n.cfg.Clock(), req.Key)
	case f.whole == nil:
		n.learn(f.sent, &req.Request, req.Fresh, reply)
	}
}

// noteRound notes what owners have decided in this round.
func (f *forwarding) noteRound() {
	locked, answers := false, &f.node.shares.Answers
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away || !p.done {
			continue
		}
		answer := &f.batch.Answers[p.index]
		if answer.Source != check.Forwarded {
			continue
		}
		if !locked {
			locked = true
			answers.Lock()
		}
		answers.NoteLocked(f.sent, &f.batch.Requests[p.index].Request, &answer.Decision)
	}
	if locked {
		answers.Unlock()
	}
}

// goesOn reports whether some check can be sent again without waiting.
func (f *forwarding) goesOn() bool {
	for i := range f.pending {
		if f.pending[i].to != nobody {
			return true
		}
	}
	return false
}

// backOff waits for d, or less where something has changed. A
// partition that is being handed over has no node that decides for some milliseconds,
// and its checks wait here for the next owner. Without
// it they would be answered by on_failure. It reports false when ctx ended.
func (f *forwarding) backOff(ctx context.Context, r *routing, d time.Duration) bool {
	var confirmed <-chan struct{}
	for i := range f.pending {
		if f.pending[i].cause == errBehind {
			confirmed = f.node.confirms.wait()
			break
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-r.superseded:
	case <-confirmed:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// fail answers all that is pending without an owner.
func (f *forwarding) fail(r *routing, cause error) {
	for i := range f.pending {
		p := &f.pending[i]
		switch p.cause {
		case errMinority:
			f.standApart(r, p)
			continue
		case nil:
			p.cause = cause
		}
		f.giveUp(r, p)
	}
	f.compact()
}

func (f *forwarding) overloaded(p *pending) {
	f.batch.Answers[p.index] = check.Answer{Err: check.ErrOverloaded}
	f.node.stats.overloaded.Add(1)
	p.done = true
}

// giveUp answers p by its rule's on_failure.
func (f *forwarding) giveUp(r *routing, p *pending) {
	f.batch.Answers[p.index] = f.node.onFailure(r, &f.batch.Requests[p.index], f.whole, p.cause)
	p.done = true
}

// standApart answers p by its rule's on_partition.
func (f *forwarding) standApart(r *routing, p *pending) {
	f.batch.Answers[p.index] = f.node.onPartition(r, &f.batch.Requests[p.index], f.whole)
	p.done = true
}

// compact keeps what is still pending.
func (f *forwarding) compact() {
	kept := f.pending[:0]
	for _, p := range f.pending {
		if !p.done {
			kept = append(kept, p)
		}
	}
	clear(f.pending[len(kept):])
	f.pending = kept
}

// forwardings are those that were released.
var forwardings = sync.Pool{New: func() any { return new(forwarding) }}

func (n *Node) newForwarding(b *check.Batch, w *whole) *forwarding {
	f := forwardings.Get().(*forwarding)
	f.node, f.batch, f.whole = n, b, w
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

// grow returns s with length n; values are undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
