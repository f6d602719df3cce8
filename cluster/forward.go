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
// a new routing, or a little, and starts again from there.
const maxForwards = 3

// Waits between attempts, doubling. The first is about what a hand-off takes.
const (
	firstWait = time.Millisecond
	lastWait  = 50 * time.Millisecond
)

// forwarding is the work on one batch of which not all could be decided at once. It goes
// in rounds: everything that is pending is sent where it seems to belong, one call per
// node, all at once; what was not decided stays pending for the next round.
type forwarding struct {
	node  *Node
	batch *check.Batch
	whole *whole // of an all-or-nothing batch, else nil
	// once: what may have been charged is not sent again.
	once bool

	pending []pending
	groups  []group // of this round, two for each of routing.nodes
	busy    []int   // the groups to be called in this round
	here    []int   // places in pending of what is held here
	records []check.Record
	replies []check.Reply
	places  []int // place in pending of each record
	// sent is when the round began.
	sent    int64
	attempt int
	// deadline is that of all.
	deadline time.Time
	firsts   firsts
	changes  []change // made here in this round by checks of sync rules
	// stuck are the keys of which a check could not be decided here in this round, and why: those
	// that stand behind it wait too, so that a key's checks are decided in their order.
	stuck map[bucket.Key]error
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
	// relay: to is to ask the owner, which this node does not hear. relayed: that was tried in this attempt.
	relay, relayed bool
	// cause is why it is still pending.
	cause error
	done  bool
	// denied: its holder has denied the key lately.
	denied bool

	// Of this round, if it goes to another node.
	away bool
	// first is the place in forwarding.pending of the first check of its key, mostly its own. Of that one: whether others are
	// unlike it, and whose record the next that is like it joins.
	first int
	mixed bool
	joins int
	// with is the place in forwarding.pending of the check whose record it shares, mostly its own, and
	// place how many checks of that record stand before it.
	with  int
	place int64
	// Of the one whose record it is: how many share it, where its reply will be, the ticket by which it
	// comes if it goes behind the record of another batch, and what went wrong with that.
	times  int64
	at     int
	ticket *ticket
	err    error
	// entered: it goes beside others of its key. leads: others may be gathering behind it.
	entered, leads bool
}

// group is what goes to one node in one round: records[first:first+n].
type group struct {
	first, n int
	err      error
}

var forwardings = sync.Pool{New: func() any { return new(forwarding) }}

func (n *Node) newForwarding(b *check.Batch, w *whole) *forwarding {
	f := forwardings.Get().(*forwarding)
	f.node, f.batch, f.whole = n, b, w
	return f
}

// forward answers b wherever its holders are, this node included, until ctx ends or
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
		if w == nil && n.eventually.decide(b, i) {
			continue
		}
		var answered, denied bool
		if recall {
			answered, denied = n.recalled(r, now, b, i)
		}
		if answered {
			continue
		}
		if f == nil {
			f = n.newForwarding(b, w)
		}
		f.pending = append(f.pending, pending{index: i, denied: denied})
	}
	if f != nil {
		n.finish(ctx, f)
	}
}

// finish answers what is pending in f.
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

// release returns f without what it points to.
func (f *forwarding) release() {
	clear(f.pending)
	clear(f.records[:cap(f.records)]) // an earlier round may have had more
	clear(f.replies[:cap(f.replies)])
	*f = forwarding{
		pending: f.pending[:0], groups: f.groups[:0], busy: f.busy[:0], here: f.here[:0],
		records: f.records[:0], replies: f.replies[:0], places: f.places[:0], changes: f.changes[:0],
		firsts: f.firsts,
	}
	forwardings.Put(f)
}

func (f *forwarding) run(ctx context.Context) {
	wait := firstWait
	f.deadline, _ = ctx.Deadline() // there is one, see bounded
	for f.attempt = 0; ; {
		r := f.node.routing.Load()
		f.aim(r)
		f.pack(r)
		f.send(ctx, r)
		if len(f.pending) == 0 {
			return
		}
		if ctx.Err() == nil && f.goesOn() {
			continue
		}
		if !f.waitBehind(ctx, r, wait) {
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

var (
	errNobodyServes = errors.New("no member serves")
	errSealed       = errors.New("the holder is changing just now")
	errBehind       = errors.New("the holder's copy is too far behind")
	errOverslept    = fmt.Errorf("%w: this node was stopped, and lost the right to decide meanwhile", check.ErrAmbiguous)
)

// stick notes that a check of key waits because of cause.
func (f *forwarding) stick(key bucket.Key, cause error) {
	if f.stuck == nil {
		f.stuck = make(map[bucket.Key]error)
	}
	f.stuck[key] = cause
}

// undecided says why a table has not decided.
func undecided(v bucket.Verdict) error {
	if v == bucket.Behind {
		return errBehind
	}
	return errSealed
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

// waitBehind is the queue behind a close, and behind all else that passes by itself: a
// partition that is being handed over has no node that decides for some milliseconds,
// and what is asked meanwhile waits here for the heir to open, as news or after a moment. Without
// it those checks would be answered by on_failure. It reports false when ctx ended.
func (f *forwarding) waitBehind(ctx context.Context, r *routing, d time.Duration) bool {
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

// aim says where each pending check goes in this round: where the last node asked
// has pointed, else to the holder that is known. Checks for which a node without quorum
// has nobody to ask are answered, or wait if it may soon have.
func (f *forwarding) aim(r *routing) {
	f.sent = f.node.cfg.Clock()
	quorum, atOnce := f.node.mayDecide(f.sent), f.node.shares.When.AtOnce(f.sent)
	for i := range f.pending {
		p := &f.pending[i]
		if p.to == nobody {
			continue
		}
		key := f.batch.Requests[p.index].Key
		p.to = r.holder(key)
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
			} // else the next routing has somebody
		case p.to == r.self && !r.holds(key):
			// A hint at this node, which does not hold the key by what it knows: one of
			// the two is behind, and what comes next tells which.
			p.to = nobody
		}
	}
	f.sift()
}

// fail answers all that is pending without a holder.
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
	f.sift()
}
