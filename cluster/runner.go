package cluster

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

const (
	// inboxSize is how many messages may wait for the runner. All are small but for transfer batches, of which a process has
	// at most four without a receipt in flight.
	inboxSize = 4096
	// maxBatch and batchTime bound the messages that are taken in a turn, so that heartbeats go out in time.
	maxBatch  = 64
	batchTime = 2 * time.Millisecond
)

var errNotRunning = errors.New("cluster: the node does not run")

// runner is the goroutine that owns both machines: it gives them the time, messages and the view, sends their messages, and
// publishes what checks need. Nothing else calls them, except for Confirmed and LocalTerm.
type runner struct {
	node     *Node
	self     message.Peer
	quorum   *quorum.Machine
	handoff  *handoff.Machine
	assigner *assigner

	inbox   chan message.Envelope
	calls   chan func(now int64)
	wake    chan struct{} // a turn is due
	stored  chan stored   // the end of a write of the voter set
	flush   atomic.Bool   // a check waits for the confirmation of its charge
	dropped atomic.Uint64
	ended   chan struct{}
	views   struct {
		wake chan struct{}
		mu   sync.Mutex
		next member.View
	}

	// Of the goroutine.
	seq           uint64           // of the last view taken
	members       []member.Member  // its members
	heardOnly     []member.Member  // others, which gossip has lost and this process hears
	known         []node           // members and heardOnly
	at            int              // this process's index in known
	firstShown    map[string]int64 // when gossip first showed each boot id
	leftAt        int64            // when gossip first showed this process as leaving
	live          *liveMembers     // which of known live; never nil
	assignment    *assignment      // the last one built; never nil
	addrs         map[message.Peer]string
	stale         bool   // the published routing is out of date
	routes        uint64 // of the machine, when it was published
	set           message.Set
	voters        int // of the set with which this process last had quorum
	waiters       []*waiter
	moreConfirmed bool // changes may have been confirmed
	resting       bool // this process neither decides nor transfers any more
	stateLog      stateLog
	reported      int64 // when the counts were published
	interval      *interval
	corrector     *corrector
	storing       bool  // a write is in progress
	storeAt       int64 // when the next may begin, after one that failed
	storeErr      error // of the last one
}

// waiter is a caller that waits until ok is true after a turn of the runner, or ctx ends.
type waiter struct {
	ctx  context.Context
	ok   func(now int64) bool
	done chan struct{}
}

// do makes the runner call f, and waits until it returns.
func (r *runner) do(ctx context.Context, f func(now int64)) error {
	done := make(chan struct{})
	select {
	case r.calls <- func(now int64) { f(now); close(done) }:
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ended:
		return errNotRunning
	}
	<-done
	return nil
}

