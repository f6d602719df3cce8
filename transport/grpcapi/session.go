package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/access"
)

const (
	// maxSlots is the most slots of a session, with the requests that wait and the responses that are not sent.
	maxSlots = 1 << 14
	// maxSilence is how long a session lasts without a message: less than its slots, which its own requests must not get then.
	maxSilence = 1500 * time.Millisecond
	// slotsPerMessage is the most slots of one SessionResponse.
	slotsPerMessage = 256
)

var (
	errSilent    = status.Error(codes.DeadlineExceeded, "nothing came on this session for 1.5 s; send heartbeats")
	errManySlots = &limiter.Error{Code: limiter.Overloaded, Message: "this session has 16,384 slots and requests; open another"}
)

// session is one Session. A goroutine reads, one sends, and one renews slots.
type session struct {
	server *Server
	stream grpc.ServerStream
	ctx    context.Context
	cancel context.CancelCauseFunc
	// identity is checked again for each message: a token may be revoked meanwhile.
	identity access.Identity
	// heard is the last heartbeat; beats has a token if it is to be answered, wake if there is something to send, ended if slots are to be
	// released.
	heard              atomic.Uint64
	beats, wake, ended chan struct{}
	mu                 sync.Mutex
	held               map[uint64]*heldSlot
	out, spare         []slotResponse   // spare is the memory for the next out
	beat               *sessionResponse // the answer to the last heartbeat, nil if it is sent
	toRelease          []limiter.Slot
}

// heldSlot is a slot or, before its answer, a request.
type heldSlot struct {
	waiter   *limiter.Waiter
	slot     limiter.Slot
	granted  bool
	released bool
}

// Session implements sluicev1.RateLimitServiceServer. When it ends, requests are canceled, and slots end at their deadline.
func (s *Server) Session(stream sluicev1.RateLimitService_SessionServer) error {
	x := &session{
		server: s, stream: stream, identity: access.OfContext(stream.Context()), beats: make(chan struct{}, 1),
		wake: make(chan struct{}, 1), ended: make(chan struct{}, 1), held: map[uint64]*heldSlot{},
	}
	x.ctx, x.cancel = context.WithCancelCause(stream.Context())
	defer x.cancel(nil)
	pass, rejected := s.config.Guard.Enter(limiter.GRPCAPI, &x.identity)
	if rejected != nil {
		return statusOf(rejected)
	}
	for _, f := range []func() error{func() error { return x.read(pass) }, x.send, x.renew, x.release} {
		if !s.read(func() {
			if err := f(); err != nil {
				x.cancel(err)
			}
		}) {
			return errLeaving
		}
	}
	<-x.ctx.Done()
	x.mu.Lock()
	var waiters []*limiter.Waiter
	for _, h := range x.held {
		if h.released = true; h.waiter != nil {
			waiters = append(waiters, h.waiter)
		}
	}
	x.held = map[uint64]*heldSlot{}
	x.mu.Unlock()
	for _, w := range waiters {
		w.Cancel()
	}
	if err := context.Cause(x.ctx); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// read takes the messages of the caller of pass.
func (x *session) read(pass access.Pass) error {
	silent := time.AfterFunc(maxSilence, func() { x.cancel(errSilent) })
	defer silent.Stop()
	var req sessionRequest
	for {
		if err := x.stream.RecvMsg(&req); err != nil {
			return err
		}
		if req.fault != nil {
			req.drop()
			return statusOf(req.fault)
		}
		silent.Reset(maxSilence)
		var rejected *limiter.Error
		if pass, rejected = x.server.config.Guard.Again(pass, &x.identity); rejected != nil {
			req.drop()
			return statusOf(rejected)
		}
		for _, h := range req.resume {
			x.resume(&pass, h)
		}
		now := time.Now() // of all, so that they stay in order
		for i := range req.acquire {
			x.acquire(&pass, now, &req.acquire[i])
		}
		for _, number := range req.release {
			x.end(number)
		}
		if req.heartbeat > 0 {
			x.heard.Store(req.heartbeat)
			signal(x.beats)
		}
	}
}

// resume holds a slot of another session. One that may not be held is among those that are not renewed.
func (x *session) resume(pass *access.Pass, r heldRequest) {
	h := &heldSlot{granted: true}
	if pass.MayUse(x.server.config.Limiter.ReservationDomains, r.reservation) == nil {
		h.slot, _ = x.server.config.Limiter.Slot(r.reservation)
	}
	if err := x.add(r.number, h); err != nil {
		x.cancel(statusOf(err))
	}
}

// add adds h as the number, and returns why it cannot.
func (x *session) add(number uint64, h *heldSlot) *limiter.Error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case number == 0 || x.held[number] != nil:
		return &limiter.Error{Code: limiter.Invalid, Field: "number", Message: "0, or in use; want one of its own"}
	case len(x.held)+len(x.out) >= maxSlots:
		return errManySlots
	}
	x.held[number] = h
	return nil
}

