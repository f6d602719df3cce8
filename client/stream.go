package client

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

const (
	// maxFlying is how many frames may be unanswered before checks gather.
	maxFlying = 3
	// maxFrameBytes and maxFrameChecks end a frame. Two of them fit into what gRPC takes without making
	// the sender wait, so whoever sends never waits.
	maxFrameBytes  = 16 << 10
	maxFrameChecks = 512
	// maxQueued is how many checks may wait for a frame to leave.
	maxQueued = 16 << 10
)

// call is one check on its way, and its answer. Whoever waits for done may give up; then the
// call is left to whoever still knows it.
type call struct {
	body     []byte // a sluice.v1.Check
	decision Decision
	asked    time.Time // when its frame was sent
	fault    *sluicev1.Error
	err      error
	done     chan struct{}
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// answer ends the call. It never blocks.
func (c *call) answer(err error) {
	c.err = err
	c.done <- struct{}{}
}

// release gives c back for another call. Only for one that was answered.
func (c *call) release() {
	c.decision, c.fault, c.err = Decision{}, nil, nil
	calls.Put(c)
}

// frame is a CheckRequest: its bytes, until they are sent, and whose checks are in it.
type frame struct {
	id    uint64
	out   *[]byte
	calls []*call
	sent  time.Time
}

var frames = sync.Pool{New: func() any { return new(frame) }}

func newFrame() *frame {
	f := frames.Get().(*frame)
	f.out = mem.DefaultBufferPool().Get(maxFrameBytes)
	*f.out = (*f.out)[:0]
	return f
}

// release gives the frame back; its calls are answered.
func (f *frame) release() {
	clear(f.calls)
	*f = frame{calls: f.calls[:0]}
	frames.Put(f)
}

func (f *frame) add(c *call) {
	b := protowire.AppendTag(*f.out, requestChecks, protowire.BytesType)
	*f.out = protowire.AppendBytes(b, c.body)
	f.calls = append(f.calls, c)
}

// has reports whether there is room for c.
func (f *frame) has(c *call) bool {
	return len(f.calls) < maxFrameChecks && (len(f.calls) == 0 || len(*f.out)+len(c.body) <= maxFrameBytes-16)
}

// stream is a CheckStream to one node. Whoever sets sending owns the sending half until it
// clears it; the goroutine in receive owns the receiving half.
type stream struct {
	node   *node
	grpc   grpc.ClientStream
	cancel context.CancelFunc
	names  names       // of the receiver
	worked atomic.Bool // an answer has come

	mu struct {
		sync.Mutex
		// waiting are frames that gather, the oldest first; queued is how many checks they have.
		waiting []*frame
		queued  int
		flying  []*frame // sent and unanswered
		lastID  uint64
		sending bool
		// ended is why nothing is taken any more.
		ended error
	}
}

// submit takes c, which will be answered. The error, if any, says that it was not taken.
func (s *stream) submit(c *call) error {
	s.mu.Lock()
	if s.mu.ended != nil {
		s.mu.Unlock()
		return errUnsent
	}
	if s.mu.queued >= maxQueued {
		s.mu.Unlock()
		return errBusy
	}
	n := len(s.mu.waiting)
	if n == 0 || !s.mu.waiting[n-1].has(c) {
		s.mu.waiting = append(s.mu.waiting, newFrame())
		n++
	}
	s.mu.waiting[n-1].add(c)
	s.mu.queued++
	lead := s.leadLocked()
	s.mu.Unlock()
	if lead {
		// Who else is about to ask comes along. Alone, this takes no time.
		runtime.Gosched()
		s.send()
	}
	return nil
}

// leadLocked makes the caller the one who sends, if there is something that may leave now.
func (s *stream) leadLocked() bool {
	if s.mu.sending || s.mu.ended != nil || len(s.mu.waiting) == 0 || len(s.mu.flying) >= maxFlying {
		return false
	}
	s.mu.sending = true
	return true
}

// send sends frames while some may leave, and clears sending.
func (s *stream) send() {
	s.mu.Lock()
	for s.mu.ended == nil && len(s.mu.waiting) > 0 && len(s.mu.flying) < maxFlying {
		f := s.mu.waiting[0]
		s.mu.waiting = append(s.mu.waiting[:0], s.mu.waiting[1:]...)
		s.mu.queued -= len(f.calls)
		s.mu.lastID++
		f.id, f.sent = s.mu.lastID, time.Now()
		b := protowire.AppendTag(*f.out, requestID, protowire.VarintType)
		*f.out = protowire.AppendVarint(b, f.id)
		s.mu.flying = append(s.mu.flying, f)
		s.mu.Unlock()
		s.node.client.stats.frames.Add(1)
		// An error says that the stream has ended; receive learns why, and answers.
		if err := s.grpc.SendMsg(f); err != nil {
			s.cancel()
		}
		s.mu.Lock()
	}
	s.mu.sending = false
	s.mu.Unlock()
}

// receive takes answers until the stream ends, and answers what is left then.
func (s *stream) receive() {
	for {
		if err := s.grpc.RecvMsg(s); err != nil {
			s.end(err)
			return
		}
		// Those who got answers may ask again, and then the next frame has their checks too.
		runtime.Gosched()
		s.mu.Lock()
		lead := s.leadLocked()
		s.mu.Unlock()
		if lead {
			s.send()
		}
	}
}

// take reads one answer.
func (s *stream) take(b []byte) error {
	id, decisions, fault, err := responseHead(b)
	if err != nil {
		return err
	}
	f := s.answered(id)
	if !s.worked.Load() {
		s.worked.Store(true)
	}
	switch {
	case f == nil:
		return fmt.Errorf("%w: to frame %d, which was not asked or is answered", errMalformed, id)
	case fault != nil:
		for _, c := range f.calls {
			c.fault = fault
			c.answer(nil)
		}
		f.release()
		return nil
	case decisions != len(f.calls):
		for _, c := range f.calls {
			c.answer(errAmbiguous)
		}
		n := len(f.calls)
		f.release()
		return fmt.Errorf("%w: %d decisions on %d checks", errMalformed, decisions, n)
	}
	at := 0
	err = responseFields(b, func(b []byte) error {
		c := f.calls[at]
		fault, err := readDecision(b, &c.decision, &s.names)
		if err != nil {
			return err
		}
		c.fault, c.asked = fault, f.sent
		at++
		c.answer(nil)
		return nil
	})
	for ; at < len(f.calls); at++ { // of a malformed answer
		f.calls[at].answer(errAmbiguous)
	}
	f.release()
	return err
}

// answered takes the frame that id names out of those under way.
func (s *stream) answered(id uint64) *frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.mu.flying {
		if f.id == id {
			s.mu.flying = append(s.mu.flying[:i], s.mu.flying[i+1:]...)
			return f
		}
	}
	return nil
}

// end gives the stream up: what waits is unsent, and what is under way is ambiguous, unless the
// node has said that it leaves: then it has answered everything that it decided.
func (s *stream) end(why error) {
	s.mu.Lock()
	if s.mu.ended != nil {
		s.mu.Unlock()
		return
	}
	s.mu.ended = why
	waiting, flying := s.mu.waiting, s.mu.flying
	s.mu.waiting, s.mu.flying, s.mu.queued = nil, nil, 0
	s.mu.Unlock()
	s.cancel()
	s.node.lost(s)
	under := errAmbiguous
	if leaves(why) {
		under = errUnsent
	}
	// The sender may have a frame that is flying in its hands, so frames are not pooled again.
	for _, f := range flying {
		for _, c := range f.calls {
			c.answer(under)
		}
	}
	for _, f := range waiting {
		for _, c := range f.calls {
			c.answer(errUnsent)
		}
	}
}

// stalled reports whether the oldest frame has been unanswered for longer than limit.
func (s *stream) stalled(now time.Time, limit time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.flying) > 0 && now.Sub(s.mu.flying[0].sent) > limit
}
