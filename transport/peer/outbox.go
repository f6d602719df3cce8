package peer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/message"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
	"google.golang.org/grpc"
)

// lastControlBackoff bounds how long a failed attempt to connect keeps control messages from trying
// again: a peer that has come back must get heartbeats soon. A connection that is
// lost before it is as old counts as a failed attempt.
const lastControlBackoff = 200 * time.Millisecond

// companyTime is how long a control message that tells nothing new waits for company. Heartbeats, which
// it waits for, go out every 100 ms.
const companyTime = 120 * time.Millisecond

// outbox is the way of control messages to one address. While it is running, one goroutine
// connects and then waits for the end of the stream, and another one writes.
type outbox struct {
	pool *Pool
	addr string
	wake chan struct{} // to the one who writes
	late *time.Timer   // wakes the one who writes when something has waited long enough; mu guards setting it

	mu struct {
		sync.Mutex
		closed, running bool
		// cancel ends the stream, if there is one.
		cancel func()
		// transfer batches has what may be much, control all else. Each queue has its own bounds, so
		// that a heap of transfer batches leaves room for heartbeats.
		control, transferBatches controlMessages

		failures int       // attempts since the last good connection
		failure  error     // of the last of them
		retryAt  time.Time // when the next may begin
	}
}

func newOutbox(p *Pool, addr string) *outbox {
	o := &outbox{pool: p, addr: addr, wake: make(chan struct{}, 1)}
	o.late = time.AfterFunc(companyTime, o.nudge)
	o.late.Stop()
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
	taken := o.takeLocked(m, bulky(e.Body))
	waits := e.Patient && o.mu.control.len() == 1 && o.mu.transferBatches.len() == 0
	connected := o.mu.cancel != nil
	if taken && !o.mu.running {
		o.mu.running = true
		o.pool.wg.Go(o.run)
	}
	if taken && connected && waits {
		o.late.Reset(companyTime)
	}
	o.mu.Unlock()
	switch {
	case !taken:
		o.pool.stats.dropped.Add(1)
	case connected && !waits:
		o.nudge()
	}
}

// takeLocked queues m if it may wait.
func (o *outbox) takeLocked(m controlMessage, bulky bool) bool {
	if o.mu.closed || !o.mu.running && o.mu.failures > 0 && time.Now().Before(o.mu.retryAt) {
		return false
	}
	if bulky {
		return o.mu.transferBatches.push(m)
	}
	return o.mu.control.push(m)
}

// nudge wakes the one who writes.
func (o *outbox) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run connects as long as there are control messages and attempts succeed. It is a goroutine of
// the pool.
func (o *outbox) run() {
	for {
		since, err := o.connect()
		again, first, dropped := o.ended(since, err)
		o.pool.stats.dropped.Add(uint64(dropped))
		if first && o.pool.ctx.Err() == nil {
			o.pool.warn("peer gets no control messages", o.addr, "error", err)
		}
		if !again {
			return
		}
	}
}

// connect makes a connection, uses it until it is lost, and returns when it was
// made, if it was, and why it ended.
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
		return since, errOutboxClosed
	}
	p.stats.dialled.Add(1)

	// The next connection's writer must not begin before this one's has ended.
	written := make(chan struct{})
	p.wg.Go(func() {
		defer close(written)
		o.write(stream, c)
	})
	o.nudge()
	var answer peerv1.Greeting
	if err = stream.RecvMsg(&answer); err == nil {
		err = errors.New("malformed answer: a second hello")
	}
	c.cancel()
	<-written
	return since, fmt.Errorf("the connection was lost: %w", plain(err))
}

var errOutboxClosed = errors.New("this peer is no longer a member")

// ended notes that an attempt or a connection came to its end. It says whether to
// try again at once, whether this is the first failure in a row, and how many
// messages had to be dropped.
func (o *outbox) ended(since time.Time, err error) (again, first bool, dropped int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost := o.mu.cancel != nil
	o.mu.cancel = nil
	if o.mu.closed {
		o.mu.running = false
		return false, false, o.dropLocked()
	}
	if lost {
		o.pool.stats.broken.Add(1)
	}
	if now := time.Now(); since.IsZero() || now.Sub(since) < lastControlBackoff {
		wait := lastControlBackoff
		if o.mu.failures < 5 { // 10 ms · 2⁵ is past the last
			wait = min(wait, firstBackoff<<o.mu.failures)
		}
		o.mu.failures++
		o.mu.failure = err
		o.mu.retryAt = now.Add(wait)
		o.mu.running = false
		return false, o.mu.failures == 1, o.dropLocked()
	}
	o.mu.failures, o.mu.failure = 0, nil
	o.mu.running = o.mu.control.len()+o.mu.transferBatches.len() > 0
	return o.mu.running, true, 0
}

// dropLocked empties the queues.
func (o *outbox) dropLocked() int { return o.mu.control.drop() + o.mu.transferBatches.drop() }

// close ends the outbox for good.
func (o *outbox) close() {
	o.mu.Lock()
	o.mu.closed = true
	o.late.Stop()
	dropped := o.dropLocked()
	cancel := o.mu.cancel
	o.mu.Unlock()
	o.pool.stats.dropped.Add(uint64(dropped))
	if cancel != nil {
		cancel()
	}
}

// write sends what waits until the stream ends. It is a goroutine of the pool.
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
			batch = takeFrame(batch[:0], &o.mu.control, &o.mu.transferBatches)
			o.late.Stop() // or a sleeping node would wake for a control message that has left
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

// ControlQueue takes messages from other nodes.
type ControlQueue interface {
	// Deliver must not block: while it runs, all else that the sender posted
	// waits. It may keep the message. Messages of one peer come one after the
	// other, those of different peers at the same time.
	Deliver(message.Envelope)
}

// Control serves one stream. Its goroutine delivers in order.
func (s service) Control(stream grpc.BidiStreamingServer[peerv1.Post, peerv1.Greeting]) error {
	s.stats.streams.Add(1)
	defer s.stats.streams.Add(-1)
	hello, err := s.admit(stream)
	if err != nil {
		return err
	}
	r := s.reader(hello)
	var post peerv1.Post
	var got []message.Envelope
	for {
		if err := stream.RecvMsg(&post); err != nil {
			return err // the peer is gone, or sent what is no frame: gRPC says which
		}
		var skipped int
		got, skipped, err = r.read(&post, got[:0])
		if err != nil {
			return s.malformed(hello, err)
		}
		s.stats.skipped.Add(uint64(skipped))
		if s.cfg.ControlQueue != nil {
			s.stats.delivered.Add(uint64(len(got)))
			for _, e := range got {
				s.cfg.ControlQueue.Deliver(e)
			}
		}
		// Nothing of this frame is kept while the next one is awaited.
		clear(got)
		cutPost(&post)
	}
}

// reader returns a reader of the frames of a stream that hello began.
func (s service) reader(hello *peerv1.Hello) controlReader {
	return controlReader{from: message.Peer{Name: hello.Name, Boot: hello.Boot}, definitions: definitions{intern: s.intern}}
}
