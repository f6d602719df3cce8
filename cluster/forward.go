package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// maxForwards is how often a check is forwarded within one attempt. The next attempt begins after a backoff.
const maxForwards = 3

// Values of pending.to that are no node's index.
const (
	// nextAttempt: the check waits for the next attempt.
	nextAttempt = noNode
	// notRouted: route must choose a node. It replaces every value but nextAttempt.
	notRouted = -2
)

// Backoff between attempts to forward a check, doubling. The first is about as long as the freeze of a handoff.
const (
	firstBackoff = time.Millisecond
	lastBackoff  = 50 * time.Millisecond
)

var (
	errNoneServes  = errors.New("no member serves")
	errSealed      = errors.New("the owner is changing just now")
	errBehind      = errors.New("the owner's replica is too far behind")
	errLostQuorum  = fmt.Errorf("%w: this node was stopped, and lost quorum meanwhile", check.ErrAmbiguous)
	errUnconfirmed = fmt.Errorf("%w: charged, but no replica has confirmed it in time", check.ErrAmbiguous)
)

// forwarding answers the checks of a batch that could not be decided at once. In each round every pending check is routed, and
// the checks are grouped by owner and sent by concurrent calls, one per node. Undecided checks stay pending for the next round.
type forwarding struct {
	node     *Node
	batch    *check.Batch
	undo     *undoLog // of an atomic batch, else nil
	once     bool     // a check that may have been charged is not retried
	deadline time.Time
	left     time.Duration // until deadline, at the begin
	hurried  bool          // the deadline is that of the caller
	attempt  int
	pending  []pending

	// Of a round.
	routed   *routing // by which it was routed
	sent     int64    // when it began
	homes    []string // other regions that some of the checks go to
	groups   []group
	nonEmpty []int // the groups with records
	local    []int // the pending checks whose owner is this node
	records  []check.Record
	replies  []check.Reply
	changes  []change // made here by checks of sync rules
}