// await waits until ok, which the runner calls, is true after a turn.
func (r *runner) await(ctx context.Context, ok func(now int64) bool) error {
	w := &waiter{ctx, ok, make(chan struct{})}
	if err := r.do(ctx, func(int64) { r.waiters = append(r.waiters, w) }); err != nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	case <-r.ended:
		return errNotRunning
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run takes turns until ctx ends. This process then has no quorum any more.
func (r *runner) run(ctx context.Context) {
	defer close(r.ended)
	defer r.node.quorumUntil.Store(math.MinInt64)
	r.interval = newInterval(r.node.cfg.Clock())
	defer r.interval.tick.Stop()
	defer func() {
		if r.storing {
			<-r.stored
		}
	}()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for {
		active := true // more goes on than heartbeats
		select {
		case <-ctx.Done():
			return
		case e := <-r.inbox:
			r.stepAll(e)
			active = false // unless stepAll says otherwise
		case s := <-r.stored:
			r.takeStored(s)
		case f := <-r.calls:
			r.takeView() // the caller may have set it just before
			f(r.node.cfg.Clock())
		case <-r.node.table.Activated():
			r.interval.activate(r.node.cfg.Clock()) // changes go out with the next tick
			continue
		case <-r.wake:
		case <-due.C:
			active = false
		case <-r.views.wake:
			r.takeView()
		case p := <-r.assigner.done:
			r.takeAssignment(p)
		case <-r.interval.tick.C:
			active = false
			r.moreConfirmed = true // a replica may have been dropped
		}
		r.turn()
		if active || len(r.waiters) > 0 {
			r.interval.activate(r.node.cfg.Clock())
		}
		r.interval.turned(r.node.cfg.Clock(), r.quorum.Due())
		if at := r.handoff.Due(); at != math.MaxInt64 {
			due.Reset(time.Duration(at - r.node.cfg.Clock()))
		}
	}
}

// stepAll gives e and queued messages to both machines, each with the current time: the process may be stopped between two.
func (r *runner) stepAll(e message.Envelope) {
	began := r.node.cfg.Clock()
	for n := 1; ; n++ {
		now := r.node.cfg.Clock()
		switch e.Body.(type) {
		case *message.Heartbeat, *message.Ack, *message.OwnedPartitions:
		case *message.Receipt:
			r.moreConfirmed = true
			r.interval.activate(now)
		default:
			r.interval.activate(now)
		}
		r.quorum.Step(now, e)
		if !r.resting {
			r.handoff.Step(now, e)
		}
		if n == maxBatch || now-began >= int64(batchTime) {
			return
		}
		select {
		case e = <-r.inbox:
		default:
			return
		}
	}
}

// turn ticks both machines, publishes the results, and then sends their messages: a promise in a message must hold when it is
// sent.
func (r *runner) turn() {
	now := r.node.cfg.Clock()
	r.checkLiveness(now)
	r.quorum.Tick(now)
	r.corrector.compare(r, now)
	if r.flush.Swap(false) {
		r.handoff.Flush()
	}
	if !r.resting {
		r.handoff.Tick(now)
	}
	r.publish()
	r.store(now)
	r.post(r.quorum.Take())
	r.post(r.handoff.Take())
	r.sendInvalidations()
	if r.moreConfirmed {
		r.moreConfirmed = false
		r.node.confirms.notify()
	}
	r.serveWaiters(now)
	if now >= r.reported+int64(5*period) {
		r.reported = now
		r.report(now)
	}
}

const (
	// processorsEach is the number of processors per goroutine of parallel: checks need the others.
	processorsEach = 2
	// countersAlone is the number of counters that one goroutine imports in about the time in which another would begin.
	countersAlone = 512
)

// parallel implements handoff.Config.Share.
func parallel(counters, n int, work func(i int)) {
	var next atomic.Int64
	run := func() {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			work(int(i))
		}
	}
	var others sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0)/processorsEach, counters/countersAlone, n) - 1 {
		others.Go(run)
	}
	run()
	others.Wait()
}

// post sends messages to members that gossip shows.
func (r *runner) post(list []message.Envelope) {
	for _, e := range list {
		if addr := r.addrs[e.To]; addr != "" {
			r.node.cfg.Peers.Post(addr, e)
		}
	}
}

// serveWaiters ends the waits that are over. Their callers find current counts.
func (r *runner) serveWaiters(now int64) {
	var over []*waiter
	r.waiters = slices.DeleteFunc(r.waiters, func(w *waiter) bool {
		ended := w.ctx.Err() != nil
		if !ended && w.ok(now) {
			ended, over = true, append(over, w)
		}
		return ended
	})
	if len(over) > 0 {
		r.report(now)
	}
	for _, w := range over {
		close(w.done)
	}
}

const (
	// period is the longest time between two turns of an active node.
	period = 20 * time.Millisecond
	// After idleAfter without activity it is idlePeriod, or until the next heartbeat is due.
	idleAfter  = time.Second
	idlePeriod = 100 * time.Millisecond
)

// interval is the adaptive interval of the runner's turns. An idle node must sleep: waking up costs more than a turn. Not safe for
// concurrent use.
type interval struct {
	tick      *time.Ticker
	activated int64 // time of the last activity
	idle      bool
}

// newInterval returns an active interval. The caller must stop its tick.
func newInterval(now int64) *interval { return &interval{tick: time.NewTicker(period), activated: now} }

func (c *interval) activate(now int64) {
	c.activated = now
	if c.idle {
		c.idle = false
		c.tick.Reset(period)
	}
}

// turned must be called after each turn. While idle, the next turn is idlePeriod later, or at due.
func (c *interval) turned(now, due int64) {
	c.idle = c.idle || now-c.activated >= int64(idleAfter)
	if c.idle {
		c.tick.Reset(time.Duration(min(now+int64(idlePeriod), max(due, now+int64(time.Millisecond))) - now))
	}
}

// task is periodic work that pauses while there is nothing to do, so that an idle node sleeps.
type task struct {
	calls  chan struct{}
	period time.Duration
}

func newTask(period time.Duration) *task { return &task{make(chan struct{}, 1), period} }

// call starts the work, if it pauses. Safe for concurrent use.
func (t *task) call() { signal(t.calls) }

// run calls work every period after a call, until work reports that there is no more. It returns when ctx ends. A call during the
// work is not missed.
func (t *task) run(ctx context.Context, work func() (more bool)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.calls:
		}
		tick := time.NewTicker(t.period)
		for more := true; more; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				more = work()
			}
		}
		tick.Stop()
	}
}
