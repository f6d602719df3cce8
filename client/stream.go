package sluice

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

const (
	// maxInFlight is how many frames of a lane may be in flight before checks wait. Frames that are in flight for lateAfter do
	// not count, up to maxInFlightLate in all: they wait for something at the node, and others need not.
	maxInFlight     = 3
	lateAfter       = 20 * time.Millisecond
	maxInFlightLate = 32
	// maxFrameBytes and maxFrameChecks bound a frame. Two of them fit into gRPC's send buffer, so sending never blocks.
	maxFrameBytes  = 16 << 10
	maxFrameChecks = 512
	// maxQueued is how many checks may wait to be sent.
	maxQueued = 16 << 10
)

// call is one check in flight, and its decision. Its caller may stop waiting for done, and leave the call to the stream.
type call struct {
	body    []byte // a sluice.v1.Check
	key     counterKey
	answer  answer
	asked   time.Time     // when its frame was sent, if it was
	wait    time.Duration // how long its caller waits, 0 for the time of any call
	lease   *sluicev1.Lease
	failure *sluicev1.Error
	err     error
	done    chan struct{}
}

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

// callPool has calls of one Client. A pool of all Clients would hand the channels of one
// testing/synctest bubble to another.
type callPool struct{ calls sync.Pool }

func (p *callPool) get() *call {
	if c, _ := p.calls.Get().(*call); c != nil {
		return c
	}
	return newCall()
}

// put takes a call that was never submitted, or is answered.
func (p *callPool) put(c *call) {
	c.answer, c.asked, c.wait, c.lease, c.failure, c.err = answer{}, time.Time{}, 0, nil, nil, nil
	p.calls.Put(c)
}

// outcome returns the error of a call that is done.
func (c *call) outcome() error {
	if c.err != nil {
		return c.err
	}
	return errorOf(c.failure)
}

// complete ends the call. It never blocks.
func (c *call) complete(err error) {
	c.err = err
	c.done <- struct{}{}
}

// frame is a CheckRequest: its bytes, until they are sent, and its calls.
type frame struct {
	lane  *lane
	id    uint64
	out   *[]byte
	calls []*call
	sent  time.Time
	late  bool // it does not count in its lane any more
	whole bool // no check may be added
	left  bool // its callers have given up; the answer is thrown away
	// until is when the first of its callers gives up, zero if none has a deadline of its own. Those of one frame wait for
	// about the same time: for hurry bits, as a number of milliseconds.
	until time.Time
	hurry int
}

var frames = sync.Pool{New: func() any { return new(frame) }}

func newFrame(l *lane) *frame {
	f := frames.Get().(*frame)
	f.lane = l
	f.out = mem.DefaultBufferPool().Get(maxFrameBytes)
	*f.out = (*f.out)[:0]
	return f
}

// release returns f to the pool. Its calls must be answered.
func (f *frame) release() {
	clear(f.calls)
	*f = frame{calls: f.calls[:0]}
	frames.Put(f)
}

func (f *frame) add(c *call) {
	b := protowire.AppendTag(*f.out, requestChecks, protowire.BytesType)
	*f.out = protowire.AppendBytes(b, c.body)
	f.calls = append(f.calls, c)
	if c.wait > 0 {
		f.hurry = c.bits()
		if until := time.Now().Add(c.wait); f.until.IsZero() || until.Before(f.until) {
			f.until = until
		}
	}
}

// bits is the length of c's wait in milliseconds as a binary number, 0 if it has none of its own.
func (c *call) bits() int {
	if c.wait == 0 {
		return 0
	}
	return 1 + bits.Len64(uint64(c.wait/time.Millisecond))
}

// has reports whether there is room for c.
func (f *frame) has(c *call) bool {
	return !f.whole && (len(f.calls) == 0 || f.hurry == c.bits()) && len(f.calls) < maxFrameChecks && (len(f.calls) == 0 || len(*f.out)+len(c.body) <= maxFrameBytes-24) // id and timeout_ns
}

// lane is a queue of frames on a stream, which does not wait for the responses of other lanes.
type lane struct {
	waiting  []*frame // the oldest first
	inFlight int      // frames in flight that are not late
}

// The lanes: checks that the node owns, as far as is known, are decided at once. Others, which it may have to forward or
// hold until there is an owner, do not delay them.
const (
	here = iota
	elsewhere
)

// stream is a CheckStream to one node. The goroutine that sets sending owns the sending half until it clears it; the
// goroutine in receive owns the receiving half.
type stream struct {
	node   *node
	grpc   grpc.ClientStream
	cancel context.CancelFunc
	worked atomic.Bool // a check was answered

	// Of receive.
	names     names
	decisions [][]byte // used again by each response

	mu struct {
		sync.Mutex
		lanes    [2]lane
		queued   int      // checks that wait
		inFlight []*frame // in flight
		lastID   uint64
		sending  bool
		heard    time.Time   // when the last response came
		probed   time.Time   // when an empty request was sent that is not answered; zero for none
		late     *time.Timer // fires when frames in flight may be late, if armed
		armed    bool
		ended    error // the end of the stream
	}
}

