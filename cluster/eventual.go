package cluster

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/eventual"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// Bounds of eventual mode on one node.
const (
	bookShards = 16
	// maxLocalKeys is how many keys a node decides by itself; checks of further keys are decided strictly.
	maxLocalKeys = 8192
	// maxReported is how many keys an owner knows the reporters of. Of other keys it takes all voters for reporters.
	maxReported = 65_536
	// maxLines is how many keys go into one report.
	maxLines = 1024
	// farReportTimeout is how long a report to another region waits for the response: one that is older begins no window.
	farReportTimeout = eventual.Fresh
)

// eventualMode is this node's part in eventual mode: checks of its clients are decided in books. One task reports them to owners,
// and a goroutine counts the reports of other nodes on keys that this node owns.
type eventualMode struct {
	node   *Node
	shards [bookShards]bookShard
	inbox  chan message.Envelope
	task   *task                  // there are keys in the books
	lines  [][]message.Line       // of the task, by owner, an index in routing.nodes
	far    map[string]*farReports // of the task, by region
	mu     struct {
		sync.Mutex
		owner *eventual.Owner
	}
	decided, sent, received, charged, over, dropped atomic.Uint64
}

// farReports are reports on keys whose counters another region has.
type farReports struct {
	lines []message.Line
	// waiting is how many lines have no response yet. With maxLocalKeys of them nothing is sent to the region.
	waiting atomic.Int64
}

type bookShard struct {
	mu struct {
		sync.Mutex
		book *eventual.Book
	}
}

func newEventualMode(n *Node) *eventualMode {
	v := &eventualMode{node: n, far: map[string]*farReports{}, inbox: make(chan message.Envelope, inboxSize), task: newTask(eventual.Period)}
	v.mu.owner = eventual.NewOwner(n.table, maxReported)
	for i := range v.shards {
		v.shards[i].mu.book = eventual.NewBook(maxLocalKeys / bookShards)
	}
	return v
}

func (v *eventualMode) shard(k bucket.Key) *bookShard { return &v.shards[k.Hi%bookShards] }

// decide answers check i of b from the book, if it can.
func (v *eventualMode) decide(b *check.Batch, i int) bool {
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

// run takes control messages until ctx ends.
func (v *eventualMode) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-v.inbox:
			v.take(e)
		}
	}
}

// take takes a control message of another node.
func (v *eventualMode) take(e message.Envelope) {
	if e.To.Boot != v.node.cfg.Boot {
		return
	}
	switch m := e.Body.(type) {
	case *message.Report:
		r := v.node.routing.Load()
		i := r.find(e.From.Name)
		if i == noNode || r.nodes[i].boot != e.From.Boot {
			return
		}
		if a := v.count(r, e.From, m); a != nil {
			v.node.cfg.Peers.Post(r.nodes[i].addr, message.Envelope{From: e.To, To: e.From, Body: a})
		}
	case *message.Account:
		v.learn(m)
	}
}

// report reports to each owner what was admitted here of its keys. more: there are keys in the books.
func (v *eventualMode) report() (more bool) {
	r, now := v.node.routing.Load(), v.node.cfg.Clock()
	for len(v.lines) < len(r.nodes) {
		v.lines = append(v.lines, nil)
	}
	for i := range v.shards {
		s := &v.shards[i]
		s.mu.Lock()
		s.mu.book.Report(now, func(l message.Line) {
			if home := v.node.away(&bucket.Request{Key: l.Key, Limits: l.Limits}); home != "" {
				v.addFar(home, l)
			} else if to := r.owner(l.Key); to != noNode {
				v.lines[to] = append(v.lines[to], l)
			}
		})
		more = more || s.mu.book.Len() > 0
		s.mu.Unlock()
	}
	for to, lines := range v.lines {
		for len(lines) > 0 {
			n := min(maxLines, len(lines))
			v.send(r, to, &message.Report{Sent: now, Lines: slices.Clone(lines[:n])})
			lines = lines[n:]
		}
		clear(v.lines[to])
		v.lines[to] = v.lines[to][:0]
	}
	for home, f := range v.far {
		for lines := range slices.Chunk(f.lines, maxLines) {
			v.sendFar(home, now, f, lines)
		}
		f.lines = f.lines[:0]
	}
	return more
}

func (v *eventualMode) addFar(home string, l message.Line) {
	f := v.far[home]
	if f == nil {
		f = new(farReports)
		v.far[home] = f
	}
	f.lines = append(f.lines, l)
}

