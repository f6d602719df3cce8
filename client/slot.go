package sluice

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// AcquireRequest asks for a slot of a limit with algorithm: concurrency.
type AcquireRequest struct {
	// Key is the counter. Its FailurePolicy and name from Once do not count.
	Key Key
	// With are up to 15 further keys. Units of all are had at once, or of none: units of other limits with algorithm: concurrency are in use
	// with the slot, and those of all other limits are spent. While one of them denies, others pass the request.
	With []Key
	// Units in use at a time, 1 or more; 0 for 1.
	Units int64
	// MaxWait is how long to wait for the units at most, in order of arrival. 0 waits until the context ends; below 0 denies at once.
	MaxWait time.Duration
	// Requests of one Tenant wait in order of arrival, and tenants share the units by Weight: 1 to 1,000,000, 0 for 1. A Tenant has at
	// most 128 bytes.
	Tenant string
	Weight int64
}

// Slot is units that are in use until Release. The client renews it, until no node has done so in time. It is safe for concurrent use. A Slot that
// came with an error, a nil *Slot and a zero Slot hold nothing: the Context has ended, and Release does nothing.
type Slot struct {
	// Decision is how the limits of Key are. Its Source is SourceUnmatched if nothing limits Key, so that no slot was needed; then ID is empty.
	Decision
	// Fence rises with each slot of a key, as long as the clocks of nodes differ by less than it takes to pass a slot on: what is
	// changed under the slot can reject lower ones. 0 if no slot is held.
	Fence uint64
	// ID names it at any node, as a reservation.
	ID string

	client *Client
	key    counterKey
	ctx    context.Context

	// Guarded by Client.slots. cancel is nil until Context is called, cause until the slot ends.
	cancel  context.CancelCauseFunc
	cause   error
	session *session
	number  uint64
	from    uint64 // heartbeats of the session up to this one do not renew it
	end     *time.Timer
}

// ErrSlotLost is the cause of the end of a slot's context when no node has renewed it in time.
var ErrSlotLost = errors.New("sluice: no node has renewed the slot in time")

const (
	// beatEvery is the time between heartbeats. A session in which two of them are not answered is given up.
	beatEvery = 400 * time.Millisecond
	// slotMargin is the part of its time that a slot is not used, for clocks and schedulers.
	slotMargin = 8
	// askAgain is the first pause before another attempt, doubling up to askLate.
	askAgain, askLate = 20 * time.Millisecond, 160 * time.Millisecond
)

// sessions are those of a Client, by node.
type sessions struct {
	sync.Mutex
	byNode map[*node]*session
}

// session is a Session with one node: a goroutine sends, and one receives. Client.slots guards the fields after wake.
type session struct {
	node   *node
	cancel context.CancelFunc
	wake   chan struct{} // has a token if out is to be sent

	out      sessionRequest
	last     uint64 // number of a slot
	asked    map[uint64]*asked
	held     map[uint64]*Slot
	beat     uint64 // the last heartbeat
	answered uint64
	sent     [16]time.Time // when the last heartbeats were sent
	ended    bool
	names    names // of the goroutine that receives
}

// asked is a request for a slot.
type asked struct {
	ctx    context.Context
	key    counterKey
	body   []byte    // of AcquireRequest.encode
	began  time.Time // when it began to wait in the queue of another node, if it did
	sent   time.Time
	answer chan slotAnswer // gets one, unless the request is removed before
}

// slotAnswer is an answer, or the end of a session.
type slotAnswer struct {
	slot          *Slot
	moved, waited bool
	owner         string
	onFailure     onFailure
	err           error
}

// nothingHeld is the context of a Slot that Acquire has not returned.
var nothingHeld = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNothing)
	return ctx
}()

// Acquire waits for a slot, and holds it unless it returns an error: a *DeniedError when the limits deny or MaxWait is over, ErrUnavailable when no
// node that owns the key has answered in time, or that of ctx. No FailurePolicy decides it. The error is also the cause of the end of the Slot's
// Context, so that work which ignores the error does not run. Nodes must be reachable one by one, as with routing.
func (c *Client) Acquire(ctx context.Context, r AcquireRequest) (*Slot, error) {
	x, err := c.acquire(ctx, r)
	if err == nil && x.Allowed {
		return x, nil
	}
	var d Decision
	if err == nil {
		d = x.Decision
		err = &DeniedError{Batch: limit.NewBatch([]Decision{d})}
	}
	return &Slot{Decision: d, client: c, ctx: ctx, cause: err}, err
}

