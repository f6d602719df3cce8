package cluster

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/eventual"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/message"
)

// Bounds of eventual mode on one node.
const (
	bookShards = 16
	// maxBook is of how many keys a node decides by itself; checks of more are decided strictly.
	maxBook = 8192
	// maxReported is of how many keys an owner knows who shares them. Of others it takes all members for that.
	maxReported = 65_536
	// maxLines is how many keys go into one report.
	maxLines = 1024
)

// eventually is this node's part in eventual mode: what its APIs ask is decided in books, and one goroutine
// tells owners of it, and counts what other nodes tell of the keys that are held here.
type eventually struct {
	node   *Node
	shards [bookShards]bookShard
	inbox  chan message.Envelope
	task   *task // there are keys in the books

	// Of the goroutine.
	owner *eventual.Owner
	lines [][]message.Line // by owner, a place in routing.nodes

	decided, sent, received, charged, over, dropped atomic.Uint64
	reported                                        atomic.Int64 // keys that others have told of
}

type bookShard struct {
	mu struct {
		sync.Mutex
		book *eventual.Book
	}
}

func newEventually(n *Node) *eventually {
	v := &eventually{node: n, inbox: make(chan message.Envelope, inboxSize), task: newTask(eventual.Period), owner: eventual.NewOwner(n.table, maxReported)}
	for i := range v.shards {
		v.shards[i].mu.book = eventual.NewBook(maxBook / bookShards)
	}
	return v
}

func (v *eventually) shard(k bucket.Key) *bookShard { return &v.shards[k.Hi%bookShards] }

// decide answers check i of b by what this node knows, if it can.
func (v *eventually) decide(b *check.Batch, i int) bool {
	q := &b.Requests[i]
	if !q.Eventual || !eventual.Serves(&q.Request) {
		return false
	}
	s, now := v.shard(q.Key), v.node.cfg.Clock()
	s.mu.Lock()
	d, age, ok := s.mu.book.Decide(now, &q.Request)
	s.mu.Unlock()
	v.task.call()
	if ok {
		v.decided.Add(1)
		b.Answers[i] = check.Answer{Decision: d, Source: check.Eventual, Owner: v.node.cfg.Name, Age: age}
	}
	return ok
}

// deliver queues a Report or an Account, or drops it: the next one says the same and more.
func (v *eventually) deliver(e message.Envelope) {
	select {
	case v.inbox <- e:
	default:
		v.dropped.Add(1)
	}
}

// run tells and counts until ctx ends.
func (v *eventually) run(ctx context.Context) {
	defer v.task.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.task.woken:
			v.task.begin()
		case <-v.task.due:
			v.task.done(v.report())
		case e := <-v.inbox:
			v.take(e)
		}
	}
}

// take takes a control message of another node.
func (v *eventually) take(e message.Envelope) {
	if e.To.Boot != v.node.cfg.Boot {
		return
	}
	switch m := e.Body.(type) {
	case *message.Report:
		r := v.node.routing.Load()
		i := r.find(e.From.Name)
		if i == nobody || r.nodes[i].boot != e.From.Boot {
			return
		}
		if a := v.count(r, e.From, m); a != nil {
			v.node.cfg.Peers.Post(r.nodes[i].addr, message.Envelope{From: e.To, To: e.From, Body: a})
		}
	case *message.Account:
		v.learn(m)
	}
}

// report tells each owner what was admitted here of its keys, and reports whether any is left in the books.
func (v *eventually) report() (more bool) {
	r, now := v.node.routing.Load(), v.node.cfg.Clock()
	for len(v.lines) < len(r.nodes) {
		v.lines = append(v.lines, nil)
	}
	for i := range v.shards {
		s := &v.shards[i]
		s.mu.Lock()
		s.mu.book.Report(now, func(l message.Line) {
			if to := r.owner(l.Key); to != nobody {
				v.lines[to] = append(v.lines[to], l)
			}
		})
		more = more || s.mu.book.Len() > 0
		s.mu.Unlock()
	}
	for to, lines := range v.lines {
		for len(lines) > 0 {
			n := min(maxLines, len(lines))
			v.tell(r, to, &message.Report{Sent: now, Lines: append([]message.Line(nil), lines[:n]...)})
			lines = lines[n:]
		}
		clear(v.lines[to])
		v.lines[to] = v.lines[to][:0]
	}
	return more
}

// tell brings m to the node at the place to, which may be this one.
func (v *eventually) tell(r *routing, to int, m *message.Report) {
	self := r.nodes[r.self].peer()
	if to == r.self {
		if a := v.count(r, self, m); a != nil {
			v.learn(a)
		}
		return
	}
	v.sent.Add(uint64(len(m.Lines)))
	v.node.cfg.Peers.Post(r.nodes[to].addr, message.Envelope{From: self, To: r.nodes[to].peer(), Body: m})
}

// count counts a report of from on keys that are held here, and returns the answer, nil if there is none: only who
// has quorum to decide knows what is left.
func (v *eventually) count(r *routing, from message.Peer, m *message.Report) *message.Account {
	right, now := v.node.right.Load(), v.node.cfg.Clock()
	if now >= right {
		return nil
	}
	a := &message.Account{Sent: m.Sent, Clock: now + v.node.ahead.Load()}
	for i := range m.Lines {
		l := &m.Lines[i]
		if !r.holds(l.Key) {
			continue
		}
		s, c, ok := v.owner.Count(now, from.Boot, l, r.voters)
		if !ok {
			continue
		}
		v.charged.Add(uint64(c.Added))
		v.over.Add(uint64(c.Over))
		a.Lines = append(a.Lines, s)
	}
	if from.Boot != v.node.cfg.Boot {
		v.received.Add(uint64(len(m.Lines)))
	}
	v.reported.Store(int64(v.owner.Keys()))
	if len(a.Lines) == 0 || v.node.cfg.Clock() >= right {
		return nil
	}
	return a
}

// learn takes an owner's answer.
func (v *eventually) learn(a *message.Account) {
	now := v.node.cfg.Clock()
	for i := range a.Lines {
		l := &a.Lines[i]
		s := v.shard(l.Key)
		s.mu.Lock()
		s.mu.book.Learn(now, a.Sent, a.Clock, l)
		s.mu.Unlock()
	}
}

// EventualStats counts what is decided in eventual mode, since New, except for what is marked as of now.
type EventualStats struct {
	// Decided checks were decided by what this node knew; Full ones would have been, but there were too many keys.
	Decided, Full uint64
	// Sent lines were told to other nodes, one per key and report, Received ones were told by others. Dropped
	// control messages met a full queue.
	Sent, Received, Dropped uint64
	// Charged is what was told of keys held here and charged to them, Over how much of it went
	// beyond their limits (cost).
	Charged, Over uint64
	// Keys are decided here, Reported ones are held here and told of by nodes, this one included, both now.
	Keys, Reported int
	// Lag is for how long the oldest report has been without an answer, now.
	Lag time.Duration
}

// stats returns the counts.
func (v *eventually) stats(now int64) EventualStats {
	t := EventualStats{
		Decided: v.decided.Load(), Sent: v.sent.Load(), Received: v.received.Load(), Dropped: v.dropped.Load(),
		Charged: v.charged.Load(), Over: v.over.Load(), Reported: int(v.reported.Load()),
	}
	for i := range v.shards {
		s := &v.shards[i]
		s.mu.Lock()
		b := s.mu.book.Stats(now)
		s.mu.Unlock()
		t.Keys += b.Keys
		t.Full += b.Full
		t.Lag = max(t.Lag, b.Lag)
	}
	return t
}