// acquire asks for a slot.
func (x *session) acquire(pass *access.Pass, now time.Time, r *slotRequest) {
	h, number, b := new(heldSlot), r.number, r.batch
	b.API = limiter.GRPCAPI
	if err := x.add(number, h); err != nil {
		b.Release()
		x.answer(slotResponse{number: number, SlotAnswer: limiter.SlotAnswer{Err: err}})
		return
	}
	if !x.server.config.Admit() {
		b.Checks[0].Err = limiter.ErrBusy
	}
	_ = pass.Restrict(b) // the check has the error
	r.Units = cmp.Or(r.Units, 1)
	if r.waited > 0 {
		r.Arrival = now.Add(-r.waited)
	}
	w := x.server.config.Limiter.Acquire(b, r.SlotRequest, func(b *limiter.Batch, a limiter.SlotAnswer) { x.take(number, h, b, a) })
	if w == nil {
		return
	}
	x.mu.Lock()
	h.waiter = w
	canceled := h.released
	x.mu.Unlock()
	if canceled {
		w.Cancel()
	}
}

// take answers the request h with that number.
func (x *session) take(number uint64, h *heldSlot, b *limiter.Batch, a limiter.SlotAnswer) {
	res := slotResponse{SlotAnswer: a, number: number}
	if a.Err == nil && !a.Moved {
		res.batch = b
	} else {
		b.Release()
	}
	x.mu.Lock()
	over := h.released
	if h.slot, h.granted = a.Slot, a.ID != ""; !over && !h.granted {
		delete(x.held, number)
	}
	// Heartbeats up to this one have perhaps not renewed it, and were sent before now.
	res.heartbeat = x.heard.Load()
	if h.granted {
		res.expires = time.Until(a.Until)
	}
	if over && h.granted && x.ctx.Err() == nil {
		x.releaseLocked(a.Slot)
	}
	x.mu.Unlock()
	if over {
		res.drop()
		return
	}
	x.answer(res)
}

// answer queues a response.
func (x *session) answer(r slotResponse) {
	x.mu.Lock()
	x.out = append(x.out, r)
	many := len(x.out) > maxSlots
	x.mu.Unlock()
	if many {
		x.cancel(errUnread)
	}
	signal(x.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// end ends the slot or the request with that number.
func (x *session) end(number uint64) {
	x.mu.Lock()
	h := x.held[number]
	if h == nil {
		x.mu.Unlock()
		return
	}
	delete(x.held, number)
	h.released = true
	if h.granted && h.slot != (limiter.Slot{}) {
		x.releaseLocked(h.slot)
	}
	w := h.waiter
	x.mu.Unlock()
	if w != nil {
		w.Cancel()
	}
}

func (x *session) releaseLocked(s limiter.Slot) {
	x.toRelease = append(x.toRelease, s)
	signal(x.ended)
}

// release ends slots as they are queued, also those that were when the session has ended.
func (x *session) release() error {
	for over := false; !over; {
		select {
		case <-x.ended:
		case <-x.ctx.Done():
			over = true
		}
		runtime.Gosched() // slots that end with it share the call
		x.mu.Lock()
		list := x.toRelease
		x.toRelease = nil
		x.mu.Unlock()
		x.server.config.Limiter.ReleaseSlots(x.ctx, list)
	}
	return nil
}

// renew answers heartbeats.
func (x *session) renew() error {
	for {
		select {
		case <-x.beats:
		case <-x.ctx.Done():
			return nil
		}
		x.mu.Lock()
		var numbers []uint64
		var slots []limiter.Slot
		res := &sessionResponse{heartbeat: x.heard.Load()}
		for number, h := range x.held {
			switch {
			case h.granted && h.slot == limiter.Slot{}:
				res.notRenewed = append(res.notRenewed, number)
			case h.granted:
				numbers, slots = append(numbers, number), append(slots, h.slot)
			}
		}
		x.mu.Unlock()
		for i, ok := range x.server.config.Limiter.RenewSlots(x.ctx, slots) {
			if !ok {
				res.notRenewed = append(res.notRenewed, numbers[i])
			}
		}
		x.mu.Lock()
		x.beat = res
		x.mu.Unlock()
		signal(x.wake)
	}
}

// send sends what is queued. A client that does not read for Config.Unread ends the session.
func (x *session) send() error {
	unread := time.AfterFunc(x.server.config.Unread, func() { x.cancel(errUnread) })
	unread.Stop()
	for {
		select {
		case <-x.wake:
		case <-x.ctx.Done():
			return nil
		}
		for {
			runtime.Gosched() // slots that are being given share the message
			x.mu.Lock()
			res := x.beat
			if x.beat = nil; res == nil {
				res = new(sessionResponse)
			}
			n := min(len(x.out), slotsPerMessage)
			if res.slots = x.out[:n]; n == len(x.out) { // what was in spare is sent
				x.out, x.spare = x.spare[:0], x.out
			} else {
				x.out = x.out[n:]
			}
			x.mu.Unlock()
			if n == 0 && res.heartbeat == 0 {
				break
			}
			unread.Reset(x.server.config.Unread)
			if err := x.stream.SendMsg(res); err != nil {
				unread.Stop()
				return err
			}
			unread.Stop()
		}
	}
}