// acquire returns a Slot that is not allowed where Acquire returns a *DeniedError.
func (c *Client) acquire(ctx context.Context, r AcquireRequest) (*Slot, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	body, key, err := r.encode()
	if err != nil {
		return nil, err
	}
	most := r.MaxWait
	if most < 0 {
		most = time.Duration(c.patience.Load())
	}
	wait := ctx
	if most > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	began, queued := time.Now(), false
	var avoid *node
	for pauses := askAgain; wait.Err() == nil; pauses = min(2*pauses, askLate) {
		var a slotAnswer
		s, _, err := c.find(wait, key, avoid)
		if err == nil {
			q := &asked{ctx: ctx, key: key, body: body, answer: make(chan slotAnswer, 1)}
			if queued {
				q.began = began
			}
			a = c.ask(wait, s.node, q)
			if err = a.err; a == (slotAnswer{}) { // the time is up
				queued = true
				break
			}
		}
		final, ok := errors.AsType[*Error](err)
		switch {
		case ok:
			return nil, final
		case err == nil && !a.moved:
			q := r.Key.Spend(1)
			c.noteSource(&q, &a.slot.Decision)
			c.rules.learn(&q, &a.slot.Decision, a.onFailure)
			return a.slot, nil
		case errors.Is(err, ErrClosed):
			return nil, err
		case err == nil && c.opts.NoRouting:
			return nil, &Error{Code: limit.CodeUnsupported, Message: "slots need a client that routes to the owner of the key; leave out NoRouting"}
		case err == nil:
			queued, avoid = queued || a.waited, nil
			if c.routeTo(key, a.owner) {
				continue
			}
		case s != nil:
			queued, avoid = queued || !errors.Is(err, errBusy), s.node
		}
		pause.For(wait, c.jitter(pauses))
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case queued && r.MaxWait > 0:
		return &Slot{Decision: Decision{Verdict: limit.VerdictDenied, Source: limit.SourceOwned}, ctx: ctx}, nil
	}
	return nil, c.unavailable(nil)
}

// InFlight implements limit.Slots. As with a check, the FailurePolicy decides when no node has answered in time.
func (c *Client) InFlight(ctx context.Context, q Check, most time.Duration) (d Decision, held context.Context, release func(), err error) {
	var descriptor []string
	for _, e := range q.Descriptor {
		descriptor = append(descriptor, e.Key, e.Value)
	}
	if most <= 0 {
		most = -1
	}
	x, err := c.Acquire(ctx, AcquireRequest{Key: c.Key(q.Domain, descriptor...), Units: q.Amount, MaxWait: most})
	switch {
	case errors.Is(err, ErrDenied):
		err = nil
	case errors.Is(err, ErrUnavailable) && ctx.Err() == nil:
		d, err = c.standIn(ctx, &q, counterKey{}, true, err), nil
		if d.Allowed {
			return d, ctx, func() {}, nil
		}
		x.Decision = d
	}
	return x.Decision, x.Context(), x.Release, err
}

// routeTo makes owner that of key, and reports whether there is a stream to it.
func (c *Client) routeTo(key counterKey, name string) bool {
	n := c.fleet.Load().byName[name]
	if n == nil {
		c.refreshSoon()
		return false
	}
	if o, _ := c.owners.Peek(key); o.name != name {
		o.name = name
		c.owners.Add(key, o)
	}
	n.connect()
	return n.current.Load() != nil
}

// ask asks n for a slot. The answer is zero when wait has ended before.
func (c *Client) ask(wait context.Context, n *node, q *asked) slotAnswer {
	c.slots.Lock()
	s := c.sessionLocked(n)
	if s == nil {
		c.slots.Unlock()
		return slotAnswer{err: ErrClosed}
	}
	s.last++
	number := s.last
	s.out.acquire = append(s.out.acquire, number)
	s.asked[number] = q
	s.wakeUnlock()
	select {
	case a := <-q.answer:
		return a
	case <-wait.Done():
	}
	c.slots.Lock()
	waiting := s.asked[number] == q
	if waiting {
		delete(s.asked, number)
		s.out.release = append(s.out.release, number)
	}
	s.wakeUnlock()
	if !waiting {
		return <-q.answer
	}
	return slotAnswer{}
}