// submit queues c, which will be answered unless there is an error. known says that the node is the owner, as far as is
// known.
func (s *stream) submit(c *call, known bool) error {
	l := s.lane(known)
	s.mu.Lock()
	if err := s.fullLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	n := len(l.waiting)
	if n == 0 || !l.waiting[n-1].has(c) {
		l.waiting = append(l.waiting, newFrame(l))
		n++
	}
	l.waiting[n-1].add(c)
	s.startUnlock(1)
	return nil
}

// submitOwn queues r as a frame of its own. A large one keeps others waiting while it is sent.
func (s *stream) submitOwn(r *request) error {
	f := newFrame(s.lane(r.known))
	f.whole = true
	for _, c := range r.calls {
		f.add(c)
	}
	*f.out = append(*f.out, r.fields...)
	s.mu.Lock()
	if err := s.fullLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	f.lane.waiting = append(f.lane.waiting, f)
	s.startUnlock(len(r.calls))
	return nil
}

func (s *stream) lane(known bool) *lane {
	if known {
		return &s.mu.lanes[here]
	}
	return &s.mu.lanes[elsewhere]
}

// fullLocked returns why nothing can be queued, or nil.
func (s *stream) fullLocked() error {
	switch {
	case s.mu.ended != nil:
		return errUnsent
	case s.mu.queued >= maxQueued:
		return errBusy
	}
	return nil
}

// startUnlock counts checks that were queued, unlocks s, and sends what may be sent now.
func (s *stream) startUnlock(checks int) {
	s.mu.queued += checks
	lead := s.leadLocked()
	if !lead && !s.mu.armed {
		s.armLocked()
	}
	s.mu.Unlock()
	if lead {
		// Other goroutines may add their checks. Without any, this takes no time.
		runtime.Gosched()
		s.send()
	}
}

// readyLocked returns a lane with a frame that may be sent now, or nil.
func (s *stream) readyLocked() *lane {
	if s.mu.ended != nil || len(s.mu.inFlight) >= maxInFlightLate {
		return nil
	}
	for i := range s.mu.lanes {
		if l := &s.mu.lanes[i]; len(l.waiting) > 0 && l.inFlight < maxInFlight {
			return l
		}
	}
	return nil
}

// leadLocked makes the caller the sender, and returns true, if there is none and a frame may be sent now.
func (s *stream) leadLocked() bool {
	if s.mu.sending || s.readyLocked() == nil {
		return false
	}
	s.mu.sending = true
	return true
}

// send sends frames while it may, and clears sending.
func (s *stream) send() {
	s.mu.Lock()
	for l := s.readyLocked(); l != nil; l = s.readyLocked() {
		f := l.waiting[0]
		l.waiting = append(l.waiting[:0], l.waiting[1:]...)
		s.mu.queued -= len(f.calls)
		s.launchLocked(f)
		s.mu.Unlock()
		s.transmit(f)
		s.mu.Lock()
	}
	s.mu.sending = false
	s.mu.Unlock()
}

// transmit sends a frame that was launched. Its caller owns the sending half.
func (s *stream) transmit(f *frame) {
	s.node.client.stats.frames.Add(1)
	// An error says that the stream has ended; receive gets the cause and answers the calls.
	if err := s.grpc.SendMsg(f); err != nil {
		s.cancel()
	}
}

// launchLocked makes f ready to be sent.
func (s *stream) launchLocked(f *frame) {
	s.mu.lastID++
	f.id, f.sent = s.mu.lastID, time.Now()
	b := protowire.AppendTag(*f.out, requestID, protowire.VarintType)
	// The node gives up before the client, and decides by the rule's on_failure. Without WithTimeout and deadlines its --check-timeout
	// does that.
	most := s.node.client.opts.Timeout
	most -= most / 8
	if !f.until.IsZero() {
		if left := max(1, f.until.Sub(f.sent)); most == 0 || left < most {
			most = left
		}
	}
	*f.out = appendNumber(protowire.AppendVarint(b, f.id), requestTimeout, int64(most))
	f.lane.inFlight++
	s.mu.inFlight = append(s.mu.inFlight, f)
}

// armLocked schedules relieve for when frames in flight may be late.
func (s *stream) armLocked() {
	s.mu.armed = true
	if s.mu.late == nil {
		s.mu.late = time.AfterFunc(lateAfter, func() { s.node.client.spawn(s.relieve) })
		return
	}
	s.mu.late.Reset(lateAfter)
}