// sendFar reports to the region home, as records that any node there passes on to the owners, and takes the answers. What gets lost, or
// is not sent because the region is slow, is part of the next report.
func (v *eventualMode) sendFar(home string, sent int64, f *farReports, lines []message.Line) {
	n := v.node
	addr := n.homeAddr(home)
	if addr == "" || f.waiting.Load() >= maxLocalKeys {
		return
	}
	records := make([]check.Record, len(lines))
	for i := range lines {
		l := &lines[i]
		records[i] = check.Record{Report: true, Relay: true, ID: uint64(l.Ends), For: maxRelayWait}
		records[i].Once = eventual.Tag(n.cfg.Boot)
		records[i].Key, records[i].Limits, records[i].Cost, records[i].Unreplicated = l.Key, l.Limits, l.Sum, l.Unreplicated
	}
	v.sent.Add(uint64(len(records)))
	f.waiting.Add(int64(len(records)))
	n.background.Go(func() {
		defer f.waiting.Add(-int64(len(records)))
		ctx, cancel := context.WithTimeout(context.Background(), farReportTimeout)
		defer cancel()
		replies := make([]check.Reply, len(records))
		_ = n.cfg.Peers.Call(ctx, addr, records, replies) // what has no response has no status
		for i := range replies {
			if r := &replies[i]; r.Status == check.Decided {
				ends := int64(r.Grant)
				v.learn(&message.Account{Sent: sent, Clock: ends - int64(r.ResetAfter), Lines: []message.Standing{{
					Key: records[i].Key, Ends: ends, Known: r.Admitted, Remaining: r.Remaining, Reporters: int(r.Limit),
				}}})
			}
		}
	})
}

// countFar counts a line of a report from another region, on a key that this node owns.
func (v *eventualMode) countFar(r *routing, now int64, rec *check.Record, reply *check.Reply) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.received.Add(1)
	s, ok := v.countLocked(r, now, rec.Once, &message.Line{
		Key: rec.Key, Limits: rec.Limits, Ends: int64(rec.ID), Sum: rec.Cost, Unreplicated: rec.Unreplicated,
	})
	if reply.Status = check.NotReady; !ok {
		return
	}
	reply.Status, reply.Admitted, reply.Remaining, reply.Limit = check.Decided, s.Known, s.Remaining, int64(s.Reporters)
	reply.Grant, reply.ResetAfter = uint64(s.Ends), time.Duration(s.Ends-now-v.node.ahead.Load())
}

// countLocked counts a line of the process with that tag.
func (v *eventualMode) countLocked(r *routing, now int64, tag uint64, l *message.Line) (s message.Standing, ok bool) {
	voters := r.voters
	if l.Limits.Home() != "" && v.node.manyRegions() {
		voters *= len(v.node.regions()) // as many in each
	}
	s, c, ok := v.mu.owner.Count(now, tag, l, voters)
	v.charged.Add(uint64(c.Added))
	v.over.Add(uint64(c.Over))
	return s, ok
}

// send sends m to the node with the index to, which may be this one.
func (v *eventualMode) send(r *routing, to int, m *message.Report) {
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

// count counts a report of from on keys that this node owns, and returns the answer, nil if there is none or this node has no
// quorum.
func (v *eventualMode) count(r *routing, from message.Peer, m *message.Report) *message.Account {
	v.mu.Lock()
	defer v.mu.Unlock()
	run := v.node.newLocalRun()
	if !run.quorum() {
		return nil
	}
	now := run.now
	a := &message.Account{Sent: m.Sent, Clock: now + v.node.ahead.Load()}
	for i := range m.Lines {
		l := &m.Lines[i]
		if !r.owns(l.Key) {
			continue
		}
		q := bucket.Request{Key: l.Key, Limits: l.Limits}
		if lost, plays := run.plays(&q, new(bucket.Decision)); lost || !plays || v.node.away(&q) != "" {
			continue
		}
		if s, ok := v.countLocked(r, now, eventual.Tag(from.Boot), l); ok {
			a.Lines = append(a.Lines, s)
		}
	}
	if from.Boot != v.node.cfg.Boot {
		v.received.Add(uint64(len(m.Lines)))
	}
	if len(a.Lines) == 0 || run.lostQuorum() {
		return nil
	}
	return a
}

// learn takes an owner's answer.
func (v *eventualMode) learn(a *message.Account) {
	now := v.node.cfg.Clock()
	for i := range a.Lines {
		l := &a.Lines[i]
		s := v.shard(l.Key)
		s.mu.Lock()
		s.mu.book.Learn(now, a.Sent, a.Clock, l)
		s.mu.Unlock()
	}
}

// EventualStats counts eventual mode since New, except for what is marked as of now.
type EventualStats struct {
	// Decided checks were decided from a book; Full ones would have been, but there were too many keys.
	Decided, Full uint64
	// Sent lines were reported to other nodes, one per key and report, Received ones by others. Dropped control messages met
	// a full queue.
	Sent, Received, Dropped uint64
	// Charged is the reported cost that was charged to keys owned here, Over how much of it went beyond their limits.
	Charged, Over uint64
	// Keys are decided here, Reported ones are owned here and reported on by nodes, this one included, both now.
	Keys, Reported int
	// Lag is for how long the oldest report has been without an answer, now.
	Lag time.Duration
}

func (v *eventualMode) stats(now int64) EventualStats {
	t := EventualStats{
		Decided: v.decided.Load(), Sent: v.sent.Load(), Received: v.received.Load(), Dropped: v.dropped.Load(),
		Charged: v.charged.Load(), Over: v.over.Load(),
	}
	v.mu.Lock()
	t.Reported = v.mu.owner.Keys()
	v.mu.Unlock()
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
