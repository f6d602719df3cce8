package peer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
	"google.golang.org/grpc"
)

// lastControlBackoff bounds how long control messages wait after a failed attempt to connect: a peer that has come back must
// get heartbeats soon. A connection that is lost before it is that old counts as a failed attempt.
const lastControlBackoff = 200 * time.Millisecond

// batchDelay is how long a Patient control message waits for others, to share their frame. Heartbeats are sent every 100 ms.
const batchDelay = 120 * time.Millisecond

// outbox carries control messages to one address. While it is running, one goroutine connects and then waits for the end of
// the stream, and another one writes.
type outbox struct {
	pool       *Pool
	addr       string
	wake       chan struct{} // to the writer
	batchTimer *time.Timer   // wakes the writer when a message has waited for batchDelay; mu guards setting it

	mu struct {
		sync.Mutex
		closed, running bool
		// cancel ends the stream, if there is one.
		cancel func()
		// bulk has bulky messages, control all others. Each queue has its own bounds, so that transfer batches
		// leave room for heartbeats.
		control, bulk controlMessages
		retry         retry
	}
}

func newOutbox(p *Pool, addr string) *outbox {
	o := &outbox{pool: p, addr: addr, wake: make(chan struct{}, 1)}
	o.batchTimer = time.AfterFunc(batchDelay, func() { signal(o.wake) })
	o.batchTimer.Stop()
	return o
}

// post is Pool.Post.
func (o *outbox) post(e message.Envelope) {
	m, err := encode(&e)
	if err != nil {
		o.pool.stats.dropped.Add(1)
		o.pool.warn("a message cannot be sent", o.addr, "error", err)
		return
	}
	o.mu.Lock()
	queue := &o.mu.control
	if bulky(e.Body) {
		queue = &o.mu.bulk
	}
	taken := !o.mu.closed && (o.mu.running || !o.mu.retry.waits()) && queue.push(m)
	waits := e.Patient && len(o.mu.control.list) == 1 && o.waitingLocked() == 1
	connected := o.mu.cancel != nil
	if taken && !o.mu.running {
		o.mu.running = true
		o.pool.wg.Go(o.run)
	}
	if taken && connected && waits {
		o.batchTimer.Reset(batchDelay)
	}
	o.mu.Unlock()
	switch {
	case !taken:
		o.pool.stats.dropped.Add(1)
	case connected && !waits:
		signal(o.wake)
	}
}

// run connects as long as there are control messages and attempts succeed. It is a goroutine of the pool.
func (o *outbox) run() {
	for {
		since, err := o.connect()
		again, first := o.ended(since, err)
		if first && o.pool.ctx.Err() == nil {
			o.pool.warn("peer gets no control messages", o.addr, "error", err)
		}
		if !again {
			return
		}
	}
}

// connect makes a connection and uses it until it is lost. It returns when it was made, if it was, and why it ended.
func (o *outbox) connect() (since time.Time, err error) {
	p := o.pool
	stream, c, err := dial(p.ctx, p, o.addr, peerv1.PeerServiceClient.Control)
	if err != nil {
		p.stats.failed.Add(1)
		return since, err
	}
	defer c.close()
	since = time.Now()
	o.mu.Lock()
	closed := o.mu.closed
	if !closed {
		o.mu.cancel = c.cancel
	}
	o.mu.Unlock()
	if closed {
		return since, errNoMember
	}
	p.stats.dialled.Add(1)

	// The next connection's writer must not begin before this one's has ended.
	written := make(chan struct{})
	p.wg.Go(func() {
		defer close(written)
		o.write(stream, c)
	})
	signal(o.wake)
	var answer peerv1.Greeting
	if err = stream.RecvMsg(&answer); err == nil {
		err = fmt.Errorf("malformed answer: %w", errSecondHello)
	}
	c.cancel()
	<-written
	return since, fmt.Errorf("the connection was lost: %w", withoutPrefix(err))
}

var errNoMember = errors.New("this peer is no longer a member")

// ended notes the end of an attempt or a connection. It returns whether to try again at once, and whether this is the first
// failure in a row.
func (o *outbox) ended(since time.Time, err error) (again, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost := o.mu.cancel != nil
	o.mu.cancel = nil
	if lost && !o.mu.closed {
		o.pool.stats.broken.Add(1)
	}
	if !o.mu.closed && !since.IsZero() && time.Since(since) >= lastControlBackoff {
		o.mu.retry = retry{}
		o.mu.running = o.waitingLocked() > 0
		return o.mu.running, true
	}
	o.mu.running = false
	o.dropLocked()
	if o.mu.closed {
		return false, false
	}
	o.mu.retry.failed(err, lastControlBackoff)
	return false, o.mu.retry.failures == 1
}

func (o *outbox) waitingLocked() int { return len(o.mu.control.list) + len(o.mu.bulk.list) }

// dropLocked drops the waiting messages.
func (o *outbox) dropLocked() {
	o.pool.stats.dropped.Add(uint64(o.waitingLocked()))
	o.mu.control, o.mu.bulk = controlMessages{}, controlMessages{}
}

// close ends the outbox for good.
func (o *outbox) close() {
	o.mu.Lock()
	o.mu.closed = true
	o.batchTimer.Stop()
	o.dropLocked()
	cancel := o.mu.cancel
	o.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// write sends waiting messages until the stream ends. It is a goroutine of the pool.
func (o *outbox) write(stream grpc.ClientStream, c connection) {
	w := newControlWriter(o.pool.cfg.MaxLimits)
	var batch []controlMessage
	for {
		select {
		case <-o.wake:
		case <-c.done:
			return
		}
		for {
			o.mu.Lock()
			batch = takeFrame(batch[:0], &o.mu.control, &o.mu.bulk)
			o.batchTimer.Stop() // or it would wake an idle node for a message that was sent
			o.mu.Unlock()
			if len(batch) == 0 {
				break
			}
			frame, err := w.frame(batch)
			if err == nil {
				o.pool.stats.posted.Add(uint64(len(batch)))
				err = stream.SendMsg(frame) // io.EOF says that the stream is over; connect learns why
			}
			clear(batch)
			if err != nil {
				c.cancel()
				return
			}
		}
	}
}