// relieve marks late frames, and sends frames that waited for them.
func (s *stream) relieve() {
	s.mu.Lock()
	s.mu.armed = false
	now := time.Now()
	for _, f := range s.mu.inFlight {
		if !f.late && now.Sub(f.sent) >= lateAfter {
			f.late = true
			f.lane.inFlight--
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

// receive reads responses until the stream ends, and ends its calls then.
func (s *stream) receive() {
	for {
		if err := s.grpc.RecvMsg(s); err != nil {
			s.end(err)
			return
		}
		// Answered callers may add their next checks to the next frame.
		runtime.Gosched()
		s.mu.Lock()
		lead := s.leadLocked()
		s.mu.Unlock()
		if lead {
			s.send()
		}
	}
}

// take reads one response.
func (s *stream) take(b []byte) error {
	r, err := readResponse(b, s.decisions[:0])
	if err != nil {
		return err
	}
	s.decisions = r.decisions
	f := s.answered(r.id)
	if f == nil {
		return fmt.Errorf("%w: to frame %d, which was not asked or is answered", errMalformed, r.id)
	}
	defer f.release()
	if len(f.calls) > 0 && !s.worked.Load() {
		s.worked.Store(true)
	}
	if r.failure == nil && len(r.decisions) != len(f.calls) && !f.left {
		err = fmt.Errorf("%w: %d decisions on %d checks", errMalformed, len(r.decisions), len(f.calls))
	}
	for i, c := range f.calls {
		c.lease = r.lease
		if r.failure != nil {
			c.failure = r.failure
		} else if err == nil {
			c.failure, err = readDecision(r.decisions[i], &c.answer, &s.names)
			c.asked = f.sent
		}
		if err != nil {
			c.complete(errAmbiguous)
		} else {
			c.complete(nil)
		}
	}
	return err
}

// answered removes the frame of that id from those in flight.
func (s *stream) answered(id uint64) *frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.mu.inFlight {
		if f.id == id {
			s.mu.inFlight = append(s.mu.inFlight[:i], s.mu.inFlight[i+1:]...)
			if !f.late {
				f.lane.inFlight--
			}
			s.mu.heard = time.Now()
			s.node.avoided.Store(0)
			return f
		}
	}
	return nil
}

// end ends the stream: waiting calls are unsent, and calls in flight are ambiguous, unless the node has ended the stream
// in order: then it has answered all that it decided.
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
	inFlight := s.mu.inFlight
	s.mu.inFlight, s.mu.queued = nil, 0
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
	// The sender may still use a frame in flight, so frames do not return to the pool.
	var since time.Time
	for _, f := range inFlight {
		if since.IsZero() {
			since = f.sent
		}
		for _, c := range f.calls {
			c.asked = f.sent
			c.complete(under)
		}
	}
	for _, f := range waiting {
		for _, c := range f.calls {
			c.asked = since // about: they waited for frames in flight
			c.complete(errUnsent)
		}
	}
}

// check ends s if its node hangs: it has not even answered an empty request for a part of patience, or one frame for twice as
// long as patience. Callers of frames that are older than patience are told that they were not answered.
func (s *stream) check(now time.Time, patience time.Duration) {
	s.mu.Lock()
	if len(s.mu.inFlight) == 0 || s.mu.ended != nil {
		s.mu.probed = time.Time{}
		s.mu.Unlock()
		return
	}
	oldest := s.mu.inFlight[0].sent
	silent := now.Sub(oldest)
	if s.mu.heard.After(oldest) {
		silent = now.Sub(s.mu.heard)
	}
	if !s.mu.heard.Before(s.mu.probed) { // equal, if the answer takes less than a step of the clock
		s.mu.probed = time.Time{}
	}
	hangs := !s.mu.probed.IsZero() && now.Sub(s.mu.probed) > patience*5/16 || now.Sub(oldest) > 2*patience
	var overdue []*call
	for _, f := range s.mu.inFlight {
		if now.Sub(f.sent) > patience && !f.left {
			for _, c := range f.calls {
				c.asked = f.sent
			}
			overdue, f.calls, f.left = append(overdue, f.calls...), nil, true
		}
	}
	probe := !hangs && silent > patience*5/16 && s.mu.probed.IsZero()
	if probe {
		s.mu.probed = now
		f := newFrame(s.lane(false))
		f.whole = true
		if probe = !s.mu.sending; probe {
			s.mu.sending = true
			s.launchLocked(f)
		} else { // who sends sends it next, unless the node takes nothing any more
			f.lane.waiting = slices.Insert(f.lane.waiting, 0, f)
		}
	}
	f := s.mu.inFlight[len(s.mu.inFlight)-1]
	s.mu.Unlock()
	for _, c := range overdue {
		c.complete(errGaveUp)
	}
	if probe && !s.node.client.spawn(func() { s.transmit(f); s.send() }) || hangs {
		s.end(context.DeadlineExceeded)
	}
}