// sessionLocked returns the session with n, nil for a Client that is closed.
func (c *Client) sessionLocked(n *node) *session {
	if s := c.slots.byNode[n]; s != nil {
		return s
	}
	ctx, cancel := context.WithCancel(c.ctx)
	s := &session{
		node: n, cancel: cancel, wake: make(chan struct{}, 1), asked: map[uint64]*asked{},
		held: map[uint64]*Slot{},
	}
	if !c.spawn(func() { s.end(s.run(ctx)) }) {
		cancel()
		return nil
	}
	if c.slots.byNode == nil {
		c.slots.byNode = map[*node]*session{}
	}
	c.slots.byNode[n] = s
	return s
}

// wakeUnlock lets s send, and unlocks the sessions.
func (s *session) wakeUnlock() {
	s.node.client.slots.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run opens the stream, and receives until it ends.
func (s *session) run(ctx context.Context) error {
	stream, err := sluicev1.NewRateLimitServiceClient(s.node.conn).Session(ctx, grpc.ForceCodecV2(newCodec()))
	if err != nil {
		return err
	}
	if !s.node.client.spawn(func() { s.send(stream) }) {
		return ErrClosed
	}
	for {
		if err := stream.RecvMsg(s); err != nil { // see codec
			return err
		}
	}
}

// send sends requests and heartbeats until the stream ends.
func (s *session) send(stream sluicev1.RateLimitService_SessionClient) {
	defer s.cancel()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	mu := &s.node.client.slots
	for {
		beat := false
		select {
		case <-s.wake:
		case <-tick.C:
			beat = true
		case <-stream.Context().Done():
			return
		}
		runtime.Gosched() // callers that are ready share the message
		mu.Lock()
		now, heartbeat := time.Now(), uint64(0)
		if beat {
			if s.beat > s.answered+1 {
				mu.Unlock()
				return
			}
			s.beat++
			s.sent[s.beat%uint64(len(s.sent))] = now
			heartbeat = s.beat
		}
		m := s.out.encode(now, heartbeat, s.asked)
		mu.Unlock()
		if stream.SendMsg(m) != nil {
			return
		}
	}
}

// sentLocked returns when heartbeat n was sent, and whether that is known.
func (s *session) sentLocked(n uint64) (at time.Time, ok bool) {
	ok = n > 0 && n <= s.beat && s.beat-n < uint64(len(s.sent))
	return s.sent[n%uint64(len(s.sent))], ok
}

// take takes a SessionResponse of the node.
func (s *session) take(b []byte) error {
	mu := &s.node.client.slots
	mu.Lock()
	defer mu.Unlock()
	var m heartbeatAnswer
	err := readFields(b, func(num protowire.Number, v uint64, b []byte) error {
		if num == sessionSlots {
			return s.takeSlotLocked(b)
		}
		return m.field(num, v, b)
	})
	if sent, ok := s.sentLocked(m.heartbeat); ok && err == nil {
		s.answered = max(s.answered, m.heartbeat)
		for number, slot := range s.held {
			if !m.lost[number] && m.heartbeat > slot.from {
				slot.end.Reset(leftOf(sent, m.expires))
			}
		}
	}
	return err
}

// takeSlotLocked takes a SlotResponse.
func (s *session) takeSlotLocked(b []byte) error {
	m := slotResponse{names: &s.names}
	if err := readFields(b, m.field); err != nil {
		return err
	}
	q := s.asked[m.number]
	if q == nil {
		return nil // it was released
	}
	delete(s.asked, m.number)
	a := slotAnswer{moved: m.moved, waited: m.waited, owner: m.owner, onFailure: m.decision.onFailure, err: errorOf(m.failure)}
	if a.err == nil && !a.moved {
		a.slot = s.holdLocked(q, &m)
		if a.slot == nil {
			a = slotAnswer{moved: true, waited: true, owner: s.node.name}
		}
	}
	q.answer <- a
	return nil
}

// holdLocked returns the slot that q was answered with, nil for one whose time is over: it is to be asked for again, as if its key had moved.
func (s *session) holdLocked(q *asked, m *slotResponse) *Slot {
	x := &Slot{Decision: m.decision.Decision, Fence: m.fence, ID: m.id, client: s.node.client, key: q.key, ctx: q.ctx}
	if x.ID == "" {
		return x
	}
	since := q.sent
	if sent, ok := s.sentLocked(m.heartbeat); ok && sent.After(since) {
		since = sent
	}
	left := leftOf(since, m.expires)
	if left <= 0 { // this process has slept meanwhile
		s.out.release = append(s.out.release, m.number)
		return nil
	}
	x.session, x.number, x.from = s, m.number, m.heartbeat
	s.held[x.number] = x
	x.end = time.AfterFunc(left, x.lose)
	return x
}

// leftOf returns how long a slot may be used that was renewed for ns since then.
func leftOf(since time.Time, ns int64) time.Duration {
	return time.Until(since.Add(time.Duration(ns - ns/slotMargin)))
}

// lose ends x, which was not renewed in time.
func (x *Slot) lose() {
	x.client.slots.Lock()
	x.overUnlock(ErrSlotLost)
}

// overUnlock ends x with that cause, tells the node if there is a session, and unlocks the sessions. Without one it reports true.
func (x *Slot) overUnlock(cause error) (alone bool) {
	if x.cause != nil {
		x.client.slots.Unlock()
		return false
	}
	x.cause = cause
	if x.end != nil {
		x.end.Stop()
	}
	s, cancel := x.session, x.cancel
	if alone = s == nil || s.ended; alone {
		x.client.slots.Unlock()
	} else {
		delete(s.held, x.number)
		s.out.release = append(s.out.release, x.number)
		s.wakeUnlock()
	}
	if cancel != nil {
		cancel(cause)
	}
	return alone
}

// Context is that of Acquire, and ends when the slot does: at Release, and with the cause ErrSlotLost when no node has renewed it in time, before
// it is given to others. If nothing is held it has ended, and its cause is the error of Acquire.
func (x *Slot) Context() context.Context {
	if x == nil || x.client == nil {
		return nothingHeld
	}
	x.client.slots.Lock()
	defer x.client.slots.Unlock()
	if x.cancel == nil {
		if x.ctx, x.cancel = context.WithCancelCause(x.ctx); x.cause != nil {
			x.cancel(x.cause)
		}
	}
	return x.ctx
}

// Release ends the slot. It may be called again.
func (x *Slot) Release() {
	if x == nil || x.client == nil {
		return
	}
	x.client.slots.Lock()
	if x.overUnlock(context.Canceled) && x.ID != "" {
		x.client.spawn(func() { _, _ = x.client.Settle(x.client.ctx, x.ID, 0) }) // if it fails, its deadline ends it
	}
}

// end ends s, which has ended with err, and resumes its slots in others.
func (s *session) end(err error) {
	c := s.node.client
	s.cancel()
	err = s.node.explain(err)
	c.slots.Lock()
	s.ended = true
	if c.slots.byNode[s.node] == s {
		delete(c.slots.byNode, s.node)
	}
	for _, q := range s.asked {
		q.answer <- slotAnswer{err: err}
	}
	slots := s.held
	s.asked, s.held = nil, nil
	c.slots.Unlock()
	for len(slots) > 0 && c.ctx.Err() == nil {
		for number, x := range slots {
			st, _ := c.pick(x.key, s.node)
			c.slots.Lock()
			if x.cause != nil {
				delete(slots, number)
			} else if st != nil {
				if next := c.sessionLocked(st.node); next != nil && next != s {
					next.last++
					x.session, x.number, x.from = next, next.last, next.beat
					next.held[x.number] = x
					next.out.resume = append(next.out.resume, x)
					delete(slots, number)
					next.wakeUnlock()
					continue
				}
			}
			c.slots.Unlock()
		}
		if len(slots) > 0 {
			pause.For(c.ctx, askAgain)
		}
	}
}
