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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-project/sluice/limiter"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"github.com/sluice-project/sluice/transport/access"
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
	stream sluicev1.RateLimitService_SessionServer
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
	out                []*sluicev1.SlotResponse
	beat               *sluicev1.SessionResponse // the answer to the last heartbeat, nil if it is sent
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
	for {
		req, err := x.stream.Recv()
		if err != nil {
			return err
		}
		silent.Reset(maxSilence)
		var rejected *limiter.Error
		if pass, rejected = x.server.config.Guard.Again(pass, &x.identity); rejected != nil {
			return statusOf(rejected)
		}
		for _, h := range req.GetResume() {
			x.resume(&pass, h)
		}
		now := time.Now() // of all, so that they stay in order
		for _, r := range req.GetAcquire() {
			x.acquire(&pass, now, r)
		}
		for _, number := range req.GetRelease() {
			x.end(number)
		}
		if n := req.GetHeartbeat(); n > 0 {
			x.heard.Store(n)
			signal(x.beats)
		}
	}
}

// resume holds a slot of another session. One that may not be held is among those that are not renewed.
func (x *session) resume(pass *access.Pass, r *sluicev1.HeldSlot) {
	h := &heldSlot{granted: true}
	if pass.MayUse(x.server.config.Limiter.ReservationDomains, r.GetReservation()) == nil {
		h.slot, _ = x.server.config.Limiter.Slot(r.GetReservation())
	}
	if err := x.add(r.GetNumber(), h); err != nil {
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
func (x *session) acquire(pass *access.Pass, now time.Time, r *sluicev1.SlotRequest) {
	h, number, b := new(heldSlot), r.GetNumber(), limiter.NewBatch()
	b.API = limiter.GRPCAPI
	if err := x.add(number, h); err != nil {
		b.Release()
		x.answer(&sluicev1.SlotResponse{Number: number, Error: callError(err)})
		return
	}
	add := func(field string, p *sluicev1.Check) {
		c := b.Add()
		c.Domain, c.Descriptor = p.GetDomain(), appendEntries(c.Descriptor, p.GetDescriptor_())
		if p != nil && p.Cost != nil || p.GetVerb() != sluicev1.Verb_VERB_CHECK || len(p.GetLimits()) > 0 {
			c.Err = &limiter.Error{Code: limiter.Invalid, Field: field, Message: "want a domain and a descriptor alone"}
		}
	}
	add("check", r.GetCheck())
	for _, p := range r.GetAlso()[:min(len(r.GetAlso()), limiter.MaxBudgets)] {
		add("also", p)
	}
	if !x.server.config.Admit() {
		b.Checks[0].Err = limiter.ErrBusy
	}
	_ = pass.Restrict(b) // the check has the error
	ask := limiter.SlotRequest{Units: cmp.Or(r.GetUnits(), 1), Wait: r.GetWait(), Tenant: r.GetTenant(), Weight: r.GetWeight()}
	if waited := time.Duration(r.GetWaitedNs()); waited > 0 {
		ask.Arrival = now.Add(-waited)
	}
	w := x.server.config.Limiter.Acquire(b, ask, func(b *limiter.Batch, a limiter.SlotAnswer) { x.take(number, h, b, a) })
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
	res := &sluicev1.SlotResponse{
		Number: number, Reservation: a.ID, Fence: a.Fence, Moved: a.Moved, Owner: a.Owner, Waited: a.Waited,
	}
	switch {
	case a.Err != nil:
		res.Error = callError(a.Err)
	case !a.Moved:
		room := limiter.MaxResponses
		res.Decision = decisionToProto(&b.Results[a.Check], a.Check, &room)
	}
	b.Release()
	x.mu.Lock()
	over := h.released
	if h.slot, h.granted = a.Slot, a.ID != ""; !over && !h.granted {
		delete(x.held, number)
	}
	// Heartbeats up to this one have perhaps not renewed it, and were sent before now.
	res.Heartbeat = x.heard.Load()
	if h.granted {
		res.ExpiresAfterNs = int64(time.Until(a.Until))
	}
	if over && h.granted && x.ctx.Err() == nil {
		x.releaseLocked(a.Slot)
	}
	x.mu.Unlock()
	if !over {
		x.answer(res)
	}
}

// answer queues a response.
func (x *session) answer(r *sluicev1.SlotResponse) {
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
		res := &sluicev1.SessionResponse{Heartbeat: x.heard.Load(), ExpiresAfterNs: int64(limiter.SlotTTL)}
		for number, h := range x.held {
			switch {
			case h.granted && h.slot == limiter.Slot{}:
				res.NotRenewed = append(res.NotRenewed, number)
			case h.granted:
				numbers, slots = append(numbers, number), append(slots, h.slot)
			}
		}
		x.mu.Unlock()
		for i, ok := range x.server.config.Limiter.RenewSlots(x.ctx, slots) {
			if !ok {
				res.NotRenewed = append(res.NotRenewed, numbers[i])
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
				res = new(sluicev1.SessionResponse)
			}
			n := min(len(x.out), slotsPerMessage)
			res.Slots, x.out = x.out[:n:n], x.out[n:]
			x.mu.Unlock()
			if n == 0 && res.Heartbeat == 0 {
				break
			}
			unread.Reset(x.server.config.Unread)
			if err := x.stream.Send(res); err != nil {
				unread.Stop()
				return err
			}
			unread.Stop()
		}
	}
}
