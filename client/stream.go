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
	// maxFlying is how many frames of a lane may be unanswered before checks gather. Those that are unanswered
	// for lateAfter do not count, up to maxFlyingLate in all: they wait for something at the node, and
	// others need not.
	maxFlying     = 3
	lateAfter     = 20 * time.Millisecond
	maxFlyingLate = 32
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
	asked    time.Time // when its frame was sent, if it was
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
	c.decision, c.asked, c.fault, c.err = Decision{}, time.Time{}, nil, nil
	calls.Put(c)
}

// frame is a CheckRequest: its bytes, until they are sent, and whose checks are in it.
type frame struct {
	lane  *lane
	id    uint64
	out   *[]byte
	calls []*call
	sent  time.Time
	late  bool // it does not count in its lane any more
}

var frames = sync.Pool{New: func() any { return new(frame) }}

func newFrame(l *lane) *frame {
	f := frames.Get().(*frame)
	f.lane = l
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

// lane is what travels together on a stream, and does not wait for other lanes' answers.
type lane struct {
	// waiting are frames that gather, the oldest first.
	waiting []*frame
	// flying is how many are sent and unanswered, and not late.
	flying int
}

// The lanes: checks whose counter the node holds, as far as is known, are decided at once. Others, which the
// node may have to ask somebody else about, or wait with until there is an owner, do not hold them up.
const (
	here = iota
	elsewhere
)

// stream is a CheckStream to one node. Whoever sets sending owns the sending half until it
// clears it; the goroutine in receive owns the receiving half.
type stream struct {
	node   *node
	grpc   grpc.ClientStream
	cancel context.CancelFunc
	names  names       // of the receiver
	worked atomic.Bool // a check was answered

	mu struct {
		sync.Mutex
		lanes   [2]lane
		queued  int      // checks that wait
		flying  []*frame // sent and unanswered
		lastID  uint64
		sending bool
		// heard is when the last answer came.
		heard time.Time
		// late fires when frames that are waited for may be late, if armed.
		late  *time.Timer
		armed bool
		// ended is why nothing is taken any more.
		ended error
	}
}

// submit takes c, which will be answered. known says that the node is taken for the owner. The error, if any,
// says that c was not taken.
func (s *stream) submit(c *call, known bool) error {
	l := &s.mu.lanes[elsewhere]
	if known {
		l = &s.mu.lanes[here]
	}
	s.mu.Lock()
	if s.mu.ended != nil {
		s.mu.Unlock()
		return errUnsent
	}
	if s.mu.queued >= maxQueued {
		s.mu.Unlock()
		return errBusy
	}
	n := len(l.waiting)
	if n == 0 || !l.waiting[n-1].has(c) {
		l.waiting = append(l.waiting, newFrame(l))
		n++
	}
	l.waiting[n-1].add(c)
	s.mu.queued++
	lead := s.leadLocked()
	if !lead && !s.mu.armed {
		s.armLocked()
	}
	s.mu.Unlock()
	if lead {
		// Who else is about to ask comes along. Alone, this takes no time.
		runtime.Gosched()
		s.send()
	}
	return nil
}

// readyLocked returns a lane of which a frame may leave now, or nil.
func (s *stream) readyLocked() *lane {
	if s.mu.ended != nil || len(s.mu.flying) >= maxFlyingLate {
		return nil
	}
	for i := range s.mu.lanes {
		if l := &s.mu.lanes[i]; len(l.waiting) > 0 && l.flying < maxFlying {
			return l
		}
	}
	return nil
}

// leadLocked makes the caller the one who sends, if there is something that may leave now.
func (s *stream) leadLocked() bool {
	if s.mu.sending || s.readyLocked() == nil {
		return false
	}
	s.mu.sending = true
	return true
}

// send sends frames while some may leave, and clears sending.
func (s *stream) send() {
	s.mu.Lock()
	for l := s.readyLocked(); l != nil; l = s.readyLocked() {
		f := l.waiting[0]
		l.waiting = append(l.waiting[:0], l.waiting[1:]...)
		s.mu.queued -= len(f.calls)
		s.launchLocked(f)
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

// launchLocked makes f ready to be sent.
func (s *stream) launchLocked(f *frame) {
	s.mu.lastID++
	f.id, f.sent = s.mu.lastID, time.Now()
	b := protowire.AppendTag(*f.out, requestID, protowire.VarintType)
	*f.out = protowire.AppendVarint(b, f.id)
	f.lane.flying++
	s.mu.flying = append(s.mu.flying, f)
}

// armLocked has those who wait looked after when what they wait for may be late.
func (s *stream) armLocked() {
	s.mu.armed = true
	if s.mu.late == nil {
		s.mu.late = time.AfterFunc(lateAfter, func() { s.node.client.spawn(s.relieve) })
		return
	}
	s.mu.late.Reset(lateAfter)
}

// relieve lets others go ahead of frames that are late.
func (s *stream) relieve() {
	s.mu.Lock()
	s.mu.armed = false
	now := time.Now()
	for _, f := range s.mu.flying {
		if !f.late && now.Sub(f.sent) >= lateAfter {
			f.late = true
			f.lane.flying--
		}
	}
	lead := s.leadLocked()
	if s.mu.queued > 0 && !lead && s.mu.ended == nil {
		s.armLocked()
	}
	s.mu.Unlock()
	if lead {
		s.send()
	}
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
	if f != nil && len(f.calls) > 0 && !s.worked.Load() {
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
			if !f.late {
				f.lane.flying--
			}
			s.mu.heard = time.Now()
			return f
		}
	}
	return nil
}

// end gives the stream up: what waits is unsent, and what is under way is ambiguous, unless the
// node has ended it in order: then it has answered everything that it decided.
func (s *stream) end(why error) {
	s.mu.Lock()
	if s.mu.ended != nil {
		s.mu.Unlock()
		return
	}
	s.mu.ended = why
	var waiting []*frame
	for i := range s.mu.lanes {
		waiting = append(waiting, s.mu.lanes[i].waiting...)
		s.mu.lanes[i].waiting = nil
	}
	flying := s.mu.flying
	s.mu.flying, s.mu.queued = nil, 0
	if s.mu.late != nil {
		s.mu.late.Stop()
	}
	s.mu.Unlock()
	s.cancel()
	s.node.lost(s)
	under := errAmbiguous
	if inOrder(why) {
		under = errUnsent
	}
	// The sender may have a frame that is flying in its hands, so frames are not pooled again.
	var since time.Time
	for _, f := range flying {
		if since.IsZero() {
			since = f.sent
		}
		for _, c := range f.calls {
			c.asked = f.sent
			c.answer(under)
		}
	}
	for _, f := range waiting {
		for _, c := range f.calls {
			c.asked = since // about: they waited for what was flying
			c.answer(errUnsent)
		}
	}
}

// hangs reports whether the node has said nothing for most of the time that a call has, which leaves the rest
// for another node, or has left one frame unanswered for all of it. Nodes wait half of that for an owner.
func (s *stream) hangs(now time.Time, timeout time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.flying) == 0 {
		return false
	}
	oldest := s.mu.flying[0].sent
	silence := now.Sub(oldest)
	if s.mu.heard.After(oldest) {
		silence = now.Sub(s.mu.heard)
	}
	return silence > timeout*5/8 || now.Sub(oldest) > timeout
}
