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

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/cluster/quorum"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
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
	asks    chan func(now int64)
	kick    chan struct{} // something waits for the next turn
	stored  chan stored   // the end of a write of the voter set
	flush   atomic.Bool   // a check waits until its charge is confirmed
	dropped atomic.Uint64
	ended   chan struct{}
	views   struct {
		wake chan struct{}
		mu   sync.Mutex
		next member.View
	}

	// Of the goroutine.
	seq        uint64           // of the last view taken
	members    []member.Member  // its members
	heardOnly  []member.Member  // others that gossip has lost and that are heard
	known      []node           // both
	at         int              // this process's index in known
	first      map[string]int64 // when gossip first showed each boot id
	leftAt     int64            // when gossip first showed this process as leaving
	live       *liveMembers     // which of known live; never nil
	assignment *assignment      // the last one built; never nil
	addrs      map[message.Peer]string
	stale      bool   // the published routing is out of date
	routes     uint64 // of the machine, when it was published
	set        message.Set
	voters     int // of the set with which this process last had quorum
	waits      []*wait
	moved      bool // changes may have been confirmed
	resting    bool // this process neither decides nor transfers any more
	chronicle  chronicle
	reported   int64 // when the counts were published
	interval   *interval
	corrector  *corrector
	storing    bool  // a write is in progress
	storeAt    int64 // when the next may begin, after one that failed
}

// wait is a caller that waits until ok is true after a turn of the runner, or ctx ends.
type wait struct {
	ctx  context.Context
	ok   func(now int64) bool
	done chan struct{}
}

// ask makes the runner call f, and waits for it.
func (r *runner) ask(ctx context.Context, f func(now int64)) error {
	done := make(chan struct{})
	select {
	case r.asks <- func(now int64) { f(now); close(done) }:
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
	w := &wait{ctx, ok, make(chan struct{})}
	if err := r.ask(ctx, func(int64) { r.waits = append(r.waits, w) }); err != nil {
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
		case f := <-r.asks:
			r.takeView() // the caller may have set it just before
			f(r.node.cfg.Clock())
		case <-r.node.table.Activated():
			r.interval.activate(r.node.cfg.Clock()) // changes go out with the next tick
			continue
		case <-r.kick:
		case <-due.C:
			active = false
		case <-r.views.wake:
			r.takeView()
		case p := <-r.assigner.done:
			r.takeAssignment(p)
		case <-r.interval.tick.C:
			active = false
			r.moved = true // a replica may have been dropped
		}
		r.turn()
		if active || len(r.waits) > 0 {
			r.interval.activate(r.node.cfg.Clock())
		}
		r.interval.turned(r.node.cfg.Clock(), r.quorum.Due())
		if at := r.handoff.Due(); at != math.MaxInt64 {
			due.Reset(time.Duration(at - r.node.cfg.Clock()))
		}
	}
}

// stepAll gives e and the messages queued behind it to both machines, each with the current time: the process may have been
// stopped between any two.
func (r *runner) stepAll(e message.Envelope) {
	began := r.node.cfg.Clock()
	for n := 1; ; n++ {
		now := r.node.cfg.Clock()
		switch e.Body.(type) {
		case *message.Heartbeat, *message.Ack, *message.OwnedPartitions:
		case *message.Receipt:
			r.moved = true
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

// turn ticks both machines, publishes the results, and sends their messages. Publishing comes first: what this process
// promises to others must hold by then.
func (r *runner) turn() {
	now := r.node.cfg.Clock()
	r.watch(now)
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
	if r.moved {
		r.moved = false
		r.node.confirms.ring()
	}
	r.serveWaits(now)
	if now >= r.reported+int64(5*period) {
		r.reported = now
		r.report(now)
	}
}

const (
	// processorsEach is how many processors a goroutine of workTogether needs: checks need the others.
	processorsEach = 2
	// countersAlone is how many counters one goroutine imports in about the time in which another would begin.
	countersAlone = 512
)

// workTogether implements handoff.Config.Share.
func workTogether(counters, n int, work func(i int)) {
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

// serveWaits ends the waits that are over. Their callers find current counts.
func (r *runner) serveWaits(now int64) {
	var over []*wait
	r.waits = slices.DeleteFunc(r.waits, func(w *wait) bool {
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

// activate notes activity.
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

// task is work that comes up now and then: it is done every period while there is some, and sleeps otherwise, so that an idle
// node sleeps.
type task struct {
	calls  chan struct{}
	period time.Duration
}

func newTask(period time.Duration) *task { return &task{make(chan struct{}, 1), period} }

// call reports that there is work. Safe for concurrent use.
func (t *task) call() { signal(t.calls) }

// run calls work every period from a call on, as long as work reports that there is more, until ctx ends. A call during the work
// is not missed.
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