// pending is a check without an answer.
type pending struct {
	index    int    // in the batch
	forwards int    // in this attempt
	to       int    // where it goes next: an index in routing.nodes, or behind them in homes, notRouted or nextAttempt
	hint     string // the owner by the last reply of this attempt
	// relay: node to must relay the check to the owner, which this node does not hear. relayed: this attempt has tried that.
	relay, relayed bool
	home           bool   // the region that has the counter must decide
	region         string // where that is, by the last reply, with home: auto
	cause          error  // why it is still pending
	asked          asked
	early          check.Early
	done           bool
	remote         bool // this round sends it to another node
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

// forward answers b through the owners of its keys, this node included, until shortly before ctx ends or until CheckTimeout has
// passed; on_failure answers the rest. u is nil unless b is atomic, which decideAtomic has bounded.
func (n *Node) forward(ctx context.Context, b *check.Batch, u *undoLog) {
	r, now := n.routing.Load(), int64(0)
	recall := u == nil && (noneInvalidates(b) || len(b.Requests) == 1 && leaseOfClient(&b.Requests[0].Request))
	if recall {
		now = n.cfg.Clock()
	}
	var f *forwarding
	for i := range b.Requests {
		if u == nil && n.eventual.decide(b, i) || recall && n.fromMemory(r, now, b, i) || u != nil && n.held(r, b, i, u) {
			continue
		}
		if f == nil {
			f = n.newForwarding(b, u)
		}
		q := &b.Requests[i]
		f.pending = append(f.pending, pending{index: i, to: notRouted, home: !leasable(q) && !leaseOfClient(&q.Request) && n.away(&q.Request) != ""})
	}
	if f != nil {
		n.finish(ctx, f)
	}
}

// finish answers the pending checks of f, and releases it.
func (n *Node) finish(ctx context.Context, f *forwarding) {
	if f.undo != nil {
		f.hurried = f.undo.hurried
	} else {
		var cancel context.CancelFunc
		ctx, f.hurried, cancel = n.bounded(ctx)
		defer cancel()
	}
	f.run(ctx)
	f.release()
}

// maxMargin and marginPart bound the margin, which is how long before the caller's deadline a check is answered, so that the
// answer arrives in time: a part of the time that is left, and no more than maxMargin. The wait ends earlier by maxLate, or by a
// part of the time, because timers fire as late as that.
const (
	maxMargin  = 10 * time.Millisecond
	marginPart = 5
	maxLate    = time.Millisecond
	latePart   = 20
)

// bounded returns ctx with a deadline within CheckTimeout, and before that of the caller by a margin. hurried: the caller's is
// the earlier one.
func (n *Node) bounded(ctx context.Context) (_ context.Context, hurried bool, _ context.CancelFunc) {
	timeout := n.cfg.CheckTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if left -= min(maxMargin, left/marginPart) + min(maxLate, left/latePart); left < timeout {
			timeout, hurried = left, true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, hurried, cancel
}

// run sends rounds until nothing is pending, or ctx ends, which must have a deadline.
func (f *forwarding) run(ctx context.Context) {
	wait := firstBackoff
	f.deadline, _ = ctx.Deadline()
	f.left = time.Until(f.deadline)
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
		wait = min(2*wait, lastBackoff)
		f.node.stats.retries.Add(uint64(len(f.pending)))
		for i := range f.pending {
			p := &f.pending[i]
			p.forwards, p.hint, p.to, p.relayed = 0, "", notRouted, false
		}
		f.attempt++
	}
}

// route sets the next node of each pending check: its hint, else the owner by r. Without quorum, checks whose owner is not heard
// get a fallback, or wait for the next attempt if an owner may be heard soon.
func (f *forwarding) route(r *routing) {
	f.routed, f.sent = r, f.node.cfg.Clock()
	quorum, atOnce := f.node.mayDecide(f.sent), f.node.shares.When.AtOnce(f.sent)
	broken := f.hurried && quorum && f.attempt == 0 && f.node.circuits.Open()
	for i := range f.pending {
		p := &f.pending[i]
		if p.to == nextAttempt {
			continue
		}
		key := f.batch.Requests[p.index].Key
		p.to = r.owner(key)
		if cause := f.idle(p); cause != nil {
			if p.cause = cause; cause == errSealed || f.node.regainsRole(f.sent) {
				p.to = nextAttempt
			} else {
				f.fallback(r, p)
			}
			continue
		}
		home := f.node.away(&f.batch.Requests[p.index].Request)
		if p.region != "" && p.region != f.node.cfg.Regions.Self() {
			if home = f.node.roles.plays(p.region); home == f.node.cfg.Regions.Self() {
				home = ""
			}
		}
		if home != "" &&
			(p.home || !quorum || p.to == noNode || p.to == r.self || !r.nodes[p.to].lives || r.silent(key) != nil) {
			p.home, p.relay, p.to = true, true, len(r.nodes)+f.home(home)
			continue
		}
		if broken && !f.mayAsk(r, p) {
			p.cause, p.early = errNotAsked, check.NotAsked
			f.fallback(r, p)
			continue
		}
		if p.hint != "" && p.to != r.self {
			p.to = r.find(p.hint)
		}
		if p.relay = false; f.undo == nil && !p.relayed && f.batch.Requests[p.index].Reservation == nil {
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
				p.to = nextAttempt // by then the owner may be heard
			}
		case p.to == noNode && p.hint == "":
			p.cause = errNoneServes
			if len(r.table.Members()) == 0 {
				f.fallback(r, p)
			} // else the next routing has an owner
		case p.to == r.self && !r.owns(key):
			p.to = nextAttempt // the hint or r is outdated: the next routing decides
		}
	}
	f.compact()
}

// home returns the index of a region in f.homes.
func (f *forwarding) home(region string) int {
	i := slices.Index(f.homes, region)
	if i < 0 {
		i = len(f.homes)
		f.homes = append(f.homes, region)
	}
	return i
}

// addr returns the name and the address of a node, or of one of the region with that index.
func (f *forwarding) addr(r *routing, to int) (name, addr string) {
	if to < len(r.nodes) {
		return r.nodes[to].name, r.nodes[to].addr
	}
	home := f.homes[to-len(r.nodes)]
	return "of region " + home, f.node.homeAddr(home)
}

// group groups the pending checks by owner, and writes their records.
func (f *forwarding) group(r *routing) {
	f.groups = append(f.groups[:0], make([]group, 2*(len(r.nodes)+len(f.homes)))...)
	f.nonEmpty, f.local = f.nonEmpty[:0], f.local[:0]
	total := 0
	for i := range f.pending {
		p := &f.pending[i]
		if f.hurried && p.to != nextAttempt {
			f.ask(r, p)
		}
		switch p.remote = p.to != nextAttempt && p.to != r.self; {
		case p.to == r.self:
			f.local = append(f.local, i)
		case p.remote:
			g := f.groupOf(p)
			if f.groups[g].n == 0 {
				f.nonEmpty = append(f.nonEmpty, g)
			}
			f.groups[g].n++
			total++
		}
	}
	first := 0
	for _, g := range f.nonEmpty {
		f.groups[g].first = first
		first += f.groups[g].n
		f.groups[g].n = 0 // counted again below
	}
	f.records, f.replies = slices.Grow(f.records[:0], total)[:total], slices.Grow(f.replies[:0], total)[:total]
	for i := range f.pending {
		p := &f.pending[i]
		if !p.remote {
			continue
		}
		g := &f.groups[f.groupOf(p)]
		p.at = g.first + g.n
		g.n++
		p.forwards++
		req, rec := &f.batch.Requests[p.index], &f.records[p.at]
		*rec = check.Record{Request: req.Request, Sync: req.Sync}
		if p.home && p.relay {
			f.node.stats.homeChecks.Add(1)
		}
		if p.relay {
			rec.Relay, rec.For = true, max(time.Millisecond, time.Until(f.deadline))
		}
		if f.undo.mayUndo(rec.Verb) && !rec.Relay {
			rec.Undoable, rec.ID = true, f.undo.base+uint64(p.index)
		}
	}
	f.node.stats.forwards.Add(uint64(total))
}

// send calls the nodes of this round concurrently, decides the checks that this node owns meanwhile, and takes the replies. It
// reports whether a check can be sent again without a backoff.
func (f *forwarding) send(ctx context.Context, r *routing) (again bool) {
	if len(f.nonEmpty) == 1 && len(f.local) == 0 {
		f.call(ctx, r, f.nonEmpty[0]) // needs no goroutine
	} else {
		var calls sync.WaitGroup
		for _, g := range f.nonEmpty {
			calls.Go(func() { f.call(ctx, r, g) })
		}
		f.decideLocal(ctx, r)
		f.confirmLocal(ctx, r)
		calls.Wait()
	}
	f.takeReplies(r)
	return f.compact()
}

// backOff waits for d, or until the routing changes or, for checks rejected by the gate, a replica confirms: checks of a partition
// in handoff wait here for its next owner. It reports false when ctx has ended.
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
	broken := false
	for i := range f.pending {
		p := &f.pending[i]
		if p.cause == nil {
			p.cause = cause
		}
		if cause == context.DeadlineExceeded {
			broken = f.breakCircuit(p) || broken
			if f.hurried {
				p.early = check.AtMargin
			}
		}
		f.fallback(r, p)
	}
	if broken { // the routing may have changed since this batch was routed
		f.node.retainCircuits(f.node.routing.Load())
	}
	f.compact()
}

// compact drops the checks that are done, and reports whether another can be sent without a backoff.
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

// forwardings keeps the memory of released forwardings.
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
		pending: f.pending[:0], groups: f.groups[:0], nonEmpty: f.nonEmpty[:0], local: f.local[:0], homes: f.homes[:0],
		records: f.records[:0], replies: f.replies[:0], changes: f.changes[:0],
	}
	forwardings.Put(f)
}
